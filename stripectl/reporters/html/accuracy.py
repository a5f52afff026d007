"""The accuracy of predictions: simulations compared with measurements in this run, and this run's results compared with
a paper's measurements."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from stripectl.analysis.ranking import SimulatedAndMeasured, simulated_and_measured
from stripectl.analysis.striped_attention_paper import PublishedComparison, published_comparisons
from stripectl.core.lengths import format_length
from stripectl.core.workload import STEP, Workload
from stripectl.reporters.cells import speedup_cell, spread_cell
from stripectl.reporters.html.charts import NARROW, Chart, ChartGroup, Section, chart_table, section
from stripectl.reporters.html.vega_lite import filled, svg, tip
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


class ScatterMark(NamedTuple):
    """A value at x, with an interval, and another value for the same at y."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    tip: str = ""


@dataclass(frozen=True)
class Scatter:
    """Marks on two axes with these titles and one scale, logarithmic for values far apart, and the line of equality."""

    marks: Sequence[ScatterMark]
    across: str
    up: str
    kind: ClassVar = "scatter"

    def draw(self, width: int) -> str:
        values = [value for mark in self.marks for value in (mark.x, mark.y)]
        ends = min(values) / 1.2, max(values) * 1.2
        data = {"marks": self.marks, "equality": [ScatterMark(end, end) for end in ends]}
        form = filled("scatter", data, across=self.across, up=self.up, ends=ends)
        for each in ("x", "y"):  # no parameter sets a type
            form["encoding"][each]["scale"]["type"] = "log" if ends[1] > 10 * ends[0] else "linear"
        side = min(width - 60, 260)
        return svg({**form, "width": max(side, width - 120) if width > NARROW else side, "height": side})


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
    return Chart(
        TITLE,
        work.passes,
        ["measured", "simulated"],
        f"{len(found)} plans, measured and simulated. The worst: {worst.measured.plan}, {worst.error:+.0%}.",
        chart_table(COLUMNS, map(_cells, found), ("plan", "pass", "speed-up measured", "speed-up simulated")),
        Scatter([_mark(pair, size) for pair in found], f"measured ({unit})", f"simulated ({unit})"),
        "The plans ran on the devices here and were simulated with the same costs of tiles. The error is simulated "
        "over measured, less one.",
    )


def _mark(pair: SimulatedAndMeasured, size: float) -> ScatterMark:
    """A plan, in units of `size` seconds."""
    m, simulated = pair.measured, pair.simulated
    low, high = (end / size for end in m.ci95_s) if m.ci95_s else (None, None)
    both = f"measured {duration(m.median_s)}, simulated {duration(simulated.median_s)} ({pair.error:+.0%})"
    x, y = (m.median_s or 0.0) / size, (simulated.median_s or 0.0) / size
    return ScatterMark(x, y, low, high, tip(f"{m.plan}: {both}"))


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


def _of_paper(found: Sequence[PublishedComparison]) -> Chart:
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
    worst = max(found, key=lambda each: abs(each.error or 0.0))
    return Chart(
        PAPER_TITLE,
        STEP,
        [*(each.method for each in found), "published"],
        f"{len(found)} speed-ups that a paper measured, compared with the speed-ups here. Worst: {worst.error:+.0%}.",
        chart_table(PAPER_COLUMNS, rows, ("hardware", "model", "mesh", "tokens", "method"), every, MAX_ROWS),
        Scatter(list(map(_published_mark, found)), "speed-up the paper measured (times)", "speed-up here (times)"),
    )


def _published_mark(found: PublishedComparison) -> ScatterMark:
    where = f"{found.model} on {found.hardware}, {found.mesh}, {format_length(found.seq_len)} tokens"
    said = f"{where}: published {times(found.published)}, here {times(found.ours)}"
    return ScatterMark(found.published or 0.0, found.ours, tip=tip(said))
