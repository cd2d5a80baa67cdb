"""Judge the GPUs that a Prometheus already watches: one more process, no second collector."""
