"""Roofline: the rates of kernels compared with the roofs of the machine (Williams et al. 2009).

The intensity is computed for a tile: its matmuls divided by the bytes that it moves, keys and values (backward also
their gradients) and, for kernels that keep scores in memory, the scores, as in `datasheet.roofline`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from stripectl.core.lengths import format_length
from stripectl.core.plan import kernels
from stripectl.core.workload import STEP
from stripectl.costs.sources.datasheet import intensity
from stripectl.hardware.profile import Hardware, hardware_names
from stripectl.reporters.html.charts import PANEL, Chart, Section, chart_table, grouped_by, section
from stripectl.reporters.html.vega_lite import draw_file, tip
from stripectl.results.labels import plan_label, workload_label
from stripectl.results.measurement import Measurement
from stripectl.util.units import PREFIXES, rate, unit_of

TITLE = "Is the kernel limited by compute or by memory?"
INTRO = (
    "A mark is the rate that a plan reaches on each device, over the FLOPs that a tile computes per byte it moves. Far "
    "below both published roofs a plan waits for hops or for other devices, or its kernel leaves units idle."
)
ABSENT = (
    "A roofline needs attention with a time, and a peak rate and a memory bandwidth, which may not be published for "
    "this hardware. stripectl topology --measure writes a profile of the local machine."
)
COLUMNS = ("plan", "method", "FLOPs per byte", "a device reaches", "of the roof")
MAX_MARKS = 40  # marks


class RoofPoint(NamedTuple):
    """A corner or an end of the roof."""

    intensity: float
    rate: float


class RooflineMark(NamedTuple):
    """A plan below the roof."""

    intensity: float
    rate: float
    method: str
    roof: float
    tip: str


@dataclass(frozen=True)
class Roofline:
    """Plans, and the roof as its start, its ridge and its end, in the unit of `axis`."""

    marks: Sequence[RooflineMark]
    roof: Sequence[RoofPoint]
    axis: str
    kind: ClassVar = "roofline"

    def draw(self, width: int) -> str:
        data = {"marks": self.marks, "roof": self.roof, "ridge": self.roof[1:2]}
        size = {"width": width - 60, "height": 260 if width > PANEL else 220}
        return draw_file("roofline", data, size, title=self.axis)


def of_run(shown: Sequence[Measurement]) -> Section:
    groups: dict[Any, list[Measurement]] = {}
    for m in shown:
        roofs = _roofs(m)
        if roofs and m.status == "ok" and m.flops_per_s_per_device and _intensity(m):
            groups.setdefault((m.workload.without("seq_len"), m.target.hardware), []).append(m)
    return section("roofline", "Roofline", TITLE, INTRO, grouped_by(map(_chart, groups.values())), ABSENT)


def _roofs(m: Measurement) -> tuple[float, float] | None:
    """(FLOP/s, bytes/s) of a device, where both are known."""
    name = m.target.hardware
    if not m.peak_flops_per_s or name not in hardware_names():
        return None
    memory = Hardware.load(name).figure("hbm_bytes_per_s")
    return (m.peak_flops_per_s, memory) if memory else None


def _intensity(m: Measurement) -> float | None:
    plan = m.plan
    if plan.tile is None or m.workload.passes == STEP or m.workload.attention == "linear":
        return None
    return intensity(m.workload, plan.tile, plan.backward or plan.tile, kernels[plan.kernel])


def _chart(members: Sequence[Measurement]) -> Chart:
    peak, memory = _roofs(members[0]) or (0.0, 0.0)
    drawn = sorted(members, key=lambda m: -(m.flops_per_s_per_device or 0.0))[:MAX_MARKS]
    unit, size = unit_of(peak, [(f"{prefix}FLOP/s", size) for prefix, size in PREFIXES])
    marks = [_mark(m, peak, memory, size) for m in drawn]
    rows = [_cells(m, mark) for m, mark in zip(drawn, marks, strict=True)]
    ridge, work = peak / memory, members[0].workload
    low, high = min(ridge, *(mark.intensity for mark in marks)) / 4, max(ridge, *(mark.intensity for mark in marks)) * 4
    lengths = [format_length(each) for each in sorted({m.workload.seq_len for m in members})]
    side = "compute" if marks[0].intensity >= ridge else "memory"
    return Chart(
        TITLE,
        f"{work.passes} on {members[0].target.hardware}",
        [m.method for m in drawn],
        f"Rates of plans and the roofs of {rate(peak, 'FLOP/s')} and {rate(memory, 'B/s')}. The fastest reaches "
        f"{rows[0][3]}, {rows[0][4]} of the roof of {side}.",
        chart_table(COLUMNS, rows, ("plan", "method")),
        Roofline(
            marks,
            [RoofPoint(at, min(peak, memory * at) / size) for at in (low, ridge, high)],
            f"a device reaches ({unit})",
        ),
        f"Matrix units do {rate(peak, 'FLOP/s')}, memory moves {rate(memory, 'B/s')}: tiles with more than "
        f"{ridge:,.0f} FLOPs per byte are limited by compute.",
        group=workload_label(work, f"{lengths[0]} to {lengths[-1]}" if len(lengths) > 1 else None),
    )


def _mark(m: Measurement, peak: float, memory: float, size: float) -> RooflineMark:
    """A plan below the roofs, in units of `size` FLOP/s."""
    per_byte = _intensity(m) or 0.0
    return RooflineMark(
        per_byte,
        (m.flops_per_s_per_device or 0.0) / size,
        m.method,
        min(peak, memory * per_byte) / size,
        tip(f"{_name(m)}: {rate(m.flops_per_s_per_device, 'FLOP/s')} per device, {m.method}"),
    )


def _cells(m: Measurement, mark: RooflineMark) -> tuple[str, ...]:
    reached = rate(m.flops_per_s_per_device, "FLOP/s")
    return _name(m), m.method, f"{mark.intensity:,.0f}", reached, f"{mark.rate / mark.roof:.0%}"


def _name(m: Measurement) -> str:
    return f"{plan_label(m)}, {format_length(m.workload.seq_len)} tokens"
