"""Series: a metric of one plan, workload, target, flags and method over runs, in order of time.

Times of two machines are two series. Other differences between two runs (versions, flags, system) are named at the
later run, because they may explain a change of level.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from stripectl.analysis.metrics import Metric, is_timed_here
from stripectl.results.measurement import Measurement, readable
from stripectl.results.run import Run
from stripectl.statistics.change_points import MIN_RUNS, LevelChange, level_changes, relative
from stripectl.util.json import JsonObject, is_list, is_mapping

MAX_NAMED_MARKS = 3  # differences that are named
MIN_SPAN = 0.1


@dataclass(frozen=True)
class SeriesPoint:
    """A run's value in a series; None where it has none. `change` is relative to the level before, and `marks` name
    differences from the point before."""

    run: Run
    measurement: Measurement
    value: float | None
    change: float | None
    marks: Sequence[str]


class Level(NamedTuple):
    """Points from `first` up to `end`, and the values of the points that have one."""

    first: int
    end: int
    values: Sequence[float]


@dataclass(frozen=True)
class Series:
    """`changes` are at indices of `points`; in an `exact` series every difference is a change."""

    metric: Metric
    place: str
    exact: bool
    points: Sequence[SeriesPoint]
    changes: Sequence[LevelChange]

    @property
    def newest(self) -> SeriesPoint:
        return self.points[-1]

    @property
    def values(self) -> list[float]:
        """The values of the points that have one."""
        return [value for level in self.levels for value in level.values]

    @property
    def levels(self) -> list[Level]:
        """The levels between changes."""
        ends = pairwise([0, *(change.at for change in self.changes), len(self.points)])
        parts = ((first, end, [point.value for point in self.points[first:end]]) for first, end in ends)
        return [Level(first, end, [each for each in values if each is not None]) for first, end, values in parts]

    @property
    def enough(self) -> bool:
        """Whether there are enough runs to confirm a change."""
        return self.exact or len(self.values) >= MIN_RUNS

    @property
    def span(self) -> tuple[float, float]:
        """The lowest and the highest value that a drawing shows: noise within MIN_SPAN of the middle looks small."""
        low, high, middle = min(self.values), max(self.values), median(self.values)
        more = max(MIN_SPAN * abs(middle) - (high - low), 0.0) / 2
        return low - more, high + more

    def to_json(self) -> JsonObject:
        m, metric = self.newest.measurement, self.metric
        return {
            **{"plan": str(m.plan), "target": str(m.target), "method": m.method, "flags": m.flags},
            "workload": m.workload.to_json(),
            "place": self.place,
            "exact": self.exact,
            "enough": self.enough,
            "points": [
                {
                    **{name: getattr(point.run, name) for name in ("id", "created")},
                    "git": point.run.environment.get("git"),
                    "status": point.measurement.status,
                    "reason": str(why) if (why := point.measurement.reason) else None,
                    "value": point.value,
                    "ci95": metric.ci95(point.measurement) if point.value is not None else None,
                    "change": point.change,
                    "differs": list(point.marks),
                }
                for point in self.points
            ],
            "changes": [
                {
                    **asdict(change),
                    "run": self.points[change.at].run.id,
                    "ratio": change.ratio,
                    "better": (change.after > change.before) == (metric.better > 0),
                }
                for change in self.changes
            ],
        }


def series_of(runs: Sequence[Run], metric: Metric) -> list[Series]:
    """From runs in order of time, every series of the metric that has a value; series of the newest run come first, in
    its order."""
    found: dict[Any, list[tuple[Run, Measurement]]] = {}
    for run in reversed(runs):
        for m in map(readable, run.measurements):
            if not m.is_search_probe:
                found.setdefault((m.key, series_key(run, m, metric)), []).append((run, m))
    every = (_series(metric, where, members[::-1]) for (_, where), members in found.items())
    return [series for series in every if series.values]


def _series(metric: Metric, where: str, members: Sequence[tuple[Run, Measurement]]) -> Series:
    values = [metric.of(m) if m.status == "ok" else None for _, m in members]
    at = [i for i, value in enumerate(values) if value is not None]
    known = [value for value in values if value is not None]
    exact = all(metric.is_exact(m) for _, m in members)
    steps = {change.at: change for change in level_changes(known, exact)}
    over, begin = dict[int, float](), 0
    for i, value in enumerate(known):
        begin = i if i in steps else begin
        before = steps[i].before if i in steps else median(known[begin:i]) if i > begin else None
        if before is not None and (share := relative(before, value)) is not None:
            over[at[i]] = share
    around = [surroundings(run) for run, _ in members]
    points = [
        SeriesPoint(run, m, values[i], over.get(i), surrounding_changes(around[i - 1], around[i]) if i else ())
        for i, (run, m) in enumerate(members)
    ]
    return Series(metric, where, exact, points, [replace(each, at=at[each.at]) for each in steps.values()])


def series_key(run: Run, m: Measurement, metric: Metric) -> str:
    """The parts of a value's key in addition to its measurement's: the machine, where it matters, and the baseline."""
    return "; ".join(filter(None, (machine_key(run) if is_timed_here(m) else "", metric.over(m))))


def machine_key(run: Run) -> str:
    """The machine's accelerators, or the processor where it has none."""
    devices = [each for each in _list(run.environment.get("devices")) if is_mapping(each)]
    kinds = sorted({str(each.get("kind")) for each in devices if each.get("platform") != "cpu"})
    host = _mapping(run.environment.get("host"))
    return ", ".join(kinds) or f"{host.get('processor', 'an unknown processor')}, {host.get('cores', '?')} cores"


def surroundings(run: Run) -> dict[str, str]:
    """Other properties that may matter, by name."""
    said = run.environment
    system = _mapping(said.get("host")).get("system")
    known = {**_mapping(said.get("versions")), **_mapping(said.get("flags"))}
    return {str(name): str(value) for name, value in known.items()} | ({"system": str(system)} if system else {})


def surrounding_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The differences between two such mappings, in words."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    said = [f"{name} {before.get(name, 'none')} -> {after.get(name, 'none')}" for name in names[:MAX_NAMED_MARKS]]
    return said + [f"and {len(names) - MAX_NAMED_MARKS} more"] * (len(names) > MAX_NAMED_MARKS)


def _mapping(value: object) -> Mapping[str, object]:
    return value if is_mapping(value) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if is_list(value) else ()
