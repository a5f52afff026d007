"""The accuracy of predictions: simulations compared with measurements in this run, and this run's results compared with
a paper's measurements."""

from collections.abc import Sequence
from typing import Any

from stripectl.analysis.ranking import SimulatedAndMeasured, simulated_and_measured
from stripectl.analysis.striped_attention_paper import published_comparisons
from stripectl.core.lengths import format_length
from stripectl.core.workload import STEP, Workload
from stripectl.reporters.cells import speedup_cell, spread_cell
from stripectl.reporters.html.charts import (
    COLOURS,
    INK,
    NARROW,
    SHAPES,
    Chart,
    ChartGroup,
    ChartRow,
    Section,
    channel,
    chart,
    chart_table,
    layered,
    plot,
    section,
    svg,
    tip,
    tip_channel,
)
from stripectl.results.labels import workload_label
from stripectl.results.measurement import Measurement
from stripectl.util.units import NOTHING, SECONDS, duration, times, unit_of

TITLE, PAPER_TITLE = "How far are predictions from measurements?", "How close is it to what was published?"
INTRO = (
    "On the line a prediction equals the measurement; above the line it is too high. Bars are 95 % intervals of "
    "measurements."
)
ABSENT = (
    "No plan was both measured and simulated here, and no plan was published. A bench on local devices measures and "
    "simulates: stripectl bench --target cpu:2."
)
COLUMNS = ("plan", "pass", "measured", "simulated", "error", "speed-up measured", "speed-up simulated", "its error")
PAPER_COLUMNS = ("hardware", "model", "mesh", "tokens", "method", "paper", "here", "off by", "TMS", "bound")
MAX_ROWS = 80  # rows and marks


def of_run(shown: Sequence[Measurement]) -> Section:
    works: dict[Workload, list[SimulatedAndMeasured]] = {}
    for pair in simulated_and_measured(shown):
        works.setdefault(pair.measured.workload, []).append(pair)
    groups: dict[str, list[Chart]] = {}
    for work, own in works.items():
        groups.setdefault(workload_label(work), []).append(_of_pairs(own))
    if found := [each for each in published_comparisons(shown) if each.published]:
        groups["Training steps, striped over contiguous, compared with Brandon et al. 2023"] = [_of_paper(found)]
    made: list[ChartGroup] = [{"title": title, "charts": charts} for title, charts in groups.items()]
    return section("predicted", "Predictions", TITLE, INTRO, made, ABSENT)


def _of_pairs(found: Sequence[SimulatedAndMeasured]) -> Chart:
    work = found[0].measured.workload
    unit, size = unit_of(max(pair.measured.median_s or 0.0 for pair in found), SECONDS)
    worst = max(found, key=lambda pair: abs(pair.error))
    return chart(
        "scatter",
        TITLE,
        work.passes,
        ["measured", "simulated"],
        f"{len(found)} plans, measured and simulated. The worst: {worst.measured.plan}, {worst.error:+.0%}.",
        chart_table(COLUMNS, map(_cells, found), ("plan", "pass", "speed-up measured", "speed-up simulated")),
        "The plans ran on the devices here and were simulated with the same costs of tiles. The error is simulated "
        "over measured, less one.",
        marks=[_mark(pair, size) for pair in found],
        axes=(f"measured ({unit})", f"simulated ({unit})"),
    )


def _mark(pair: SimulatedAndMeasured, size: float) -> ChartRow:
    """A plan, in units of `size` seconds."""
    m, simulated = pair.measured, pair.simulated
    low, high = (end / size for end in m.ci95_s) if m.ci95_s else (None, None)
    both = f"measured {duration(m.median_s)}, simulated {duration(simulated.median_s)} ({pair.error:+.0%})"
    return {
        "x": (m.median_s or 0.0) / size,
        "y": (simulated.median_s or 0.0) / size,
        "low": low,
        "high": high,
        "tip": tip(f"{m.plan}: {both}"),
    }


def _cells(pair: SimulatedAndMeasured) -> tuple[str, ...]:
    return (
        str(pair.measured.plan),
        pair.measured.workload.passes,
        spread_cell(pair.measured),
        duration(pair.simulated.median_s),
        f"{pair.error:+.0%}",
        speedup_cell(pair.measured),
        speedup_cell(pair.simulated),
        NOTHING if pair.speedup_error is None else f"{pair.speedup_error:+.0%}",
    )


def _of_paper(found: Sequence[Any]) -> Chart:
    every, found = len(found), found[:MAX_ROWS]
    rows = [
        (
            each.hardware,
            each.model,
            each.mesh,
            format_length(each.seq_len),
            each.method,
            times(each.published),
            times(each.ours),
            f"{each.error:+.0%}",
            times(each.tms),
            times(each.bound),
        )
        for each in found
    ]
    worst = max(found, key=lambda each: abs(each.error))
    return chart(
        "scatter",
        PAPER_TITLE,
        STEP,
        [*(each.method for each in found), "published"],
        f"{len(found)} speed-ups that a paper measured, compared with the speed-ups here. Worst: {worst.error:+.0%}.",
        chart_table(PAPER_COLUMNS, rows, ("hardware", "model", "mesh", "tokens", "method"), every, MAX_ROWS),
        marks=[
            {
                "x": each.published,
                "y": each.ours,
                "low": None,
                "high": None,
                "tip": tip(
                    f"{each.model} on {each.hardware}, {each.mesh}, {format_length(each.seq_len)} tokens: "
                    f"published {times(each.published)}, here {times(each.ours)}"
                ),
            }
            for each in found
        ],
        axes=("speed-up the paper measured (times)", "speed-up here (times)"),
    )


def draw(chart: Chart, width: int) -> str:
    """SVG: both axes with one scale, logarithmic for values far apart, and the line of equality."""
    values = [mark[name] for mark in chart["marks"] for name in ("x", "y")]
    ends = [min(values) / 1.2, max(values) * 1.2]
    scale = {"type": "log" if ends[1] > 10 * ends[0] else "linear", "domain": ends, "nice": False}
    across, up = ({"tickCount": 4, "format": ",.3~r", "grid": grid, "labelOverlap": True} for grid in (False, True))
    x, y = (
        channel("x:Q", title=chart["axes"][0], scale=scale, axis=across),
        channel("y:Q", title=chart["axes"][1], scale=scale, axis=up),
    )
    line = plot([{"x": end, "y": end} for end in ends]).encode(x=x, y=y)
    marks = plot(chart["marks"]).encode(x=x, y=y)
    bars = marks.where("isValid(datum.low)").encode(x=channel("low:Q"), x2={"field": "high"})
    layers = [
        line.mark("line", color=INK, strokeDash=[4, 3], strokeWidth=1),
        bars.mark("rule", color=INK, strokeWidth=1.5),
        marks.mark(
            "point", color=COLOURS[0], fill=COLOURS[0], fillOpacity=0.25, shape=SHAPES[2], size=75, strokeWidth=1.5
        ).encode(description=tip_channel()),
    ]
    side = min(width - 60, 260)
    return svg(layered(layers, max(side, width - 120) if width > NARROW else side, side))
