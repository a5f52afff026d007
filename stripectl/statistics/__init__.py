"""Statistics, one method per file."""
