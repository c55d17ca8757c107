"""MLflow, DVC and the terminal: one experiment is one run, and nothing here can end or slow a stage."""
