"""Statistics, a method a file."""
