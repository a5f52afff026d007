"""The table of all measurements, and the details of each: samples, check, and the command that repeats it."""

from collections.abc import Sequence
from typing import TypedDict

from stripectl.analysis.plausibility import why_implausible, why_so_fast
from stripectl.errors import BadInput
from stripectl.export.integrations.yaml import command_line
from stripectl.reporters.cells import BLANK, Cell, measurement_cells
from stripectl.reporters.html.charts import PageContext
from stripectl.reporters.refusals import refusals, refused_alike
from stripectl.results.labels import plan_label, workload_label
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import MeasurementSet
from stripectl.results.noise import disturbances
from stripectl.util.units import duration

COLUMNS = (
    *(
        "time",
        "samples",
        "speed-up",
        "bound",
        "layer bound",
        "vs one",
        "tiles computed",
        "useful",
        "sent",
        "hidden",
        "memory",
    ),
    *("per device", "MFU", "simulation is off by"),
)
MAX_NAMED_PLANS = 200  # plans that were refused for one reason
WHY_NOT = {  # of a cell that says n/a
    "time": "the compiler or a datasheet lacks a figure that a time needs",
    "samples": "only a measured plan has samples",
    "speed-up": "one device has none, nor has a plan without another plan on the same number of devices",
    "bound": "it is known only over the contiguous layout of the same scheme, under one mask",
    "layer bound": "only a whole model has one",
    "vs one": "one device was not timed by the same method, or is this row",
    "tiles computed": "no counted tiles are computed",
    "useful": "no counted tiles are computed",
    "sent": "one device sends nothing",
    "hidden": "it needs communication, and a compiled schedule or a profile",
    "memory": "the memory of a plan that was refused for another reason is not known",
    "per device": "it needs a time",
    "MFU": "no peak rate is published for this hardware and dtype",
    "simulation is off by": "only a plan that was measured and simulated has an error",
}


class MeasurementRow(TypedDict):
    """A measurement in the table, or several that were refused for one reason, with their plans."""

    id: str | None
    plan: str
    passes: str
    target: str
    method: str
    status: str
    reason: str
    plans: Sequence[str]
    unnamed: int
    cells: Sequence[Cell]


def measurement_tables(shown: Sequence[Measurement], run: MeasurementSet) -> list[PageContext]:
    """One table per workload, with all passes, for the shown measurements of a run. Columns without any value are
    omitted."""
    groups: dict[str, list[int]] = {}
    for at, m in enumerate(shown):
        groups.setdefault(workload_label(m.workload), []).append(at)
    return [_table(title, members, shown, run) for title, members in groups.items()]


def _table(title: str, members: Sequence[int], shown: Sequence[Measurement], run: MeasurementSet) -> PageContext:
    told = refusals(shown[at] for at in members)
    alone = {m.key for m in told.others(shown[at] for at in members)}
    own = [at for at in members if shown[at].key in alone]
    numbers = {at: measurement_cells(shown[at], run) for at in own if shown[at].status == "ok"}
    columns = [name for name in COLUMNS if name == "time" or any(name in row for row in numbers.values())]
    lacking = [name for name in columns if any(name not in row for row in numbers.values())]
    rows = [_row_of_plan(at, shown[at], [numbers.get(at, {}).get(name, BLANK) for name in columns]) for at in own]
    return {
        "title": title,
        "columns": columns,
        "rows": rows + list(map(_row_of_group, told.groups)),
        "lacking": [{"column": name, "why": WHY_NOT[name]} for name in lacking],
    }


def _row_of_plan(at: int, m: Measurement, cells: Sequence[Cell]) -> MeasurementRow:
    """The row of the measurement at this place in the run."""
    return _row(m, plan_label(m) if m.status == "ok" else str(m.plan), measurement_anchor(at), cells=cells)


def _row_of_group(those: Sequence[Measurement]) -> MeasurementRow:
    """The row of plans that were refused for one reason."""
    named, unnamed = those[:MAX_NAMED_PLANS], those[MAX_NAMED_PLANS:]
    return _row(those[0], refused_alike(those), None, plans=[str(m.plan) for m in named], unnamed=len(unnamed))


def _row(
    m: Measurement,
    plan: str,
    anchor: str | None,
    plans: Sequence[str] = (),
    unnamed: int = 0,
    cells: Sequence[Cell] = (),
) -> MeasurementRow:
    return {
        "id": anchor,
        "plan": plan,
        "passes": m.workload.passes,
        "target": str(m.target),
        "method": m.method,
        "status": m.status,
        "reason": str(m.reason or "no reason was given"),
        "plans": plans,
        "unnamed": unnamed,
        "cells": cells,
    }


def measurement_anchor(at: int) -> str:
    """The name of a measurement's details in the page."""
    return f"m{at}"


def measurement_details(shown: Sequence[Measurement], run: MeasurementSet) -> list[PageContext]:
    """The details of each shown row of a run that has a time, or failed: samples, sources, and the command."""
    return [
        {
            "id": measurement_anchor(at),
            "method": m.method,
            "figures": _figures(m) + _plausibility(m, run),
            "command": _command(m),
        }
        for at, m in enumerate(shown)
        if m.status != "refused"
    ]


def _plausibility(m: Measurement, run: MeasurementSet) -> list[tuple[str, str]]:
    """The bound that a prediction breaks, and why a plan is faster than a reader expects."""
    found = ("implausible", why_implausible(m, run)), ("why so fast", why_so_fast(m, run))
    return [(name, why) for name, why in found if why]


def _command(m: Measurement) -> str:
    try:
        return command_line(m)
    except (BadInput, ValueError):  # the plan has no meaning here
        return f"{m.plan} {m.workload.passes}, {workload_label(m.workload)} on {m.target}"


def _figures(m: Measurement) -> list[tuple[str, str]]:
    found = list[tuple[str, str]]()
    if m.samples_s:
        cut_short = f"; {m.reason}" if m.status == "ok" and m.reason else ""
        found.append(("samples", ", ".join(map(duration, m.samples_s)) + cut_short))
    if m.ci95_s:
        found.append(("95 % interval of the median", f"{duration(m.ci95_s[0])} to {duration(m.ci95_s[1])}"))
    if disturbed := disturbances(m):
        found.append(("disturbed", "; ".join(disturbed)))
    if m.cost_source:
        found.append(("costs from", m.cost_source.source.replace("_", " ")))
    if m.compile_s is not None:
        found.append(("compiled in", duration(m.compile_s)))
    if m.status != "ok":
        found.append((m.status, str(m.reason or "no reason was given")))
    return found
