"""A plan in a form to use: stripectl's own YAML and Python, and the configuration of other frameworks."""
