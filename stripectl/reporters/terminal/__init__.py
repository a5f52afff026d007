"""Output on a terminal: tables, cards, footnotes and progress."""
