"""Outputs of a run: on a terminal, as a page, as markdown, and for CI systems."""
