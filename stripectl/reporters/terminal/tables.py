"""A run as a table on a terminal."""

import itertools
import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from stripectl.analysis.distortions import across_classes, mark
from stripectl.core.method import METHODS
from stripectl.core.workload import PASSES
from stripectl.results.fit import Fit, memory_fit
from stripectl.results.labels import METHOD_WORDS, plan_label, workload_label
from stripectl.results.measurement import Measurement, attention_bound
from stripectl.results.measurement_set import MeasurementSet, refusals_and_failures
from stripectl.results.run import Run
from stripectl.statistics.verdict import Verdict
from stripectl.util.units import NOTHING, duration, nbytes, plural, rate, times, with_interval


def speedup_cell(m: Measurement) -> str:
    """The value, its interval and, where the interval contains 1, the word for it."""
    if not m.speedup:
        return "base" if m.status == "ok" and m.median_s and m.devices > 1 else NOTHING
    text = f"{times(m.speedup.value)}{mark(m, 'speedup')}"
    text += f" {across}" if (across := across_classes(m.plan, m.speedup.over)) else ""
    if m.speedup.ci95:
        low, high = m.speedup.ci95
        text += f" [{low:.2f}, {high:.2f}]"
        if m.speedup.verdict == Verdict.INCONCLUSIVE:
            text += " ambiguous"
    return text


def spread_cell(m: Measurement) -> str:
    return with_interval(m.median_s, m.ci95_s) + (mark(m, "time") if m.median_s else "")


COLUMNS = ("plan", "method", "time", "speed-up", "bound", "vs one", "tiles", "sent", "per device", "MFU")
PAIR_COLUMNS = ("simulation",)
COMPILED_COLUMNS = ("memory", "hidden")
MAX_REFUSED_ROWS = 3  # refused plans that have a row and a line each
NO_AXIS = re.compile(r"(?P<scheme>\w+) has no axis (?P<axis>\w+);")  # a combination of a grid that is not a plan
MIN_COLUMNS = 4  # columns that are shown on any screen
TEXT_COLUMNS = ("plan", "method", "speed-up")
MARKS = {"measured": "●", "compiled": "■", "simulated": "◇"}  # next to a number where there is no room for the word


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
            made = fitted_table(columns, [measurement_row(m, measurements) for m in rows], width)
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
    memory = any(m.method == "compiled" or memory_fit(m) == Fit.TOO_CLOSE for m in rows)
    extra = ["memory"] * memory + ["hidden"] * any(m.overlap for m in rows)
    pairs = any(measurements.simulation_of(m) for m in rows)
    columns = [*COLUMNS[:MIN_COLUMNS], *PAIR_COLUMNS * pairs, *extra, *COLUMNS[MIN_COLUMNS:]]
    return [
        name for name in columns if name != "MFU" or any(m.mfu is not None for m in rows)
    ]  # no peak of CPUs is known


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
    """A plan in lines of at most `width` characters, broken after a comma, before its mesh, or between words."""
    if len(plan) <= width:
        return plan
    at = max(plan.rfind(",", 0, width) + 1, plan.rfind("@", 0, width), plan.rfind(" ", 0, width) + 1)
    return f"{plan[:at].rstrip()}\n{in_lines('  ' + plan[at:], width)}" if at > 2 else plan


def memory_cell(m: Measurement) -> str:
    """The memory that a device needs, of the memory that it has, and whether this is too close to tell."""
    if not m.peak_bytes or not m.hbm_bytes:
        return nbytes(m.peak_bytes)
    doubt = f", {Fit.TOO_CLOSE}" * (memory_fit(m) == Fit.TOO_CLOSE)
    return f"{m.peak_bytes / m.hbm_bytes:.0%} of {nbytes(m.hbm_bytes)}{doubt}{mark(m, 'memory')}"


def sent_cell(m: Measurement) -> str:
    """The bytes that a device sends."""
    return nbytes(sum((m.bytes or {}).values())) + mark(m, "bytes")


def hidden_cell(m: Measurement) -> str:
    """The hidden share of communication."""
    return f"{m.overlap.ratio:.0%}" if m.overlap and m.overlap.ratio is not None else NOTHING


def tiles_cell(m: Measurement) -> str:
    """The useful share of scores in tiles, and the rows that the kernel pads."""
    if not m.tiles:
        return NOTHING
    return f"{m.tiles.efficiency:.0%}" + (f" (+{m.tiles.padding} rows)" if m.tiles.padding else "")


def measurement_row(m: Measurement, run: MeasurementSet) -> dict[str, str]:
    """The cells of a measurement, by column."""
    cells = dict.fromkeys((*COLUMNS, *PAIR_COLUMNS, *COMPILED_COLUMNS), NOTHING)
    cells |= {"plan": plan_label(m), "memory": memory_cell(m)}
    if m.status != "ok":
        return cells | {"method": m.status}
    other, error = run.simulation_of(m), run.simulation_error(m)
    if other is not None and error is not None:
        cells["simulation"] = f"{duration(other.median_s)} {error:+.0%}"
    if m.devices > 1:
        cells["sent"] = sent_cell(m)
    return cells | {
        "method": METHOD_WORDS.get(m.method, m.method),
        "hidden": hidden_cell(m),
        "time": spread_cell(m),
        "speed-up": speedup_cell(m),
        "bound": times(attention_bound(m)),
        "vs one": times(run.over_one_device(m)),
        "tiles": tiles_cell(m),
        "per device": rate(m.flops_per_s_per_device, "FLOP/s"),
        "MFU": NOTHING if m.mfu is None else f"{m.mfu:.0%}",
    }


class Refusals(NamedTuple):
    """Plans without a time: single plans, and groups that were refused for one reason."""

    alone: list[Measurement]
    groups: list[list[Measurement]]

    def others(self, members: Iterable[Measurement]) -> list[Measurement]:
        """The members that have their own row."""
        together = {m.key for those in self.groups for m in those}
        return [m for m in members if m.key not in together]


def refusals(members: Iterable[Measurement]) -> Refusals:
    """The plans of a table that have no time, grouped where their reasons differ only in numbers."""
    same = [those for those in refusals_and_failures(members) if those[0].status == "refused"]
    many = [those for those in same if len(those) > MAX_REFUSED_ROWS and not NO_AXIS.match(those[0].reason or "")]
    no_axis = [m for those in same if NO_AXIS.match(those[0].reason or "") for m in those]
    together = {m.key for those in (*many, no_axis) for m in those}
    alone = [m for m in members if m.status != "ok" and m.key not in together]
    return Refusals(alone, [*many, *([no_axis] if no_axis else [])])


def refusal_lines(told: Refusals) -> list[Text]:
    """One line for each plan and its reason, or group of plans."""
    style = {"refused": "yellow"}
    by_reason: dict[tuple[str, str, str | None], dict[str, None]] = {}
    for m in told.alone:
        by_reason.setdefault((m.status, str(m.plan), m.reason), {})[m.workload.passes] = None
    alone = [(status, f"{plan} {', '.join(passes)}: {why}") for (status, plan, why), passes in by_reason.items()]
    groups = [("refused", refused_group(those)) for those in told.groups]
    return [Text(f"  {status}: {text}", style=style.get(status, "red")) for status, text in (*alone, *groups)]


def refused_group(those: Sequence[Measurement]) -> str:
    """Plans that were refused for one reason; combinations of a grid without such an axis, by scheme and axis."""
    lacking = [NO_AXIS.match(m.reason or "") for m in those]
    if not all(lacking):
        return f"{refused_alike(those)} {those[0].workload.passes}: {those[0].reason}"
    pairs = dict.fromkeys(f"{found['scheme']} on {found['axis']}" for found in lacking if found)
    return f"{plural(len(those), 'combination')} of schemes and meshes that do not exist: {', '.join(pairs)}"


def refused_alike(those: Sequence[Measurement]) -> str:
    """Plans that were refused for one reason, named by the first of them."""
    return f"{plural(len(those), 'plan')}, for example {those[0].plan}"
