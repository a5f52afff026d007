"""Two runs, measurement by measurement: did it get faster or slower, and is that sure?

A change of what was measured is sure where its bootstrap interval excludes none and a rank test, corrected for as many
comparisons as there are, says that chance did not make it; where it is larger than the threshold; and where the machine
does not explain it: its yardstick, other programs, a drift within a run (`guards`). What was compiled or simulated is
exact: there every change is sure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stripectl import BadInput
from stripectl.environment import differing
from stripectl.guards import drift, machine_change
from stripectl.measurement import Measurement
from stripectl.measurement.bootstrap import RESAMPLES
from stripectl.run import Run

Verdict = Literal["FASTER", "SLOWER", "SAME", "AMBIGUOUS", "BROKEN", "MISSING"]
FAILURES = ("SLOWER", "BROKEN", "MISSING")
CHANCE = 0.05  # of one wrong verdict in a whole comparison where nothing has changed
FEWEST = 3  # samples of an interval
# What must be alike for times to be compared: a compiler's do not depend on the machine it runs on.
MATTERS = {"measured": ("versions", "flags", "host", "devices"), "compiled": ("versions", "flags"), "simulated": ()}


@dataclass(frozen=True)
class Comparison:
    """The same plan, workload, target and method in two runs. `change` is new time over base time, minus 1, `interval`
    its 95 % interval where both were sampled, `why` what a verdict that is no plain one stands on."""

    base: Measurement
    new: Measurement
    verdict: Verdict
    change: float | None = None
    interval: tuple[float, float] | None = None
    why: str = ""


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
    sampled = [(old, fresh) for old, fresh in both if fresh.status == "ok" and old.method == "measured"]
    chances = holm([rank_test(old.samples_s, fresh.samples_s) for old, fresh in sampled])
    chance = {fresh.key: each for (_, fresh), each in zip(sampled, chances, strict=True)}
    found = [_compared(old, fresh, threshold, chance.get(fresh.key, 0.0)) for old, fresh in both]
    return [*found, *(Comparison(m, m, "MISSING", why="NEW does not hold it") for m in absent)]


def differences(base: Run, new: Run) -> list[str]:
    """What differs in the environments of two runs and matters to what both hold, in words."""
    methods = {old.method for old, _ in pairs(base, new)[0]}
    return unlike(base, new, [part for part in MATTERS["measured"] if any(part in MATTERS[each] for each in methods)])


def unlike(base: Run, new: Run, parts: Sequence[str]) -> list[str]:
    """What differs in these parts of the environments of two runs, in words."""
    return [f"{name} {old} and {fresh}" for name, old, fresh in differing(base.environment, new.environment, parts)]


def _compared(base: Measurement, new: Measurement, threshold: float, chance: float) -> Comparison:
    if new.status != "ok" or not new.median_s or not base.median_s:
        return Comparison(base, new, "BROKEN", why=new.reason or "NEW has no time of it")
    change = new.median_s / base.median_s - 1
    if base.method != "measured":
        return Comparison(base, new, beyond(change, threshold), change, (change, change))
    interval = change_interval(base.samples_s, new.samples_s)
    verdict, why = judged(base, new, change, interval, chance, threshold)
    return Comparison(base, new, verdict, change, interval, why)


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


def change_interval(base_s: Sequence[float], new_s: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of the change of the median; the two runs were sampled apart, so not paired."""
    import numpy as np
    from scipy import stats

    if min(len(base_s), len(new_s)) < FEWEST:
        return None
    found = stats.bootstrap(
        (base_s, new_s),
        lambda old, fresh, axis=-1: np.median(fresh, axis) / np.median(old, axis) - 1,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    low, high = found.confidence_interval
    return float(low), float(high)


def rank_test(base_s: Sequence[float], new_s: Sequence[float]) -> float:
    """How likely chance alone puts the samples of two runs in so different ranks (Mann and Whitney 1947)."""
    from scipy import stats

    return float(stats.mannwhitneyu(base_s, new_s).pvalue) if base_s and new_s else 1.0


def holm(chances: Sequence[float]) -> list[float]:
    """The same, so that among all of them one is wrong as seldom as one alone would be (Holm 1979)."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    corrected, highest = list(chances), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, chances[index] * (len(chances) - rank)))
        corrected[index] = highest
    return corrected
