"""A profile on a terminal: devices, hops, mesh axes, operations, and a step drawn in characters."""

from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table
from rich.text import Text

from stripectl.profiling.timeline import by_kind, moments
from stripectl.reporters.profile_text import (
    AXES,
    HOPS,
    OPERATIONS,
    TEXT_COLUMNS,
    axis_cells,
    cause_lines,
    device_cells,
    device_columns,
    hop_cells,
    operation_cells,
    other_programs_text,
    part_name,
    profile_source,
    profile_summary,
)
from stripectl.reporters.terminal.tables import fitted_table
from stripectl.results.profile import Profile
from stripectl.util.units import duration

SIGNS = {"compute": "█", "hidden": "▓", "exposed": "░", "skew": "~", "idle": "·"}
NARROW, WIDE = 20, 100  # characters of a drawn step
MIN_COLUMNS = 3  # columns of a table that are shown on any screen
SHOWN_HOPS, SHOWN_OPERATIONS = 16, 5


def profile_parts(
    profile: Profile, title: str, width: int, predicted: float | None = None, median_s: float | None = None
) -> Iterator[Table | Text]:
    """A profile, part by part, or the reason why it shows nothing."""
    yield Text(title, style="bold")
    said = profile_summary(profile, predicted)
    if not profile.devices:
        yield Text(f"  {said}", style="yellow")
        return
    yield Text(f"  {profile_source(profile, median_s)}; {said}")
    if others := other_programs_text(profile):
        yield Text(f"  {others}")
    yield narrowed_table(device_columns(profile), map(device_cells, profile.devices), width)
    end = f"the end of {part_name(profile)}"
    yield Text(f"exposed includes the skew within hops; skew also includes the wait at {end}", style="dim")
    yield from drawn_timeline(profile, width)
    if profile.hops:
        yield from hop_table(profile, width)
    for each in cause_lines(profile):
        yield Text(f"  {each.cause}, {each.which}: {each.why}.")
        yield Text(f"    Try: {each.advice}.")
    if len(profile.axes) > 1:
        yield narrowed_table(AXES, map(axis_cells, profile.axes), width)
    yield narrowed_table(OPERATIONS, map(operation_cells, profile.operations[:SHOWN_OPERATIONS]), width)


def hop_table(profile: Profile, width: int) -> Iterator[Table | Text]:
    """One row per hop, on the device with its largest exposed time."""
    shown = profile.hops[:SHOWN_HOPS]
    yield narrowed_table(HOPS, (hop_cells(hop, profile.devices) for hop in shown), width)
    left = len(profile.hops) - len(shown) + int(profile.hops_left_out or 0)
    if left:
        yield Text(f"  {left} more hops are in the report", style="dim")


def drawn_timeline(profile: Profile, width: int) -> Iterator[Text]:
    """A step, a call or the whole profile on every device, one line each."""
    timeline = profile.timeline
    if not timeline or not timeline.end_s:
        return
    names = [device.name for device in profile.devices]
    room = max(map(len, names)) + 1
    size = max(NARROW, min(WIDE, width - room))
    legend = "  ".join(f"{sign} {kind}" for kind, sign in SIGNS.items())
    yield Text(f"{part_name(profile, 'one')}, {duration(timeline.end_s)}: {legend}", style="dim")
    for name, row in zip(names, timeline.devices, strict=False):
        kinds = moments(by_kind(row), timeline.end_s, size)
        yield Text(f"{name:{room}}" + "".join(SIGNS[kind] for kind in kinds), no_wrap=True)


def narrowed_table(names: Sequence[str], rows: Iterable[tuple[str, ...]], width: int) -> Table:
    """A table with as many columns as fit, without cutting a number."""
    return fitted_table(names, [dict(zip(names, row, strict=True)) for row in rows], width, MIN_COLUMNS, TEXT_COLUMNS)
