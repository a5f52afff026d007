"""Conclusions: pure functions of what was found."""
