"""Conclusions: pure functions of results."""
