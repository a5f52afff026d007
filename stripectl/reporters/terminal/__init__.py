"""What a terminal shows: tables, cards, footnotes and progress."""
