"""The best scheme by length, in tables; the report shows the same."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from stripectl.analysis.by_length import QUESTION, LengthResult, SchemesByLength, schemes_by_length
from stripectl.analysis.by_length_notes import by_length_notes, margin_phrase, standing
from stripectl.core.workload import format_length
from stripectl.reporters.terminal.tables import MARKS, fitted_table, memory_cell, spread_cell
from stripectl.results.labels import METHOD_WORDS, plan_label
from stripectl.results.measurement import Measurement
from stripectl.util.units import NOTHING, duration

COLUMNS: tuple[str, ...] = ("tokens", "winner", "plan", "time", "margin", "memory", "next", "refused")
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


def winner_rows(contest: SchemesByLength) -> list[dict[str, str]]:
    """The winner at every length by column, without columns that have no value."""
    rows = [winner_row(each) for each in contest.lengths]
    known = [name for name in COLUMNS if any(row[name] != NOTHING for row in rows)]
    return [{name: row[name] for name in known} for row in rows]


def winner_row(length: LengthResult) -> dict[str, str]:
    """The winner at a length, the next scheme, and the number of plans without a time."""
    cells = dict.fromkeys(COLUMNS, NOTHING)
    cells |= {"tokens": format_length(length.seq_len), "refused": str(sum(map(len, length.refused)))}
    if length.best is None:
        return cells
    best, name = length.best, length.runner_up
    cells |= {"winner": length.winner or NOTHING, "plan": plan_label(best), "memory": memory_cell(best)}
    cells["time"] = f"{spread_cell(best)} {method_mark(best)}"
    if name and (second := length.cells[name].best):
        mark = f" {method_mark(second)}" * (second.method != best.method)
        cells |= {"margin": f"{margin_phrase(length)}{mark}", "next": plan_label(second)}
    return cells


def matrix_row(contest: SchemesByLength, scheme: str, brief: bool = False) -> dict[str, str]:
    """A scheme at every length, by the length's name; `brief` omits its time."""
    row = dict[str, str]()
    for each in contest.lengths:
        place, time, mark = cell_words(each, scheme)
        row[format_length(each.seq_len)] = " ".join(filter(None, (place, "" if brief else time, mark)))
    return row


def cell_words(length: LengthResult, scheme: str) -> tuple[str, str, str]:
    """(the scheme's standing compared with the winner, its time, the mark of the method)."""
    cell = length.cells.get(scheme)
    best = cell and cell.best
    time, mark = (duration(best.median_s), method_mark(best)) if best else ("", "")
    return standing(length, scheme), time, mark


def method_mark(m: Measurement) -> str:
    return MARKS.get(m.method, "?")


def legend(contest: SchemesByLength) -> str:
    """The meaning of figures and marks in the matrix."""
    marks = (f"{MARKS[name]} {METHOD_WORDS.get(name, name)}" for name in contest.methods)
    return f"1.05x: its time over the winner's, by the same method; tie: too close to tell; {', '.join(marks)}"
