"""What is said of a series: the same on a terminal and in a report. Text of runs is made harmless here."""

import re

from stripectl.analysis.series import Point, Series
from stripectl.results.history import moment
from stripectl.results.labels import describe, plan_cell
from stripectl.results.run import Run
from stripectl.statistics.change_points import ENOUGH, Change
from stripectl.util.files import printable
from stripectl.util.units import NOTHING, interval

SHORT = 7  # digits of a commit
ROWS: tuple[str, ...] = ("date", "commit", "value", "over before", "what is new", "run")
MINUTES = "%Y-%m-%d %H:%M"
MOST = 24  # characters of whatever else a commit or a run is called


def title(series: Series) -> str:
    """What it is a series of, without its plan."""
    m = series.newest.measurement
    return printable(f"{describe(m.workload)} on {m.target}")


def plan(series: Series) -> str:
    return printable(plan_cell(series.newest.measurement))


def commit(run: Run) -> str:
    """In brief."""
    found = run.environment.get("git")
    text = printable(found) if isinstance(found, str) else NOTHING
    return re.sub(rf"\b([0-9a-f]{{{SHORT}}})[0-9a-f]+\b", r"\1", text)[:MOST]


def which(run: Run) -> str:
    """The commit of a run, or where it has none its name."""
    return name(run) if commit(run) == NOTHING else commit(run)


def name(run: Run) -> str:
    return printable(run.id)[:MOST]


def date(run: Run, form: str = "%Y-%m-%d") -> str:
    return f"{moment(run):{form}}"


def value(point: Point, series: Series) -> str:
    """With its interval; of what has none, what came of it."""
    m = point.measurement
    if point.value is None:
        return NOTHING if m.status == "ok" else m.status
    return interval(point.value, series.metric.interval(m), series.metric.written)


def over_before(point: Point) -> str:
    """The change over the level before."""
    return NOTHING if point.change is None else f"{point.change:+.1%}"


def size(change: Change, series: Series) -> str:
    """How much more or less it is."""
    metric = series.metric
    word = metric.more if change.after > change.before else metric.less
    if change.ratio is None:
        return f"{word}, {metric.written(change.after)} in place of {metric.written(change.before)}"
    return f"{abs(change.ratio):.1%} {word}"


def since(change: Change, series: Series) -> str:
    """Where a change is, how large, and what else is new: `since abc1234 (2026-11-20): 7.1% slower [+5.9%, +8.2%]`."""
    point = series.points[change.at]
    text = f"since {which(point.run)} ({date(point.run)}): {size(change, series)}"
    if change.interval:
        text += f" [{change.interval[0]:+.1%}, {change.interval[1]:+.1%}]"
    return text + f", with {around_it(point)}" * bool(point.marks)


def news(point: Point, series: Series) -> str:
    """What is new at a run: a level, and what is not as it was around it."""
    sizes = [size(change, series) for change in series.changes if series.points[change.at] is point]
    return "; ".join(filter(None, (*sizes, around_it(point))))


def around_it(point: Point) -> str:
    return ", ".join(map(printable, point.marks))


def rows(series: Series) -> list[tuple[str, ...]]:
    """The cells of every run, by ROWS."""
    return [
        (
            *(date(point.run, MINUTES), commit(point.run), value(point, series)),
            *(over_before(point), news(point, series), name(point.run)),
        )
        for point in series.points
    ]


def last_change(series: Series) -> str:
    """The last change in brief, or that there is none."""
    if series.changes:
        change = series.changes[-1]
        return f"{size(change, series)} since {which(series.points[change.at].run)}"
    return "none" if series.enough else f"{NOTHING}, {len(series.values)} of {ENOUGH} runs"
