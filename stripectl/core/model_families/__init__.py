"""Families of models, a file each named by the `model_type` of its config.json, with what the keys there mean."""
