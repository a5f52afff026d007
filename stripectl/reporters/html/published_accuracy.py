"""Predictions compared with published measurements, a row of dots for each kind of prediction: attention on one device
by kernel and pass, the speed-ups of the striped attention paper, the meshes of a training step.

A dot is a published measurement, at the predicted over the measured value. Dots of predictions with a constant or
a choice that was fitted to the same measurements are hollow.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from stripectl.analysis.accuracy.attention import attention_groups, published_devices
from stripectl.analysis.accuracy.meshes import TARGET, mesh_orders, mesh_times
from stripectl.analysis.accuracy.paper import measured_devices, speed_up_error, speed_ups
from stripectl.core.lengths import format_length
from stripectl.hardware.target import parse_target
from stripectl.reporters.html.charts import (
    COLOURS,
    FONT_SIZE,
    INK,
    Chart,
    ChartRow,
    channel,
    chart,
    chart_table,
    either,
    layered,
    plot,
    svg,
    tip,
    tip_channel,
)
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
ROW_PIXELS, NAME_AT, ERROR_AT, DOTS_AT = 58, 8, 23, 40  # of a kind of prediction, down to its texts, to its dots
TICKS = [0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6, 2, 2.5]
NEAR = 1.1  # a ratio within the band
HALF = 10  # pixels above and below the dots that the band covers


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


@cache
def kinds(hardware: str | None = None) -> tuple[Kind, ...]:
    """The kinds of predictions for one device or, with None, for every device of which measurements are published."""
    known = (*published_devices(), *measured_devices(), MESH_DEVICE)
    devices = dict.fromkeys(known) if hardware is None else (hardware,)
    every = [kind for of in (_attention, _speed_ups, _meshes) for name in devices for kind in of(name)]
    return tuple(sorted(every, key=lambda kind: kind.fitted))


def _attention(hardware: str) -> Iterator[Kind]:
    for group, own in attention_groups(hardware).items():
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
        {
            "order": at,
            "ratio": each.ratio,
            "fitted": kind.fitted,
            "tip": tip(f"{each.measurement}: measured {each.measured}, predicted {each.predicted} ({each.ratio:.2f})"),
        }
        for at, kind in enumerate(found)
        for each in kind.comparisons
    ]
    on = "" if hardware else "{}: "
    return chart(
        "ratios",
        TITLE,
        hardware or "all devices",
        ["simulated", "published"],
        f"Predicted over measured values, {len(rows)} published measurements. "
        + " ".join(f"{on.format(kind.hardware)}{kind.name}: {kind.error}." for kind in found),
        chart_table(COLUMNS, rows, COLUMNS[:3], most=MAX_ROWS),
        NOTE,
        kinds=[
            {"order": at, "name": f"{on.format(kind.hardware)}{kind.name}", "error": kind.error}
            for at, kind in enumerate(found)
        ],
        dots=dots,
        one_size=True,
    )


def draw(chart: Chart, width: int) -> str:
    """SVG: for each kind its name, its error and its dots, over a logarithmic ratio."""
    tall, wide = ROW_PIXELS * len(chart["kinds"]), width - 20
    ratios = [dot["ratio"] for dot in chart["dots"]]
    ends = [min(0.75, *ratios) / 1.03, max(1.35, *ratios) * 1.03]
    ticks = [tick for tick in TICKS if ends[0] <= tick <= ends[1]]
    scale = {"type": "log", "domain": ends, "nice": False}
    axis = {"values": ticks, "format": "~g", "grid": False, "labelOverlap": True}
    across = channel("ratio:Q", title="predicted / measured", scale=scale, axis=axis)
    down = channel("y:Q", axis=None, scale={"domain": [tall, 0], "nice": False})

    def at(pixels: int, rows: Sequence[ChartRow]) -> list[ChartRow]:
        return [row | {"y": row["order"] * ROW_PIXELS + pixels} for row in rows]

    lanes = [{"low": 1 / NEAR, "ratio": 1, "high": NEAR, "order": kind["order"]} for kind in chart["kinds"]]
    ends_of_lanes = [row | {"end": row["y"] + 2 * HALF} for row in at(DOTS_AT - HALF, lanes)]
    lane = plot(ends_of_lanes).encode(y=down, y2={"field": "end"})
    dots = plot(at(DOTS_AT, chart["dots"])).mark(
        "point", color=COLOURS[0], fill=COLOURS[0], size=55, strokeWidth=1.5, opacity=0.8
    )
    filled = either("datum.fitted", 0, 0.5)
    text = {"align": "left", "x": 0, "color": INK, "limit": wide}
    layers = [
        lane.mark("rect", color=INK, opacity=0.1).encode(x=channel("low:Q", scale=scale), x2={"field": "high"}),
        lane.mark("rule", color=INK, strokeDash=[4, 3], strokeWidth=1).encode(x=across),
        dots.encode(x=across, y=down, fillOpacity=filled, description=tip_channel()),
        *(
            plot(at(pixels, chart["kinds"])).mark("text", **text, **look).encode(y=down, text=channel(f"{name}:N"))
            for name, pixels, look in (
                ("name", NAME_AT, {"fontWeight": "bold", "fontSize": 12}),
                ("error", ERROR_AT, {"fontSize": FONT_SIZE}),
            )
        ),
    ]
    return svg(layered(layers, wide, tall))
