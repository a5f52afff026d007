"""A run as something to look at: on a terminal, as a page, as markdown, and for CI systems."""
