"""Searches tiles: which to try, what judges them, and for how long."""
