"""The sequence length at which another plan becomes faster.

From the length at which a plan was chosen, towards shorter and towards longer lengths, this is the first length at
which the plan is clearly slower. Times come from the lengths of the run, or, where it has only one, from the scaling of
its plans. Between two lengths the logarithm of the ratio of times is assumed to be linear in the logarithm of the
length.
"""

import heapq
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from stripectl.analysis.ranking import MIN_MARGIN, Ranking
from stripectl.core.method import Method
from stripectl.results.case import flags_text
from stripectl.results.measurement import Measurement
from stripectl.results.recommendation import ComparedLengths, PlanChange


@dataclass(frozen=True)
class LengthPoint:
    """The times of plans at one length, by name; `ranking` is the run's ranking where the run has this length."""

    seq_len: int
    seconds: Mapping[str, float]
    plans: Mapping[str, str]  # printed, by name
    method: Method
    ranking: Ranking | None = None

    @cached_property
    def leaders(self) -> list[str]:
        """The two fastest."""
        return heapq.nsmallest(2, self.seconds, key=lambda name: self.seconds[name])

    @cached_property
    def known(self) -> dict[str, Measurement]:
        """The run's measurements, by plan."""
        return {each.printed_plan: each for each in self.ranking.rivals} if self.ranking else {}

    def rival(self, name: str) -> str | None:
        """The fastest other plan where it is clearly faster than this one."""
        fastest = next((other for other in self.leaders if other != name), None)
        if name not in self.seconds or fastest is None:
            return None
        if self.ranking is None:
            return fastest if self.seconds[name] > self.seconds[fastest] * (1 + MIN_MARGIN) else None
        fast, slow = self.known[self.plans[fastest]], self.known[self.plans[name]]
        beaten = self.seconds[name] > self.seconds[fastest] and not self.ranking.too_close(fast, slow)
        return fastest if beaten else None


Curves = tuple[list[LengthPoint], Callable[[Measurement], str]]


def curves(ranking: Ranking, others: Sequence[Ranking]) -> Curves:
    """(the times of plans at each length, the shortest first; the name of a plan in them)."""
    alike = [other for other in others if without_length(other) == without_length(ranking)]
    if len(alike) > 1:
        return _of_run(alike), _named(alike)
    return _of_scaling(ranking), lambda m: m.printed_plan


def crossover(
    ranking: Ranking, others: Sequence[Ranking], drawn: dict[Hashable, Curves]
) -> tuple[tuple[PlanChange, ...], ComparedLengths | None]:
    """(at most one change in each direction, the lengths that were compared); None for lengths where only one is known.
    Curves in `drawn`, from other rankings of the run, are used again."""
    best, of_run = ranking.best, without_length(ranking)
    points, named = drawn.get(of_run) or curves(ranking, others)
    if points and points[0].ranking:
        drawn[of_run] = points, named
    name = named(best)
    points = [point for point in points if name in point.seconds and len(point.seconds) > 1]
    if len(points) < 2 or best.workload.seq_len not in [point.seq_len for point in points]:
        return (), None
    at = [point.seq_len for point in points].index(best.workload.seq_len)
    changes = [_change(points[at::-1], name), _change(points[at:], name)]
    compared = ComparedLengths(
        first=points[0].seq_len,
        last=points[-1].seq_len,
        count=len(points),
        methods=tuple(dict.fromkeys(point.method for point in points)),
        source="run" if points[0].ranking else "scaling",
    )
    return tuple(change for change in changes if change), compared


def without_length(ranking: Ranking) -> Hashable:
    """A key that is equal for rankings that differ only in their length."""
    return ranking.workload.without("seq_len"), ranking.best.target


def _named(alike: Sequence[Ranking]) -> Callable[[Measurement], str]:
    """The name of a plan at every length: without its tile where each plan has one tile per length, the default."""

    def short(m: Measurement) -> str:
        return str(replace(m.plan, tile=None)) + flags_text(m.flags)

    if all(len({short(m) for m in each.rivals}) == len(each.rivals) for each in alike):
        return short
    return lambda m: m.printed_plan


def _of_run(alike: Sequence[Ranking]) -> list[LengthPoint]:
    name = _named(alike)
    found = list[LengthPoint]()
    for each in sorted(alike, key=lambda ranking: ranking.workload.seq_len):
        seconds = {name(m): m.median_s or 0.0 for m in each.rivals}
        plans = {name(m): m.printed_plan for m in each.rivals}
        found.append(LengthPoint(each.workload.seq_len, seconds, plans, each.best.method, each))
    return found


def _of_scaling(ranking: Ranking) -> list[LengthPoint]:
    """The curves of the plans, each through the plan's time at its own length."""
    curves: dict[int, dict[str, float]] = {}
    for m in ranking.rivals:
        known = {int(each.seq_len): each.median_s for each in m.scaling or () if each.median_s > 0}
        own = known.get(m.workload.seq_len)
        if own and m.median_s:
            for seq_len, seconds in known.items():
                curves.setdefault(seq_len, {})[m.printed_plan] = seconds * m.median_s / own
    method = "compiled" if ranking.best.method == "compiled" else "simulated"
    lengths = sorted(seq_len for seq_len in curves if seq_len > 0)
    return [
        LengthPoint(seq_len, curves[seq_len], {plan: plan for plan in curves[seq_len]}, method) for seq_len in lengths
    ]


def _change(outward: Sequence[LengthPoint], name: str) -> PlanChange | None:
    """The first length, going outward from the plan's own, at which it is clearly slower, and where the curves
    cross."""
    own = outward[0].seq_len
    for index, point in enumerate(outward):
        rival = point.rival(name) if index else None
        if rival is None:
            continue
        ahead = [k for k in range(index) if outward[k].seconds.get(rival, 0.0) >= outward[k].seconds[name]]
        last = ahead[-1] if ahead else index - 1
        near, far = outward[last], outward[last + 1]
        return PlanChange(
            direction="longer" if point.seq_len > own else "shorter",
            seq_len=_meet(near, far, name, rival) if ahead and rival in far.seconds else None,
            between=(min(near.seq_len, far.seq_len), max(near.seq_len, far.seq_len)),
            plan=point.plans[rival],
            method=point.method,
        )
    return None


def _meet(near: LengthPoint, far: LengthPoint, name: str, rival: str) -> int:
    """Where two curves cross between two lengths, at the nearer of which `name` is no slower."""
    before, after = (math.log(point.seconds[name] / point.seconds[rival]) for point in (near, far))
    start, end = math.log(near.seq_len), math.log(far.seq_len)
    share = 1.0 if after <= before else min(1.0, -before / (after - before))
    return round(math.exp(start + (end - start) * share))
