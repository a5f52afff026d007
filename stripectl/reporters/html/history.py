"""The history: the times of the run's own plans over earlier runs, and where their level changes.

One mark per run, solid where it ran on devices, with its interval; one line per level; a dashed rule where a level
begins, with its size; a cross for a run without a time; a tick below where the environment of a run differs from the
one before.
"""

from collections.abc import Sequence
from statistics import median

from stripectl.analysis.metrics import METRICS
from stripectl.analysis.ranking import strength
from stripectl.analysis.series import Series, SeriesPoint, series_of
from stripectl.reporters import history_text
from stripectl.reporters.html.charts import (
    COLOURS,
    INK,
    MAX_GROUPS,
    Chart,
    ChartRow,
    Section,
    channel,
    chart,
    chart_table,
    grouped_by,
    layered,
    plot,
    section,
    svg,
)
from stripectl.results.run import Run
from stripectl.util.units import NOTHING, SECONDS, unit_of

TITLE = "How has it changed?"
INTRO = (
    "The times of this run's plans in the runs of its history, from the oldest to this run, with their levels. A "
    "dashed rule is a change: for measured times a significant one (a rank test distinguishes the runs before and "
    "after it, and they differ by 2 % or more), otherwise any difference. A tick below marks a run with new "
    "versions, flags or another system; the table has the details. Other metrics: stripectl history DIR --metric "
    "peak."
)
ABSENT = "This needs a history of runs. Try: stripectl bench --history DIR, then stripectl report RUN --history DIR."
NO_OTHER_RUN = "The history has no other run of these plans and workloads on this machine."
NO_NUMBERS = {*history_text.POINT_COLUMNS} - {"value", "over before"}
MAX_CHARTS = 6  # charts per workload
CHART_PIXELS = 200  # height
NEW_ALONE = "{} of this run's plans are new in the history, or on this machine."


def of_run(past: Sequence[Run] | None) -> Section:
    """The history section for the last of these runs; None means no history. Plans that changed come first, then those
    of the strongest method."""
    every = series_of(past or (), METRICS["time"])
    own = [series for series in every if past and series.newest.run is past[-1]]
    drawn = [series for series in own if len(series.points) > 1]
    drawn.sort(key=lambda series: (not series.changes, strength(series.newest.measurement.method)))
    groups = grouped_by(map(_chart, drawn))
    if groups and (new := len(own) - len(drawn)):
        groups[-1]["notes"] = [NEW_ALONE.format(new)]
    absent = ABSENT if past is None else NO_OTHER_RUN
    return section("history", "History", TITLE, INTRO, groups, absent, (MAX_GROUPS, MAX_CHARTS))


def _chart(series: Series) -> Chart:
    m, (low, high) = series.newest.measurement, series.span
    unit, size = unit_of(max(series.values), SECONDS)
    told = [history_text.change_since(change, series) for change in series.changes]
    first, last = series.points[0], series.newest
    return chart(
        "trend",
        TITLE,
        f"{history_text.series_plan(series)} {m.workload.passes}",
        [m.method],
        f"Times of {history_text.series_plan(series)} in {len(series.points)} runs, "
        f"from {history_text.run_date(first.run)} to {history_text.run_date(last.run)}. "
        f"The newest: {history_text.point_value(last, series)}. {_answer(series, told)}",
        chart_table(history_text.POINT_COLUMNS, reversed(history_text.series_rows(series)), NO_NUMBERS),
        _answer(series, told),
        group=history_text.series_title(series),
        seq_len=m.workload.seq_len,
        marks=[_mark(at, point, series, size) for at, point in enumerate(series.points, 1)],
        levels=[
            {"at": first + 0.6, "to": end + 0.4, "value": median(values) / size} for first, end, values in series.levels
        ],
        rules=[{"at": change.at + 0.5, "words": _sign(change.ratio)} for change in series.changes],
        axes=(f"runs, {history_text.run_date(first.run)} to {history_text.run_date(last.run)}", f"time ({unit})"),
        span=(low / size, high / size),
        ran=m.method == "measured",
    )


def _answer(series: Series, told: Sequence[str]) -> str:
    if told:
        return "; ".join(told) + "."
    runs = len(series.values)
    return f"No change in {runs} runs." if series.enough else f"{runs} runs are too few for a change to be sure."


def _sign(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:+.1%}"


def _mark(at: int, point: SeriesPoint, series: Series, size: float) -> ChartRow:
    ends = series.metric.ci95(point.measurement) if point.value is not None else None
    low, high = (end / size for end in ends) if ends else (None, None)
    value = None if point.value is None else point.value / size
    return {"at": at, "value": value, "low": low, "high": high, "new": bool(point.marks)}


def draw(chart: Chart, width: int) -> str:
    """SVG. `marks` are {at, value, low, high, new}, with runs numbered from 1; `levels` {at, to, value}; `rules` {at,
    words} where a level begins; `span` is the smallest range of the axis, and `ran` says whether the times were
    measured."""
    ends = [*chart["span"], *(mark[end] for mark in chart["marks"] for end in ("low", "high") if mark[end] is not None)]
    count = len(chart["marks"])
    x = channel(
        "at:Q",
        title=chart["axes"][0],
        scale={"domain": [0.5, count + 0.5], "nice": False},
        axis={"tickMinStep": 1, "tickCount": min(count, 6), "format": "d", "grid": False},
    )
    y = channel(
        "value:Q",
        title=chart["axes"][1],
        scale={"domain": [max(min(ends), 0.0), max(ends)], "nice": True, "zero": False},
        axis={"tickCount": 5, "labelFlush": False},
    )
    marks, levels, rules = (plot(list(chart[name])).encode(x=x) for name in ("marks", "levels", "rules"))
    timed = marks.where("isValid(datum.value)").encode(y=y)
    look = {"color": COLOURS[0], "opacity": 1} | ({"fill": COLOURS[0]} if chart["ran"] else {})
    intervals = timed.where("isValid(datum.low)").encode(y=channel("low:Q"), y2={"field": "high"})
    text = {"align": "left", "baseline": "top", "dx": 3, "fontSize": 11, "color": INK}
    layers = [
        levels.mark("rule", color=INK, strokeWidth=1.5, opacity=0.6).encode(x2={"field": "to"}, y=y),
        rules.mark("rule", color=COLOURS[1], strokeWidth=1.5, strokeDash=[5, 3]),
        rules.mark("text", y=1, **text).encode(text=channel("words:N")),
        intervals.mark("rule", strokeWidth=1, color=COLOURS[0]),
        timed.mark("point", size=max(12, 45 - count // 4), strokeWidth=1.3, **look),
        marks.where("!isValid(datum.value)").mark("text", text="✕", y=CHART_PIXELS - 18, fontSize=11, color=INK),
        marks.where("datum.new").mark("tick", y=CHART_PIXELS - 4, orient="vertical", color=INK, size=8, thickness=1.5),
    ]
    return svg(layered(layers, width - 60, CHART_PIXELS))
