"""Models by name, from a YAML file or from a config.json; `families` has a file for each family of config.json."""
