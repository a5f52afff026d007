"""Families of models. Each file is named by the `model_type` of a config.json and explains the keys of such files."""
