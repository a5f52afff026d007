"""Predictions that break a bound of the machine."""

from stripectl.analysis.note import Note
from stripectl.analysis.plausibility import implausible_sentences

note = Note(
    label="implausible  ", find=lambda run: implausible_sentences(run.results), order=80, most=3, in_reports=False
)
