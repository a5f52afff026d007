"""Plans that are faster than a reader expects, and why."""

from stripectl.analysis.note import Note
from stripectl.analysis.plausibility import fast_sentences

note = Note(label="note", find=lambda run: fast_sentences(run.results), order=85, most=3, in_reports=False)
