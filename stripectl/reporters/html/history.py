"""The history: the times of the run's own plans over earlier runs, and where their level changes.

One mark per run, solid where it ran on devices, with its interval; one line per level; a dashed rule where a level
begins, with its size; a cross for a run without a time; a tick below where the environment of a run differs from the
one before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar, NamedTuple

from stripectl.analysis.metrics import METRICS
from stripectl.analysis.ranking import strength
from stripectl.analysis.series import Series, SeriesPoint, series_of
from stripectl.reporters import history_text
from stripectl.reporters.html.charts import MAX_GROUPS, Chart, Section, chart_table, grouped_by, section
from stripectl.reporters.html.vega_lite import draw_file
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
NEW_ALONE = "{} of this run's plans are new in the history, or on this machine."


class RunMark(NamedTuple):
    """A run with its value and interval, counted from 1; `new`: its environment differs from the run before."""

    at: int
    value: float | None
    low: float | None
    high: float | None
    new: bool


class LevelLine(NamedTuple):
    """The median of the runs between `at` and `to`."""

    at: float
    to: float
    value: float


class LevelRule(NamedTuple):
    """The place where a level begins, with its size in words."""

    at: float
    words: str


@dataclass(frozen=True)
class Trend:
    """Runs on two axes with these titles. `span` is the smallest range of the vertical axis, and `ran` says whether the
    times were measured."""

    marks: Sequence[RunMark]
    levels: Sequence[LevelLine]
    rules: Sequence[LevelRule]
    across: str
    up: str
    span: tuple[float, float]
    ran: bool
    kind: ClassVar = "trend"

    def draw(self, width: int) -> str:
        ends = [*self.span, *(end for mark in self.marks for end in (mark.low, mark.high) if end is not None)]
        return draw_file(
            "trend",
            {"marks": self.marks, "levels": self.levels, "rules": self.rules},
            {"width": width - 60},
            across=self.across,
            up=self.up,
            runs=len(self.marks),
            ends=[max(min(ends), 0.0), max(ends)],
            fill="var(--c1)" if self.ran else None,
        )


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
    return Chart(
        TITLE,
        f"{history_text.series_plan(series)} {m.workload.passes}",
        [m.method],
        f"Times of {history_text.series_plan(series)} in {len(series.points)} runs, "
        f"from {history_text.run_date(first.run)} to {history_text.run_date(last.run)}. "
        f"The newest: {history_text.point_value(last, series)}. {_answer(series, told)}",
        chart_table(history_text.POINT_COLUMNS, reversed(history_text.series_rows(series)), NO_NUMBERS),
        Trend(
            [_mark(at, point, series, size) for at, point in enumerate(series.points, 1)],
            [LevelLine(begin + 0.6, end + 0.4, median(values) / size) for begin, end, values in series.levels],
            [LevelRule(change.at + 0.5, _sign(change.ratio)) for change in series.changes],
            f"runs, {history_text.run_date(first.run)} to {history_text.run_date(last.run)}",
            f"time ({unit})",
            (low / size, high / size),
            m.method == "measured",
        ),
        _answer(series, told),
        group=history_text.series_title(series),
        seq_len=m.workload.seq_len,
    )


def _answer(series: Series, told: Sequence[str]) -> str:
    if told:
        return "; ".join(told) + "."
    runs = len(series.values)
    return f"No change in {runs} runs." if series.enough else f"{runs} runs are too few for a change to be sure."


def _sign(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:+.1%}"


def _mark(at: int, point: SeriesPoint, series: Series, size: float) -> RunMark:
    ends = series.metric.ci95(point.measurement) if point.value is not None else None
    low, high = (end / size for end in ends) if ends else (None, None)
    value = None if point.value is None else point.value / size
    return RunMark(at, value, low, high, bool(point.marks))
