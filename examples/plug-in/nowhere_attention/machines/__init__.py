"""Machines, one YAML file each, named by the entry points."""
