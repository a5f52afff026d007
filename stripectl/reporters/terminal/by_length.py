"""The best scheme by length, in tables; the report shows the same."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from stripectl.analysis.by_length import QUESTION, SchemesByLength, schemes_by_length
from stripectl.analysis.by_length_notes import by_length_notes
from stripectl.core.lengths import format_length
from stripectl.reporters.by_length_rows import cell_words, legend, winner_rows
from stripectl.reporters.terminal.tables import fitted_table
from stripectl.results.measurement import Measurement

TEXT_COLUMNS = ("tokens", "winner", "plan", "margin", "next", "scheme")
MIN_COLUMNS = 5  # columns that are shown on any screen


def by_length_tables(measurements: Iterable[Measurement], width: int) -> list[Table | Text]:
    """The comparisons of a run: an answer, the winner at every length, and every scheme at every length."""
    shown: list[Table | Text] = []
    for contest in schemes_by_length(measurements):
        tables = [winner_rows(contest), _matrix(contest, width)]
        made = [
            fitted_table(list(rows[0]), rows, width, least, TEXT_COLUMNS)
            for rows, least in zip(tables, (MIN_COLUMNS, 2), strict=True)
        ]
        lacking = [name for rows, part in zip(tables, made, strict=True) for name in list(rows[0])[len(part.columns) :]]
        shown += [Text(""), Text(f"{QUESTION} {contest.workload.passes}, {contest.title}", style="bold")]
        shown += [Text(f"  {contest.answer}"), made[0], Text(""), made[1]]
        shown += [Text(f"  {line}") for line in (legend(contest), *by_length_notes(contest))]
        shown += [Text(f"  too narrow for: {', '.join(lacking)}", style="dim")] * bool(lacking)
    return shown + [Text("")] * bool(shown)


def _matrix(contest: SchemesByLength, width: int) -> list[dict[str, str]]:
    """Every scheme at every length, without times where those do not fit."""
    for brief in (False, True):
        rows = [{"scheme": name} | matrix_row(contest, name, brief) for name in contest.schemes]
        if sum(max(len(row[column]) for row in rows) + 2 for column in rows[0]) <= width:
            break
    return rows


def matrix_row(contest: SchemesByLength, scheme: str, brief: bool = False) -> dict[str, str]:
    """A scheme at every length, by the length's name; `brief` omits its time."""
    row = dict[str, str]()
    for each in contest.lengths:
        place, time, mark = cell_words(each, scheme)
        row[format_length(each.seq_len)] = " ".join(filter(None, (place, "" if brief else time, mark)))
    return row
