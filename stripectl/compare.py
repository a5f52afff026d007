"""Two runs, measurement by measurement: did it get faster or slower, and is that sure?

What else a machine does only adds to a time, so runs are compared by the times of their fastest samples (Chen and
Revels 2016, arXiv:1608.04295), and only by samples that were taken while the machine was as fast in both, by its
yardstick (`guards`). A change is sure where its bootstrap interval excludes none and a rank test, corrected for as many
comparisons as there are, says that chance did not make it; where it is larger than the threshold; and where the machine
does not explain it: its yardstick where it never was as fast in both, other programs, a drift within a run. What was
compiled or simulated is exact: there every change is sure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from stripectl import BadInput
from stripectl.environment import differing
from stripectl.guards import drift, equally_fast, machine_change
from stripectl.measurement import Measurement
from stripectl.measurement.bootstrap import RESAMPLES
from stripectl.run import Run

Verdict = Literal["FASTER", "SLOWER", "SAME", "AMBIGUOUS", "BROKEN", "MISSING"]
FAILURES = ("SLOWER", "BROKEN", "MISSING")
CHANCE = 0.05  # of one wrong verdict in a whole comparison where nothing has changed
FEWEST = 3  # samples of an interval
ENOUGH = 8  # samples of each run to compare without the others
FASTEST, LEAST_FAST = 0.1, 10  # share of the samples, and how many
# What must be alike for times to be compared: a compiler's do not depend on the machine it runs on.
MATTERS = {"measured": ("versions", "flags", "host", "devices"), "compiled": ("versions", "flags"), "simulated": ()}


@dataclass(frozen=True)
class Comparison:
    """The same plan, workload, target and method in two runs, with the samples that were compared; `left_out` others
    were not. `times_s` are what is compared: of samples, what `share` of them is faster than. `change` is new time over
    base time, minus 1, `interval` its 95 % interval where both were sampled, `why` what a verdict that is no plain one
    stands on."""

    base: Measurement
    new: Measurement
    verdict: Verdict
    times_s: tuple[float | None, float | None] = (None, None)
    share: float | None = None
    change: float | None = None
    interval: tuple[float, float] | None = None
    why: str = ""
    left_out: int = 0


def pairs(base: Run, new: Run) -> tuple[list[tuple[Measurement, Measurement]], list[Measurement]]:
    """(the measurements that both runs have, in the order of the new one; those of the base that the new one lacks).

    Raises:
        BadInput: they have none in common.
    """
    known = {m.key: m for m in base.measurements if m.status == "ok"}
    both = [(known[m.key], m) for m in new.measurements if m.key in known]
    if not both:
        raise BadInput("the runs have no measurement in common: same plan, workload, target and method.")
    held = {fresh.key for _, fresh in both}
    return both, [m for key, m in known.items() if key not in held]


def compare(base: Run, new: Run, threshold: float) -> list[Comparison]:
    """Every measurement of the base: what the new run makes of it. Changes within `threshold` either way are the same;
    what the new run lacks is missing, and what failed in it is broken.

    Raises:
        BadInput: the runs have no measurement in common.
    """
    both, absent = pairs(base, new)
    alike = [at_one_speed(old, fresh) for old, fresh in both]
    sampled = [(old, fresh) for old, fresh in alike if fresh.status == "ok" and old.method == "measured"]
    chances = holm([rank_test(old.samples_s, fresh.samples_s) for old, fresh in sampled])
    chance = {fresh.key: each for (_, fresh), each in zip(sampled, chances, strict=True)}
    found = [_compared(old, fresh, threshold, chance.get(fresh.key, 0.0)) for old, fresh in alike]
    found = [
        replace(
            each, left_out=sum(len(m.samples_s) for m in whole) - len(each.base.samples_s) - len(each.new.samples_s)
        )
        for each, whole in zip(found, both, strict=True)
    ]
    return [*found, *(Comparison(m, m, "MISSING", (m.median_s, None), why="NEW does not hold it") for m in absent)]


def at_one_speed(base: Measurement, new: Measurement) -> tuple[Measurement, Measurement]:
    """Both with the samples that were taken while the machine was as fast in both runs, where these are enough."""
    both = (base, new)
    speeds = [(m.guards or {}).get("yardstick_s") or () for m in both]
    if any(len(speed) != len(m.samples_s) for speed, m in zip(speeds, both, strict=True)):
        return both
    found = equally_fast(*speeds)
    if len(found) < ENOUGH or len(found) == max(map(len, speeds)):
        return both
    taken = [sorted(each) for each in zip(*found, strict=True)]
    return _of_samples(base, taken[0]), _of_samples(new, taken[1])


def _of_samples(m: Measurement, taken: Sequence[int]) -> Measurement:
    seen = m.guards or {}
    guards = {**seen, "yardstick_s": [seen["yardstick_s"][at] for at in taken]}
    return replace(m, samples_s=tuple(m.samples_s[at] for at in taken), guards=guards)


def fast_share(base_s: Sequence[float], new_s: Sequence[float]) -> float:
    """The share of samples to look below: ten of them, a tenth at the least, half at the most."""
    fewest = min(len(base_s), len(new_s))
    return min(0.5, max(FASTEST, LEAST_FAST / fewest)) if fewest else 0.5


def differences(base: Run, new: Run) -> list[str]:
    """What differs in the environments of two runs and matters to what both hold, in words."""
    methods = {old.method for old, _ in pairs(base, new)[0]}
    return unlike(base, new, [part for part in MATTERS["measured"] if any(part in MATTERS[each] for each in methods)])


def unlike(base: Run, new: Run, parts: Sequence[str]) -> list[str]:
    """What differs in these parts of the environments of two runs, in words."""
    return [f"{name} {old} and {fresh}" for name, old, fresh in differing(base.environment, new.environment, parts)]


def _compared(base: Measurement, new: Measurement, threshold: float, chance: float) -> Comparison:
    if new.status != "ok" or not new.median_s or not base.median_s:
        return Comparison(base, new, "BROKEN", (base.median_s, None), why=new.reason or "NEW has no time of it")
    if base.method != "measured":
        change = new.median_s / base.median_s - 1
        verdict = beyond(change, threshold)
        return Comparison(base, new, verdict, (base.median_s, new.median_s), change=change, interval=(change, change))
    share = fast_share(base.samples_s, new.samples_s)
    base_s = float(fast_s(base.samples_s or (base.median_s,), share))
    new_s = float(fast_s(new.samples_s or (new.median_s,), share))
    change, interval = new_s / base_s - 1, change_interval(base.samples_s, new.samples_s, share)
    verdict, why = judged(base, new, change, interval, chance, threshold)
    return Comparison(base, new, verdict, (base_s, new_s), share, change, interval, why)


def beyond(change: float, threshold: float) -> Verdict:
    """The verdict on a change that is exact."""
    return "SLOWER" if change > threshold else "FASTER" if change < -threshold else "SAME"


def judged(
    base: Measurement,
    new: Measurement,
    change: float,
    interval: tuple[float, float] | None,
    chance: float,
    threshold: float,
) -> tuple[Verdict, str]:
    """(the verdict on a change that was measured, why it is none)."""
    if interval is None:
        return "AMBIGUOUS", f"fewer than {FEWEST} samples"
    low, high = interval
    if -threshold <= low and high <= threshold:
        return "SAME", ""
    verdict = beyond(change, threshold)
    if verdict == "SAME":
        return "AMBIGUOUS", "it may be more than the threshold"
    if low <= 0 <= high or chance > CHANCE:
        fewest = min(len(base.samples_s), len(new.samples_s))
        return "AMBIGUOUS", f"chance may have made it: {fewest} samples (--min-samples takes more)"
    return unless_explained(base, new, change, verdict, threshold)


def unless_explained(
    base: Measurement, new: Measurement, change: float, verdict: Verdict, threshold: float
) -> tuple[Verdict, str]:
    """The verdict, or AMBIGUOUS with what of the machine explains the change, or may."""
    own, what = machine_change(base.guards, new.guards, slower=change > 0)
    if beyond((1 + change) / (1 + own) - 1, threshold) != verdict:
        return "AMBIGUOUS", f"the machine itself took {own:+.1%}: {what}"
    for name, m in (("BASE", base), ("NEW", new)):
        if beyond(change - drift(m.samples_s) / 2, threshold) != verdict:
            return "AMBIGUOUS", f"samples of {name} drift by {drift(m.samples_s):+.1%}"
        if (m.guards or {}).get("throttled"):
            return "AMBIGUOUS", f"the clock was throttled in {name}"
    return verdict, ""


def fast_s(samples_s: Sequence[float], share: float, axis: int = -1) -> Any:
    """What so many of the samples are faster than."""
    import numpy as np

    return np.quantile(samples_s, share, axis)


def change_interval(base_s: Sequence[float], new_s: Sequence[float], share: float = 0.5) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of the change of what a share is faster than; the two runs were sampled apart, so not
    paired."""
    import numpy as np
    from scipy import stats

    if min(len(base_s), len(new_s)) < FEWEST:
        return None
    found = stats.bootstrap(
        (base_s, new_s),
        lambda old, fresh, axis=-1: fast_s(fresh, share, axis) / fast_s(old, share, axis) - 1,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    low, high = found.confidence_interval
    return float(low), float(high)


def rank_test(base_s: Sequence[float], new_s: Sequence[float]) -> float:
    """How likely chance alone deals the fastest share of all samples so unevenly to the two runs (Mood 1950; Fisher's
    exact test)."""
    from scipy import stats

    if not base_s or not new_s:
        return 1.0
    edge = fast_s([*base_s, *new_s], fast_share(base_s, new_s))
    fast = [sum(each <= edge for each in samples_s) for samples_s in (base_s, new_s)]
    slow = [len(samples_s) - count for samples_s, count in zip((base_s, new_s), fast, strict=True)]
    found: Any = stats.fisher_exact([fast, slow])
    return float(found.pvalue)


def holm(chances: Sequence[float]) -> list[float]:
    """The same, so that among all of them one is wrong as seldom as one alone would be (Holm 1979)."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    corrected, highest = list(chances), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, chances[index] * (len(chances) - rank)))
        corrected[index] = highest
    return corrected
