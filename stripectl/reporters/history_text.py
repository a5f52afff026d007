"""The texts about a series, for the terminal and the report. Text from runs is made harmless here."""

import re
from datetime import UTC

from stripectl.analysis.series import Series, SeriesPoint
from stripectl.errors import BadInput
from stripectl.results.history import moment
from stripectl.results.labels import plan_label, workload_label
from stripectl.results.run import Run
from stripectl.statistics.change_points import MIN_RUNS, LevelChange
from stripectl.util.files import printable
from stripectl.util.units import NOTHING, with_interval

MAX_COMMIT_DIGITS = 7  # digits of a commit
POINT_COLUMNS: tuple[str, ...] = ("date", "commit", "value", "over before", "what is new", "run")
DATE_FORMAT = "%Y-%m-%d %H:%M"
MAX_LABEL_CHARACTERS = 24  # characters of any other name of a commit or a run


def series_title(series: Series) -> str:
    """The title of a series, without its plan."""
    m = series.newest.measurement
    return printable(f"{workload_label(m.workload)} on {m.target}")


def series_plan(series: Series) -> str:
    return printable(plan_label(series.newest.measurement))


def commit_label(run: Run) -> str:
    """A commit in short."""
    found = run.environment.get("git")
    text = printable(found) if isinstance(found, str) else NOTHING
    return re.sub(rf"\b([0-9a-f]{{{MAX_COMMIT_DIGITS}}})[0-9a-f]+\b", r"\1", text)[:MAX_LABEL_CHARACTERS]


def commit_or_run(run: Run) -> str:
    """The commit of a run, or its name where it has no commit."""
    return run_name(run) if commit_label(run) == NOTHING else commit_label(run)


def run_name(run: Run) -> str:
    return printable(run.id)[:MAX_LABEL_CHARACTERS]


def run_date(run: Run, form: str = "%Y-%m-%d") -> str:
    return f"{moment(run):{form}}"


def run_minute(run: Run) -> str:
    """When a run was made, to the minute; as its file says where that is not a date."""
    try:
        return f"{moment(run).astimezone(UTC):{DATE_FORMAT}} UTC"
    except (BadInput, OverflowError):
        return run.created


def point_value(point: SeriesPoint, series: Series) -> str:
    """A value with its interval; for a run without a value, the reason."""
    m = point.measurement
    if point.value is None:
        return NOTHING if m.status == "ok" else m.status
    return with_interval(point.value, series.metric.ci95(m), series.metric.shown)


def over_before(point: SeriesPoint) -> str:
    """The change over the level before."""
    return NOTHING if point.change is None else f"{point.change:+.1%}"


def change_size(change: LevelChange, series: Series) -> str:
    """The size of a change in words."""
    metric = series.metric
    word = metric.more if change.after > change.before else metric.less
    if change.ratio is None:
        return f"{word}, {metric.shown(change.after)} in place of {metric.shown(change.before)}"
    return f"{abs(change.ratio):.1%} {word}"


def change_since(change: LevelChange, series: Series) -> str:
    """Where a change is, how large, and what else is new: `since abc1234 (2026-11-20): 7.1% slower [+5.9%, +8.2%]`."""
    point = series.points[change.at]
    text = f"since {commit_or_run(point.run)} ({run_date(point.run)}): {change_size(change, series)}"
    if change.interval:
        text += f" [{change.interval[0]:+.1%}, {change.interval[1]:+.1%}]"
    return text + f", with {around_it(point)}" * bool(point.marks)


def point_news(point: SeriesPoint, series: Series) -> str:
    """What is new at a run: its level, and differences in its environment."""
    sizes = [change_size(change, series) for change in series.changes if series.points[change.at] is point]
    return "; ".join(filter(None, (*sizes, around_it(point))))


def around_it(point: SeriesPoint) -> str:
    return ", ".join(map(printable, point.marks))


def series_rows(series: Series) -> list[tuple[str, ...]]:
    """The cells of every run, by POINT_COLUMNS."""
    return [
        (
            *(run_date(point.run, DATE_FORMAT), commit_label(point.run), point_value(point, series)),
            *(over_before(point), point_news(point, series), run_name(point.run)),
        )
        for point in series.points
    ]


def last_change(series: Series) -> str:
    """The last change in short: none, or n/a where the series has too few runs."""
    if series.changes:
        change = series.changes[-1]
        return f"{change_size(change, series)} since {commit_or_run(series.points[change.at].run)}"
    return "none" if series.enough else f"{NOTHING}, {len(series.values)} of {MIN_RUNS} runs"
