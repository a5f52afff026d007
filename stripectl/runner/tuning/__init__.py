"""Tile searches: the candidates, their evaluators, and the search strategies."""
