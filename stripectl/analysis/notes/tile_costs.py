"""The source of the tile and hop costs behind simulated times."""

from stripectl.analysis.cost_sentences import cost_sentences
from stripectl.analysis.note import Note

note = Note(label="costs", find=lambda run: cost_sentences(run.results), order=70, shown_only=True, in_reports=False)
