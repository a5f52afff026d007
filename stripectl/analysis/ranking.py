"""Which plan is fastest, and whether this is certain.

Plans are ranked by workload and target, by the strongest method that timed them, because measured and simulated times
are not comparable.
"""

import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from stripectl.analysis.plausibility import why_implausible
from stripectl.core.kernel import kernels
from stripectl.core.method import METHODS
from stripectl.core.plan import Plan
from stripectl.core.workload import PASSES, STEP, Workload
from stripectl.hardware.target import TargetName
from stripectl.results.case import flags_text
from stripectl.results.cost_source import CostOrigin
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import indexed
from stripectl.statistics.intervals import ratio_interval

MIN_MARGIN = 0.01  # between plans that did not run: predictions cannot distinguish closer plans


class SimulatedAndMeasured(NamedTuple):
    """A plan that was measured and simulated, and the error of the simulated time and of the simulated speed-up."""

    measured: Measurement
    simulated: Measurement
    error: float
    speedup_error: float | None


@dataclass(frozen=True)
class Ranking:
    """The plans of a workload on a target: `rivals` were timed by the strongest method, the fastest first; `members`
    are all plans, with any result; `pairs` show the error of simulations of the same pass. `alike` are the plans that
    differ from the best only in their tiles, and that the method does not distinguish from it; `broken` holds
    implausible plans with the bound that they break."""

    members: Sequence[Measurement]
    rivals: Sequence[Measurement]
    pairs: Sequence[SimulatedAndMeasured]
    alike: Sequence[Measurement] = ()
    broken: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def best(self) -> Measurement:
        return self.rivals[0]

    @property
    def runner_up(self) -> Measurement | None:
        others = (m for m in self.rivals[1:] if not any(m is other for other in self.alike))
        return next(others, None)

    @property
    def workload(self) -> Workload:
        return self.best.workload

    def too_close(self, fast: Measurement, slow: Measurement) -> bool:
        """Whether the slower may be as fast: the interval of the ratio contains 1, or the simulation's error is
        larger."""
        if interval := ratio_interval(slow.samples_s, fast.samples_s):
            return interval[0] <= 1
        known = speedup_error(self.pairs) if fast.method == "simulated" else None
        least = 0.0 if fast.method == "measured" else max(MIN_MARGIN, known or 0.0)
        return margin_of(fast, slow) <= least


def has_time(m: Measurement) -> bool:
    return m.status == "ok" and bool(m.median_s) and not m.is_search_probe


def contenders(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Select the plans with a time, except plans that a stronger method refuses, as a compiler does for plans that do
    not fit in memory: it is asked about one layout, and its answer counts for plans that differ only in this."""
    measurements, refused = list(measurements), dict[tuple[str, ...], int]()
    for m in measurements:
        if m.status == "refused":
            refused[m.identity] = min(strength(m.method), refused.get(m.identity, len(METHODS)))
    timed = [(m, _but_for_layout(m)) for m in measurements if has_time(m)]
    overruled = {key for m, key in timed if strength(m.method) > refused.get(m.identity, len(METHODS))}
    return [m for m, key in timed if key not in overruled]


def _but_for_layout(m: Measurement) -> Hashable:
    return m.workload, m.target, m.method, flags_text(m.flags), _alike(m.plan, m.workload.passes == STEP)


@functools.lru_cache(2**14)
def _alike(plan: Plan, step: bool) -> Plan:
    return replace(plan, scheme=plan.sequence_scheme, layout="", chunk=plan.chunk_or_default if step else None)


def margin_of(fast: Measurement, slow: Measurement) -> float:
    """How much longer the slower plan takes."""
    assert fast.median_s and slow.median_s
    return slow.median_s / fast.median_s - 1


def rankings(measurements: Sequence[Measurement]) -> list[Ranking]:
    """One ranking for every workload and target that has a time, in the order of the run. One device is ranked only
    where no plan of several devices has a time on such hardware."""
    run, errors = indexed(measurements), dict[str, list[SimulatedAndMeasured]]()
    told = [(m, why_implausible(m, run)) for m in contenders(measurements)]
    timed, broken = [m for m, why in told if not why], {m.key: why for m, why in told if why}
    for pair in simulated_and_measured(measurements):
        errors.setdefault(pair.measured.workload.passes, []).append(pair)
    members: dict[tuple[Workload, TargetName], list[Measurement]] = {}
    for m in measurements:
        members.setdefault((m.workload, m.target), []).append(m)
    wide = {(m.workload, m.target.hardware) for m in timed if m.devices > 1}
    groups: dict[tuple[Workload, TargetName], list[Measurement]] = {}
    for m in timed:
        if m.devices > 1 or (m.workload, m.target.hardware) not in wide:
            groups.setdefault((m.workload, m.target), []).append(m)
    return [
        replace(
            _ranking(group, members[key], errors.get(key[0].passes, [])),
            broken={str(m.plan): broken[m.key] for m in members[key] if m.key in broken},
        )
        for key, group in groups.items()
    ]


def fastest_measurements(measurements: Sequence[Measurement], most: int) -> list[Measurement]:
    """For every workload and target the `most` fastest plans and their baselines, in the order of the run.
    `measurements` have their speed-ups."""
    best = [m for each in rankings(measurements) for m in each.rivals[:most]]
    over = {(m.workload, m.method, m.speedup.over) for m in best if m.speedup}
    chosen = {m.key for m in best}
    return [
        m
        for m in measurements
        if m.key in chosen or (m.status == "ok" and (m.devices == 1 or (m.workload, m.method, m.plan) in over))
    ]


def by_strongest_method(ranked: Sequence[Ranking]) -> Ranking:
    """The ranking of the strongest pass and, within it, of the longest sequence."""
    return min(ranked, key=lambda each: (-PASSES.index(each.workload.passes), -each.workload.seq_len))


def _ranking(
    candidates: Sequence[Measurement], members: Sequence[Measurement], errors: Sequence[SimulatedAndMeasured]
) -> Ranking:
    method = min((m.method for m in candidates), key=strength)
    rivals = sorted((m for m in candidates if m.method == method), key=lambda m: m.median_s or 0.0)
    if method == "measured":
        return Ranking(members, rivals, errors)
    near = [m for m in rivals if margin_of(rivals[0], m) <= MIN_MARGIN]
    alike = [m for m in near if _but_for_tiles(m) == _but_for_tiles(rivals[0])]
    best = min(alike, key=_from_default)  # in a tie the first, which is the fastest
    others = [m for m in rivals if m is not best]
    return Ranking(members, [best, *others], errors, [m for m in alike if m is not best])


def _but_for_tiles(m: Measurement) -> Hashable:
    return flags_text(m.flags), replace(m.plan, tile=None, backward=None)


def _from_default(m: Measurement) -> float:
    """The distance of a plan's tiles from its kernel's default, where costs come from a datasheet or from chunks of
    one size; otherwise 0, because the default is the fastest tile."""
    plan = m.plan
    if not (m.cost_source and m.cost_source.source in (CostOrigin.DATASHEET, CostOrigin.MEASURED_STAGES)):
        return 0.0
    default = kernels[plan.kernel].default_tile(m.target.kind)
    return sum(tile.distance(default) for tile in plan.tiles.values())


def strength(method: str) -> int:
    """0 for the strongest method."""
    return METHODS.index(method) if method in METHODS else len(METHODS)


def simulated_and_measured(measurements: Sequence[Measurement]) -> list[SimulatedAndMeasured]:
    """Every plan that was measured and simulated."""
    found, measurements = list[SimulatedAndMeasured](), indexed(measurements)
    for m in measurements:
        other, error = measurements.simulation_of(m), measurements.simulation_error(m)
        if other is not None and error is not None:
            ran, clocked = (each.speedup.value if each.speedup else None for each in (m, other))
            found.append(SimulatedAndMeasured(m, other, error, clocked / ran - 1 if ran and clocked else None))
    return found


def speedup_error(errors: Iterable[SimulatedAndMeasured]) -> float | None:
    """The largest error of a simulated speed-up, where one is known."""
    return max((abs(each.speedup_error) for each in errors if each.speedup_error is not None), default=None)


def short_names(measurements: Iterable[Measurement]) -> dict[str, str]:
    """The shortest name that distinguishes each plan from the others: layout, scheme/layout, or the whole plan."""
    plans = {str(m.plan): m.plan for m in measurements if has_time(m)}
    several = {text: plan for text, plan in plans.items() if plan.devices > 1}
    layouts = {text: plan.layout for text, plan in several.items()}
    schemes = {text: f"{plan.scheme}/{plan.layout}" for text, plan in several.items()}
    for found in (layouts, schemes):
        if len(set(found.values())) == len(found):
            break
    else:
        found = {text: text for text in several}
    return {text: text for text in plans} | found
