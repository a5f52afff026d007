"""Whether claims hold for runs.

A claim has the verdict PASS where every measurement that it covers is on its side of the bound, FAIL where one is on
the other side, where a named plan was refused or failed, or where it covers no measurement, and INCONCLUSIVE where the
interval of a measured figure contains the bound. Two sides are compared for every workload, target, method and set of
flags that have both, with equal scheme, layout and kernel where neither side names them; of the other differences, mesh
and tiles, the fastest counts.
"""

import difflib
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stripectl.analysis.claims import Claim, Clause
from stripectl.analysis.metrics import Interval
from stripectl.analysis.plan_selector import NAMES, Selector, part
from stripectl.analysis.ranking import contenders
from stripectl.core.plan import Plan, UnreadablePlan
from stripectl.core.scheme import schemes
from stripectl.errors import BadInput
from stripectl.results.labels import plan_label, workload_label
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from stripectl.statistics.intervals import ratio_interval
from stripectl.statistics.verdict import ClaimVerdict
from stripectl.util.units import NOTHING

VERDICTS = (ClaimVerdict.FAIL, ClaimVerdict.INCONCLUSIVE, ClaimVerdict.PASS)  # the worst first
COMPARISONS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}
MAX_NAMED = 8  # measurements that are listed where a claim matches none


@dataclass(frozen=True)
class IndexedMeasurement:
    """A measurement of a run, named where there are several runs, and whether its time counts."""

    run: str
    m: Measurement
    counts: bool
    baseline: bool  # on one device, as the baseline of plans on several

    @property
    def computed(self) -> tuple[str, str]:
        """A key that is equal for the same workload and flags in one run."""
        return self.run, self.m.identity[0]


@dataclass(frozen=True, kw_only=True)
class ClaimFinding:
    """The result of a claim for one measurement, or for two that are compared; `said` is the figure."""

    verdict: ClaimVerdict
    plan: str
    where: str
    said: str
    value: float | None = None
    interval: Interval | None = None
    reason: str = ""


@dataclass(frozen=True)
class Judgement:
    """A claim, its findings, the worst first, and the reason where it matches no measurement."""

    claim: Claim
    findings: Sequence[ClaimFinding]
    reason: str = ""

    @property
    def verdict(self) -> ClaimVerdict:
        return self.findings[0].verdict if self.findings else VERDICTS[0]

    @property
    def holding(self) -> int:
        return sum(each.verdict == ClaimVerdict.PASS for each in self.findings)


def judge_claims(claims: Sequence[Claim], runs: Sequence[tuple[str, Run]]) -> list[Judgement]:
    """Every claim, judged by all runs together; runs come with their names.

    Raises:
        BadInput: a claim whose two sides are the same plans, or a run with a plan that cannot be read.
    """
    several = len(runs) > 1
    known = [each for name, run in runs for each in _known(name, run, several)]
    judged = list[Judgement]()
    for claim in claims:
        try:
            judged.append(_judged(claim, known))
        except BadInput as error:
            raise BadInput(f"claim {claim.number}: {error}") from error
    return judged


def _known(name: str, run: Run, several: bool) -> list[IndexedMeasurement]:
    measurements = [m for m in run.results if not m.is_search_probe]
    if unreadable := next((m.plan for m in measurements if isinstance(m.plan, UnreadablePlan)), None):
        raise BadInput(f"{name} has a plan that cannot be read: {unreadable.reason}")
    counted = {m.key for m in contenders(measurements)}
    wide = any(m.devices > 1 for m in measurements)

    def is_baseline(plan: Plan) -> bool:
        return wide and plan.devices == 1 and bool(schemes[plan.scheme].axes)

    return [IndexedMeasurement(name * several, m, m.key in counted, is_baseline(m.plan)) for m in measurements]


def _judged(claim: Claim, known: Sequence[IndexedMeasurement]) -> Judgement:
    try:
        plans = _meant(claim.plans, claim.clauses, known)
        found = _compared(claim, plans, _meant(claim.others, claim.clauses, known)) if claim.others else None
        found = _figures(claim, plans) if found is None else found
    except NoMatch as nothing:
        return Judgement(claim, [], str(nothing))
    up = 1.0 if claim.op[0] == ">" else -1.0
    worst = sorted(
        found, key=lambda each: (VERDICTS.index(each.verdict), each.value is not None, up * (each.value or 0))
    )
    return Judgement(claim, worst)


class NoMatch(Exception):
    """A claim matches no measurement; the message says what exists."""


def _meant(
    selector: Selector | None, clauses: Sequence[Clause], known: Sequence[IndexedMeasurement]
) -> list[IndexedMeasurement]:
    """Find the measurements that a claim covers, and narrow them word by word: the first word that leaves none is
    reported."""
    kept = [k for k in known if not k.baseline or (selector and selector.names_mesh)]
    steps: list[tuple[str, Callable[[IndexedMeasurement], bool], Callable[[IndexedMeasurement], str]]] = [
        (clause.text, lambda k, clause=clause: clause.fits(k.m), lambda k, clause=clause: clause.shown(k.m))
        for clause in clauses
    ]
    if selector:
        steps.insert(0, (selector.text, lambda k: selector.fits(k.m.plan), lambda k: plan_label(k.m)))
    said = list[str]()
    for text, fits, shown in steps:
        said.append(text)
        there, kept = kept, [k for k in kept if fits(k)]
        if not kept:
            raise NoMatch(f"nothing matches {' '.join(said)}; the run has {_nearest(text, map(shown, there))}")
    return kept


def _nearest(text: str, there: Iterable[str]) -> str:
    """The existing names, or the nearest of many."""
    names = list(dict.fromkeys(there))
    near = names if len(names) <= MAX_NAMED else difflib.get_close_matches(text, names, n=MAX_NAMED, cutoff=0.0)
    more = f" and {len(names) - len(near)} more" * (len(names) > len(near))
    return ", ".join(near) + more if near else "no measurement"


def _figures(claim: Claim, meant: Sequence[IndexedMeasurement]) -> list[ClaimFinding]:
    """The findings for every measurement that has the figure, and for plans without a time."""
    found = list[ClaimFinding]()
    for k in meant:
        if k.m.status == "failed" or (k.m.status == "refused" and claim.plans):
            found.append(_without(k))
        elif k.m.status == "ok" and (value := claim.metric.of(k.m)) is not None:
            found.append(_finding(claim, k, plan_label(k.m), value, claim.metric.interval(k.m)))
    if not found:
        raise NoMatch(f"none of the {len(meant)} matching measurements has {claim.metric.name}. {claim.metric.source}")
    return found


def _compared(
    claim: Claim, plans: Sequence[IndexedMeasurement], others: Sequence[IndexedMeasurement]
) -> list[ClaimFinding]:
    """The findings for every workload, target, method and set of flags with both sides."""
    assert claim.plans and claim.others
    known = {(k.run, k.m.key) for k in others}
    if both := [k for k in plans if (k.run, k.m.key) in known]:
        names = _nearest(claim.others.text, (plan_label(k.m) for k in both))
        raise BadInput(f"the claim is ambiguous: {names} matches both sides. Name more parts of the plans.")
    named = claim.plans.parts.keys() | claim.others.parts.keys()
    free = [name for name in NAMES if name not in named]
    groups: dict[Hashable, list[IndexedMeasurement]] = {}
    for k in plans:
        groups.setdefault((*k.computed, k.m.target, *_parts(k, free)), []).append(k)
    pairs = ((members, [k for k in others if _alike(members[0], k, free)]) for members in groups.values())
    found = [finding for pair in pairs for finding in _of_sides(claim, *pair)]
    if not found:
        alike = ", ".join(["workload", "target", "method", "flags", *free])
        counterpart = f"a measurement of {claim.others.text}"
        raise NoMatch(f"no measurement of {claim.plans.text} equals {counterpart} in {alike}")
    return found


def _of_sides(
    claim: Claim, plans: Sequence[IndexedMeasurement], others: Sequence[IndexedMeasurement]
) -> Iterator[ClaimFinding]:
    """The findings for two comparable sides: a side without a time, and by each method the fastest of both."""
    for side in (plans, others):
        if side and not any(k.counts for k in side):
            yield _without(next((k for k in side if k.m.status != "ok"), side[0]))
    for method in dict.fromkeys(k.m.method for k in plans):
        sides = [[k for k in side if k.counts and k.m.method == method] for side in (plans, others)]
        if all(sides):
            yield _speed(claim, *(min(side, key=lambda k: k.m.median_s or 0.0) for side in sides))


def _parts(k: IndexedMeasurement, names: Iterable[str]) -> list[Any]:
    return [part(k.m.plan, name) for name in names]


def _alike(k: IndexedMeasurement, other: IndexedMeasurement, free: Sequence[str]) -> bool:
    """Whether two measurements are comparable; one device is comparable with several of its hardware."""
    if k.computed != other.computed or _parts(k, free) != _parts(other, free):
        return False
    if k.m.target == other.m.target:
        return True
    return 1 in (k.m.devices, other.m.devices) and k.m.target.hardware == other.m.target.hardware


def _speed(claim: Claim, fast: IndexedMeasurement, slow: IndexedMeasurement) -> ClaimFinding:
    """The finding of how many times as fast one is as the other."""
    assert fast.m.median_s and slow.m.median_s
    value = slow.m.median_s / fast.m.median_s
    sampled = fast.m.method == "measured"
    interval = ratio_interval(slow.m.samples_s, fast.m.samples_s) if sampled else (value, value)
    return _finding(claim, fast, f"{plan_label(fast.m)} over {plan_label(slow.m)}", value, interval)


def _finding(claim: Claim, k: IndexedMeasurement, plan: str, value: float, interval: Interval | None) -> ClaimFinding:
    shown, bound = claim.metric.shown, claim.metric.shown(claim.bound)
    sides = {COMPARISONS[claim.op](end, claim.bound) for end in interval or ()}
    verdict = ClaimVerdict.INCONCLUSIVE
    if len(sides) == 1:
        verdict = ClaimVerdict.PASS if sides == {True} else ClaimVerdict.FAIL
    said = shown(value)
    reason = {
        ClaimVerdict.PASS: "",
        ClaimVerdict.INCONCLUSIVE: f"its interval contains {bound}"
        if interval
        else "fewer than 3 samples give no interval",
        ClaimVerdict.FAIL: f"not {claim.op} {bound}" + f" ({value:.9g}, {claim.bound:.9g})" * (said == bound),
    }[verdict]
    if claim.metric.is_a_question:
        reason = ""  # the figure is an answer in words
    elif interval and interval[0] < interval[1]:
        said += f" [{shown(interval[0])}, {shown(interval[1])}]"
    return ClaimFinding(
        verdict=verdict, plan=plan, where=_where(k), said=said, value=value, interval=interval, reason=reason
    )


def _without(k: IndexedMeasurement) -> ClaimFinding:
    """The finding for a plan that should have a time, but has none that counts."""
    said, reason = k.m.status, str(k.m.reason or "")
    if k.m.status == "ok":
        said, reason = (
            ("refused", "the plan was refused when it was compiled or measured")
            if k.m.median_s
            else (NOTHING, "it has no time")
        )
    return ClaimFinding(verdict=ClaimVerdict.FAIL, plan=plan_label(k.m), where=_where(k), said=said, reason=reason)


def _where(k: IndexedMeasurement) -> str:
    m: Measurement = k.m
    return f"{m.workload.passes}, {workload_label(m.workload)} on {m.target}, {m.method}" + f", {k.run}" * bool(k.run)
