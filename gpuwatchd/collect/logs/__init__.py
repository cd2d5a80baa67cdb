"""Reading logs that other programs wrote."""
