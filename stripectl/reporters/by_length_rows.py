"""The best scheme by length, as rows of texts; every reporter shows the same."""

from stripectl.analysis.by_length import LengthResult, SchemesByLength
from stripectl.analysis.by_length_notes import margin_phrase, standing
from stripectl.core.lengths import format_length
from stripectl.reporters.cells import MARKS, memory_cell, spread_cell
from stripectl.results.labels import METHOD_WORDS, plan_label
from stripectl.results.measurement import Measurement
from stripectl.util.units import NOTHING, duration

COLUMNS: tuple[str, ...] = ("tokens", "winner", "plan", "time", "margin", "memory", "next", "refused")


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
