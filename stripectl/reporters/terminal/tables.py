"""A run as a table on a terminal."""

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from stripectl.core.method import METHODS
from stripectl.core.workload import PASSES
from stripectl.reporters.cells import measurement_cells, texts_of
from stripectl.reporters.refusals import Refusals, refusal_texts, refusals
from stripectl.results.fit import Fit, memory_fit
from stripectl.results.labels import workload_label
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import MeasurementSet
from stripectl.results.run import Run
from stripectl.util.units import plural

COLUMNS = ("plan", "method", "time", "speed-up", "bound", "vs one", "tiles", "sent", "per device", "MFU")
MIN_COLUMNS = 4  # columns that are shown on any screen
TEXT_COLUMNS = ("plan", "method", "speed-up")


def run_tables(run: Run, width: int, every: bool = True) -> list[Table | Text]:
    """One table per workload and pass, the fastest plans first, with as many columns as fit; then, per workload, the
    plans without a time and what is not shown. Without `every`: only the best plan of each scheme, and the baseline of
    speed-ups. The simulation of a measured plan is a column, not a row."""
    measurements = run.results
    twins = {twin.key for m in measurements if (twin := measurements.simulation_of(m))}
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for m in measurements:
        if m.key not in twins:
            groups.setdefault((workload_label(m.workload), m.target.hardware), []).append(m)
    shown: list[Table | Text] = []
    for (title, _), members in groups.items():
        lacking, hidden = dict[str, None](), 0
        timed = sorted((m for m in members if m.status == "ok"), key=_by_pass_and_time)
        for passes, of_pass in itertools.groupby(timed, lambda m: m.workload.passes):
            listed = list(of_pass)
            rows = listed if every else best_of_schemes(listed)
            columns = shown_columns(rows, measurements)
            cells = (texts_of(measurement_cells(m, measurements), columns) for m in rows)
            made = fitted_table(columns, [dict(zip(columns, texts, strict=True)) for texts in cells], width)
            lacking |= dict.fromkeys(columns[len(made.columns) :])
            hidden += len(listed) - len(rows)
            shown += [Text(f"{passes}, {title} on {members[0].target}", style="bold"), made, Text("")]
        without_time = refusal_lines(refusals(members))
        if without_time and not timed:
            shown.append(Text(f"{title} on {members[0].target}", style="bold"))
        more = [f"{plural(hidden, 'more plan')}: --all-plans"] * bool(hidden)
        more += [f"columns {', '.join(lacking)}: --wide"] * bool(lacking)
        notes = [*without_time, *[Text(f"  {'; '.join(more)}", style="dim")] * bool(more)]
        shown += [*notes, Text("")] if notes else []
    return shown


def shown_columns(rows: Sequence[Measurement], measurements: MeasurementSet) -> list[str]:
    """The columns that these rows have values for, the most important first."""
    shown = {
        "simulation": any(measurements.simulation_of(m) for m in rows),
        "memory": any(m.method == "compiled" or memory_fit(m) == Fit.TOO_CLOSE for m in rows),
        "hidden": any(m.overlap for m in rows),
        "MFU": any(m.mfu is not None for m in rows),  # no peak of CPUs is known
    }
    columns = (*COLUMNS[:MIN_COLUMNS], "simulation", "memory", "hidden", *COLUMNS[MIN_COLUMNS:])
    return [name for name in columns if shown.get(name, True)]


def _by_pass_and_time(m: Measurement) -> tuple[int, int, float]:
    """A sort key: passes in their order, the strongest method first, the fastest first, plans without a time last."""
    passes = PASSES.index(m.workload.passes) if m.workload.passes in PASSES else len(PASSES)
    return passes, METHODS.index(m.method) if m.method in METHODS else len(METHODS), m.median_s or math.inf


def best_of_schemes(listed: Sequence[Measurement]) -> list[Measurement]:
    """From plans in order: the first of each pass, method, target and scheme, and the baselines of speed-ups."""
    over = {(m.workload, m.method, m.speedup.over) for m in listed if m.speedup}
    seen, found = set[Hashable](), list[Measurement]()
    for m in listed:
        key = m.workload, m.method, m.target, m.plan.scheme
        if key not in seen or (m.workload, m.method, m.plan) in over:
            found.append(m)
        seen.add(key)
    return found


def fitted_table(
    columns: Sequence[str],
    rows: Sequence[Mapping[str, str]],
    width: int,
    least: int = MIN_COLUMNS,
    words: Sequence[str] = TEXT_COLUMNS,
    wrapping: Sequence[str] = ("plan",),
) -> Table:
    """The table without its last columns, as many as do not fit; the first columns stay, and some may wrap, plans
    between their parts."""
    needs = {name: max([len(name), *(len(cells[name]) for cells in rows)]) + 2 for name in columns}
    kept = list(columns)
    while sum(needs[name] for name in kept) > width and len(kept) > least:
        kept.pop()
    room = width - sum(needs[name] for name in kept if name not in wrapping)
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in kept:
        justify = "left" if name in words else "right"
        made.add_column(name, justify=justify, no_wrap=name not in wrapping, overflow="fold")
    for cells in rows:
        made.add_row(*(Text(in_lines(cells[name], room - 2) if name == "plan" else cells[name]) for name in kept))
    return made


def in_lines(plan: str, width: int) -> str:
    """Break a plan into lines of at most `width` characters: after a comma, before the mesh, or between words."""
    if len(plan) <= width:
        return plan
    at = max(plan.rfind(",", 0, width) + 1, plan.rfind("@", 0, width), plan.rfind(" ", 0, width) + 1)
    return f"{plan[:at].rstrip()}\n{in_lines('  ' + plan[at:], width)}" if at > 2 else plan


def refusal_lines(told: Refusals) -> list[Text]:
    """One line for each plan and its reason, or group of plans."""
    style = {"refused": "yellow"}
    return [Text(f"  {status}: {text}", style=style.get(status, "red")) for status, text in refusal_texts(told)]
