"""What a terminal shows of a profile: devices, hops, mesh axes, operations, and a step drawn in characters."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from stripectl.profiling.timeline import by_kind, moments
from stripectl.reporters.profile_text import (
    AXES,
    DEVICES,
    HOPS,
    OPERATIONS,
    WORDS,
    axis_cells,
    causes,
    device_cells,
    hop_cells,
    operation_cells,
    source,
    summary,
)
from stripectl.reporters.terminal.tables import fitted
from stripectl.util.units import duration

SIGNS = {"compute": "█", "hidden": "▓", "exposed": "░", "skew": "~", "idle": "·"}
NARROW, WIDE = 20, 100  # characters of a drawn step
LEAST = 3  # columns of a table that are shown however narrow the screen is
SHOWN_HOPS, SHOWN_OPERATIONS = 16, 5


def screen_parts(
    trace: Mapping[str, Any], title: str, width: int, predicted: float | None = None, median_s: float | None = None
) -> Iterator[Table | Text]:
    """A profile, part by part; where it says nothing, why."""
    yield Text(title, style="bold")
    said = summary(trace, predicted)
    if not trace.get("devices"):
        yield Text(f"  {said}", style="yellow")
        return
    yield Text(f"  {source(trace, median_s)}; {said}")
    yield table(DEVICES, map(device_cells, trace["devices"]), width)
    yield Text("exposed holds the skew within hops; skew holds the wait at the end of a step too", style="dim")
    yield from drawn(trace, width)
    if trace.get("hops"):
        yield from hops(trace, width)
    for each in causes(trace):
        yield Text(f"  {each['cause']}, {each['which']}: {each['why']}.")
        yield Text(f"    Try: {each['advice']}.")
    if len(trace.get("axes") or ()) > 1:
        yield table(AXES, map(axis_cells, trace["axes"]), width)
    yield table(OPERATIONS, map(operation_cells, (trace.get("operations") or [])[:SHOWN_OPERATIONS]), width)


def hops(trace: Mapping[str, Any], width: int) -> Iterator[Table | Text]:
    """A row for each hop, on the device where most of it is exposed."""
    shown = trace["hops"][:SHOWN_HOPS]
    yield table(HOPS, (hop_cells(hop, trace["devices"]) for hop in shown), width)
    left = len(trace["hops"]) - len(shown) + (trace.get("hops_left_out") or 0)
    if left:
        yield Text(f"  {left} more hops stand in the report", style="dim")


def drawn(trace: Mapping[str, Any], width: int) -> Iterator[Text]:
    """A step of every device, a line each."""
    timeline = trace.get("timeline")
    if not timeline or not timeline["end_s"]:
        return
    names = [device["name"] for device in trace["devices"]]
    room = max(map(len, names)) + 1
    size = max(NARROW, min(WIDE, width - room))
    legend = "  ".join(f"{sign} {kind}" for kind, sign in SIGNS.items())
    yield Text(f"one step, {duration(timeline['end_s'])}: {legend}", style="dim")
    for name, row in zip(names, timeline["devices"], strict=False):
        kinds = moments(by_kind(row), timeline["end_s"], size)
        yield Text(f"{name:{room}}" + "".join(SIGNS[kind] for kind in kinds), no_wrap=True)


def table(names: Sequence[str], rows: Iterable[tuple[str, ...]], width: int) -> Table:
    """With as many columns as fit, never a number cut."""
    return fitted(names, [dict(zip(names, row, strict=True)) for row in rows], width, LEAST, WORDS)
