"""Gemma 3 with vision: its language model is of the family `gemma3_text`."""

from stripectl.models.families.gemma3_text import family

__all__ = ["family"]
