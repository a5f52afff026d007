"""The best scheme by length, in tables; the report shows the same."""

from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from stripectl.analysis.by_length import LengthResult, SchemeResult, SchemesByLength, schemes_by_length
from stripectl.core.method import METHODS
from stripectl.core.plan import UNSHARDED
from stripectl.core.workload import format_length
from stripectl.reporters.terminal.tables import MARKS, fitted_table, memory_cell, spread_cell
from stripectl.results.labels import METHOD_WORDS, plan_label, workload_label
from stripectl.results.measurement import Measurement
from stripectl.util.units import NOTHING, duration, plural, times

QUESTION = "Which scheme wins at which length?"
COLUMNS: tuple[str, ...] = ("tokens", "winner", "plan", "time", "margin", "memory", "next", "refused")
TEXT_COLUMNS = ("tokens", "winner", "plan", "margin", "next", "scheme")
MIN_COLUMNS = 5  # columns that are shown on any screen
MAX_REASON_CHARACTERS = 100  # characters of a reason
EVERY_SCHEME = "to do this for the best plan of every scheme, try --mesh auto --refine"
WHOLE = f"{UNSHARDED}: each sequence stays on one device; devices share only batch and heads"


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
        shown += [Text(""), Text(f"{QUESTION} {contest.workload.passes}, {workload_title(contest)}", style="bold")]
        shown += [Text(f"  {contest.answer}"), made[0], Text(""), made[1]]
        shown += [Text(f"  {line}") for line in (legend(contest), *matrix_notes(contest))]
        shown += [Text(f"  too narrow for: {', '.join(lacking)}", style="dim")] * bool(lacking)
    return shown + [Text("")] * bool(shown)


def _matrix(contest: SchemesByLength, width: int) -> list[dict[str, str]]:
    """Every scheme at every length, without times where those do not fit."""
    for brief in (False, True):
        rows = [{"scheme": name} | matrix_row(contest, name, brief) for name in contest.schemes]
        if sum(max(len(row[column]) for row in rows) + 2 for column in rows[0]) <= width:
            break
    return rows


def workload_title(contest: SchemesByLength) -> str:
    """The workload with its shortest and its longest length, and the target."""
    first, last = (format_length(contest.lengths[at].seq_len) for at in (0, -1))
    return f"{workload_label(contest.workload, f'{first} to {last}')} on {contest.target}"


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
    if name and (second := length.cells[name]).best:
        cells |= {"margin": margin_cell(name, second, best), "next": plan_label(second.best)}
    return cells


def margin_cell(name: str, second: SchemeResult, best: Measurement) -> str:
    """How much longer the next scheme takes, and its method where it differs from the winner's."""
    assert second.ratio and second.best
    how = f" {method_mark(second.best)}" if second.best.method != best.method else ""
    return f"{second.ratio - 1:.1%}{how} ahead of {name}{', too close' if second.close else ''}"


def matrix_row(contest: SchemesByLength, scheme: str, brief: bool = False) -> dict[str, str]:
    """A scheme at every length, by the length's name; `brief` omits its time."""
    row = dict[str, str]()
    for each in contest.lengths:
        standing, time, mark = cell_words(each, scheme)
        row[format_length(each.seq_len)] = " ".join(filter(None, (standing, "" if brief else time, mark)))
    return row


def cell_words(length: LengthResult, scheme: str) -> tuple[str, str, str]:
    """(the scheme's standing compared with the winner, its time, the mark of the method)."""
    cell = length.cells.get(scheme)
    if cell is None or cell.best is None:
        return cell.refused[0][0].status if cell and cell.refused else NOTHING, "", ""
    standing = "best" if scheme == length.winner else times(cell.ratio) + " tie" * cell.close
    return standing, duration(cell.best.median_s), method_mark(cell.best)


def method_mark(m: Measurement) -> str:
    return MARKS.get(m.method, "?")


def legend(contest: SchemesByLength) -> str:
    """The meaning of figures and marks in the matrix."""
    marks = (f"{MARKS[name]} {METHOD_WORDS.get(name, name)}" for name in _methods(contest))
    return f"1.05x: its time over the winner's, by the same method; tie: too close to tell; {', '.join(marks)}"


def _methods(contest: SchemesByLength) -> list[str]:
    """The methods in the matrix, the strongest first."""
    used = {cell.best.method for each in contest.lengths for cell in each.cells.values() if cell.best}
    return [name for name in METHODS if name in used]


def matrix_notes(contest: SchemesByLength) -> list[str]:
    """The row that is not a scheme, cells that a stronger method could change, and why plans have no time: by scheme,
    and for all schemes together."""
    said, (strongest, *weaker) = [WHOLE] * (UNSHARDED in contest.schemes), _methods(contest)
    for name in weaker:
        said.append(
            f"{MARKS[name]} was not {strongest}, and may be slower when it is; {EVERY_SCHEME} {len(contest.schemes)}"
        )
    for scheme in contest.schemes:
        cells = {each.seq_len: each.cells.get(scheme) for each in contest.lengths}
        lacking = {seq_len: cell.refused for seq_len, cell in cells.items() if cell and cell.best is None}
        said += [f"{scheme} has no time at {where}: {why}" for why, where in _alike(lacking).items()]
    refused = {each.seq_len: each.refused for each in contest.lengths if each.refused}
    return said + [f"refused at {where}: {why}" for why, where in _alike(refused).items()]


def _alike(refused: Mapping[int, Sequence[Sequence[Measurement]]]) -> dict[str, str]:
    """The lengths at which plans have no time for the same reason, by reason."""
    found: dict[str, list[str]] = {}
    for seq_len, groups in refused.items():
        found.setdefault(reason_of(groups), []).append(format_length(seq_len))
    return {why: ", ".join(lengths) for why, lengths in found.items()}


def reason_of(groups: Sequence[Sequence[Measurement]]) -> str:
    """The number of plans without a time, and the first reason."""
    if not groups:
        return NOTHING
    count, reason = sum(map(len, groups)), groups[0][0].reason or "no reason was given"
    first = reason.partition(" :: ")[0].split(". ")[0].rstrip(".")
    if len(first) > MAX_REASON_CHARACTERS:
        first = first[: MAX_REASON_CHARACTERS - 1] + "…"
    text = f"{plural(count, 'plan')}, {first}"
    others = len(groups) - 1
    return text + (f", and {plural(others, 'other reason')}" if others else "")
