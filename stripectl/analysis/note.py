"""Notes: findings about a run that its tables do not show. A note is one file in `notes/`, and every reporter draws the
lines of `note_lines`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from stripectl.results.run import Run
from stripectl.util.catalogue import Catalogue
from stripectl.util.plug_in_errors import plug_in_reason, show_traceback

LABEL_COLUMNS = 8
MAX_IN_REPORTS = 10  # findings of a note in a report, where the note limits them


class Finding(NamedTuple):
    """A sentence, lines that belong to it, and whether it stands out."""

    sentence: str
    details: tuple[str, ...] = ()
    stands_out: bool = False


@dataclass(frozen=True, kw_only=True)
class Note:
    """A kind of finding.

    find(run) -> what it found, as sentences, or as `Finding` with further lines; empty where the run has nothing of
    the kind.
    """

    label: str  # before each sentence
    find: Callable[[Run], Iterable[str | Finding]]
    order: int = 100  # of notes below each other, before their names
    shown_only: bool = False  # on a terminal it is about the plans that the table shows, not about all plans of the run
    most: int | None = None  # findings on a terminal; the report has the others
    in_reports: bool = True  # False: reports show it in a section of their own


class NoteLine(NamedTuple):
    """A line of a note; its label is empty where it belongs to the line above."""

    label: str
    text: str
    stands_out: bool = False

    def __str__(self) -> str:
        return f"{self.label:{LABEL_COLUMNS}}{self.text}"


notes: Catalogue[Note] = Catalogue("stripectl.analysis.notes", "note", "note")


def note_lines(run: Run, shown: Run | None = None) -> list[NoteLine]:
    """The lines of all notes that have found something. `shown` is the part of the run that a terminal's table shows;
    without it, the lines are for a report."""
    good, broken = notes.load()
    lines = list[NoteLine]()
    for name, note in sorted(good.items(), key=lambda each: (each[1].order, each[0])):
        if shown is not None or note.in_reports:
            lines += lines_of_note(name, shown if shown is not None and note.shown_only else run, shown is None)
    return lines + [NoteLine("note", f"{name} cannot be loaded: {why}") for name, why in broken.items()]


def lines_of_note(name: str, run: Run, report: bool = True) -> list[NoteLine]:
    """The lines of a note about a run. A note that fails must not hide the others, so it has its error as a line."""
    note = notes[name]
    try:
        found = [each if isinstance(each, Finding) else Finding(each) for each in note.find(run)]
    except Exception as error:  # a note may be foreign code
        show_traceback(error)
        return [NoteLine(note.label, f"the note {name} failed: {plug_in_reason(error)}")]
    most = len(found) if note.most is None else MAX_IN_REPORTS if report else note.most
    lines = list[NoteLine]()
    for each in found[:most]:
        lines.append(NoteLine(note.label, each.sentence, each.stands_out))
        lines += [NoteLine("", detail) for detail in each.details]
    more = f"and {len(found) - most} more" + ", each with its reason in the report" * (not report)
    return [*lines, *[NoteLine("", more)] * (len(found) > most)]
