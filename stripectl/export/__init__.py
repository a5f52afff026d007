"""A plan as something to use: our own YAML and Python, and the configuration of other frameworks."""
