"""Values, quantities, safe text, errors, configuration, tables of plug-ins."""
