"""A plan as something to use: YAML, Python, and the configuration of other frameworks."""
