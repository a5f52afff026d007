"""Predictions compared with published measurements, a row of dots for each kind of prediction: attention on one device
by kernel and pass, the speed-ups of the striped attention paper, the meshes of a training step.

A dot is a published measurement, at the predicted over the measured value. Dots of predictions with a constant or
a choice that was fitted to the same measurements are hollow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple

from stripectl.analysis.accuracy.attention import attention_groups, published_devices
from stripectl.analysis.accuracy.meshes import TARGET, mesh_orders, mesh_times
from stripectl.analysis.accuracy.paper import measured_devices, speed_up_error, speed_ups
from stripectl.core.lengths import format_length
from stripectl.hardware.target import parse_target
from stripectl.reporters.html.charts import Chart, chart_table
from stripectl.reporters.html.vega_lite import draw_file, tip
from stripectl.results.measurement import Measurement
from stripectl.util.units import duration, plural, times

TITLE = "How far are predictions from published measurements?"
NOTE = (
    "A dot is a published measurement: at 1 the prediction equals it, to the right the prediction is too high. The "
    "grey band is 10 %. Hollow dots: a constant or a choice of the prediction was fitted to the same measurements."
)
MESH_DEVICE = parse_target(TARGET).hardware.name
COLUMNS = ("prediction", "device", "measurement", "measured", "predicted", "predicted / measured")
MAX_ROWS = 120  # of the table
ROW_PIXELS = 58  # of a kind of prediction
TICKS = [0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6, 2, 2.5]


class PredictedAndPublished(NamedTuple):
    """A published measurement and its prediction, as texts, and their ratio."""

    measurement: str
    measured: str
    predicted: str
    ratio: float


class Kind(NamedTuple):
    """A kind of prediction on a device: its name, its error as a text, and its comparisons. `fitted`: a constant or
    a choice was fitted to these measurements."""

    hardware: str
    name: str
    error: str
    fitted: bool
    comparisons: Sequence[PredictedAndPublished]


class KindLabel(NamedTuple):
    """The texts of a row."""

    order: int
    name: str
    error: str


class RatioDot(NamedTuple):
    """A published measurement in the row with this order."""

    order: int
    ratio: float
    fitted: bool
    tip: str


@dataclass(frozen=True)
class Ratios:
    """For each kind its name, its error and its dots, over a logarithmic ratio."""

    kinds: Sequence[KindLabel]
    dots: Sequence[RatioDot]
    kind: ClassVar = "ratios"

    def draw(self, width: int) -> str:
        ratios = [dot.ratio for dot in self.dots]
        low, high = min(0.75, *ratios) / 1.03, max(1.35, *ratios) * 1.03
        ticks = [tick for tick in TICKS if low <= tick <= high]
        data = {"kinds": self.kinds, "dots": self.dots}
        size = {"width": width - 20, "height": ROW_PIXELS * len(self.kinds)}
        return draw_file("ratios", data, size, ends=[low, high], ticks=ticks)


@cache
def kinds(hardware: str | None = None) -> tuple[Kind, ...]:
    """The kinds of predictions for one device or, with None, for every device of which measurements are published."""
    known = (*published_devices(), *measured_devices(), MESH_DEVICE)
    devices = dict.fromkeys(known) if hardware is None else (hardware,)
    every = [kind for of in (_attention, _speed_ups, _meshes) for name in devices for kind in of(name)]
    return tuple(sorted(every, key=lambda kind: kind.fitted))


def _attention(hardware: str) -> Iterator[Kind]:
    for group, own in attention_groups(hardware, pooled=True).items():
        yield Kind(
            group.hardware,
            f"attention, {group.passes}, {group.measured}",
            f"{group.error.rows} measurements, mean error {group.error.mean:.1%}",
            group.fitted,
            [
                PredictedAndPublished(
                    f"{each.row.batch} x {each.row.q_len} queries, {each.row.kv_len} keys, "
                    f"{plural(each.row.heads, 'head')} of {each.row.head_dim}, {each.row.mask}",
                    duration(each.row.seconds),
                    duration(each.predicted),
                    each.ratio,
                )
                for each in own
            ],
        )


def _speed_ups(hardware: str) -> Iterator[Kind]:
    if hardware not in measured_devices():
        return
    error = speed_up_error(hardware)
    yield Kind(
        hardware,
        "training step, speed-up of striped (Brandon et al. 2023)",
        f"{error.rows} measurements, RMSE {error.rmse:.3f}",
        True,
        [
            PredictedAndPublished(
                f"{each.model}, ring={each.ring}, tensor={each.tensor}, {format_length(each.seq_len)} tokens",
                times(each.measured),
                times(each.simulated),
                each.simulated / each.measured,
            )
            for each in speed_ups(hardware)
        ],
    )


def _meshes(hardware: str) -> Iterator[Kind]:
    if hardware != MESH_DEVICE:
        return
    orders = mesh_orders()
    right, pairs = sum(each.right for each in orders), sum(each.pairs for each in orders)
    yield Kind(
        hardware,
        f"training step, time by mesh of {TARGET} (MaxText)",
        f"{len(mesh_times())} measurements; {right} of {pairs} pairs of meshes are in the right order",
        True,
        [
            PredictedAndPublished(
                f"{each.plan}, {format_length(each.seq_len)} tokens",
                duration(each.measured),
                duration(each.simulated),
                each.ratio,
            )
            for each in mesh_times()
        ],
    )


def of_run(shown: Sequence[Measurement]) -> list[Chart]:
    """A chart for each kind of device that a run predicts for, if there are published measurements."""
    predicted = (m for m in shown if m.status == "ok" and m.method in ("simulated", "compiled"))
    return [found for name in dict.fromkeys(m.target.tables_of for m in predicted) if (found := of_hardware(name))]


def of_hardware(hardware: str | None) -> Chart | None:
    """The chart of one kind of device, or of all; None where nothing is published."""
    found = kinds(hardware)
    if not found:
        return None
    rows = [
        (kind.name, kind.hardware, each.measurement, each.measured, each.predicted, f"{each.ratio:.2f}")
        for kind in found
        for each in kind.comparisons
    ]
    dots = [
        RatioDot(
            at,
            each.ratio,
            kind.fitted,
            tip(f"{each.measurement}: measured {each.measured}, predicted {each.predicted} ({each.ratio:.2f})"),
        )
        for at, kind in enumerate(found)
        for each in kind.comparisons
    ]
    on = "" if hardware else "{}: "
    labels = [KindLabel(at, f"{on.format(kind.hardware)}{kind.name}", kind.error) for at, kind in enumerate(found)]
    return Chart(
        TITLE,
        hardware or "all devices",
        ["simulated", "published"],
        f"Predicted over measured values, {len(rows)} published measurements. "
        + " ".join(f"{label.name}: {label.error}." for label in labels),
        chart_table(COLUMNS, rows, COLUMNS[:3], most=MAX_ROWS),
        Ratios(labels, dots),
        NOTE,
        one_size=True,
    )
