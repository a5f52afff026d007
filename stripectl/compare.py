"""Two runs, measurement by measurement: did it get faster or slower, and is that sure?

A change is that of the fastest samples (`samples`). It is sure where its bootstrap interval excludes none and a rank
test, corrected for as many comparisons as there are, says that chance did not make it; where it is larger than the
threshold; and where the machine does not explain it: one that was much slower itself, other programs, a drift within a
run, a throttled clock. What was compiled or simulated is exact: there every change is sure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stripectl import BadInput
from stripectl.environment import differing
from stripectl.measurement import Measurement
from stripectl.run import Run
from stripectl.samples import FEWEST, FOLLOWS, Samples, change_of, drift, fast_share, holm, interval_of, rank_test

Verdict = Literal["FASTER", "SLOWER", "SAME", "AMBIGUOUS", "BROKEN", "MISSING"]
FAILURES = ("SLOWER", "BROKEN", "MISSING")
CHANCE = 0.05  # of one wrong verdict in a whole comparison where nothing has changed
ANOTHER = 0.15  # change of the machine's own speed beyond which it is another machine
CROWDED = 0.5  # share of its cores that leaves no sample alone
# What must be alike for times to be compared: a compiler's do not depend on the machine it runs on.
MATTERS = {"measured": ("versions", "flags", "host", "devices"), "compiled": ("versions", "flags"), "simulated": ()}


@dataclass(frozen=True)
class Comparison:
    """The same plan, workload, target and method in two runs. `times_s` are what is compared, of samples those of the
    fastest; `machine` is how much longer the machine itself took in the new run, and `change` new time over base time,
    minus 1, beside that; `interval` is its 95 % interval where both were sampled, `why` what a verdict that is no plain
    one stands on."""

    base: Measurement
    new: Measurement
    verdict: Verdict
    times_s: tuple[float | None, float | None] = (None, None)
    change: float | None = None
    interval: tuple[float, float] | None = None
    why: str = ""
    machine: float = 0.0


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
    chances = holm([rank_test(*samples_of(old, fresh)) for old, fresh in sampled])
    chance = {fresh.key: each for (_, fresh), each in zip(sampled, chances, strict=True)}
    found = [_compared(old, fresh, threshold, chance.get(fresh.key, 0.0)) for old, fresh in both]
    return [*found, *(Comparison(m, m, "MISSING", (m.median_s, None), why="NEW does not hold it") for m in absent)]


def samples_of(base: Measurement, new: Measurement) -> tuple[Samples, Samples]:
    """Of both, with the yardstick where it was timed in both; where no samples are kept, the median for one."""
    beside = [(m.guards or {}).get("yardstick_s") or () for m in (base, new)]
    watched = all(len(each) == len(m.samples_s) for each, m in zip(beside, (base, new), strict=True))
    made = [
        Samples.of(m.samples_s or (m.median_s or 0.0,), each if watched else ())
        for m, each in zip((base, new), beside, strict=True)
    ]
    return made[0], made[1]


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
    old, fresh = samples_of(base, new)
    share = fast_share(old, fresh)
    change, machine = map(float, change_of(old, fresh, share))
    interval = interval_of(lambda was, now: change_of(was, now, share)[0], old, fresh)
    times_s = float(old.fast(share)[0]), float(fresh.fast(share)[0])
    verdict, why = judged(base, new, change, interval, chance, threshold, machine)
    return Comparison(base, new, verdict, times_s, change, interval, why, machine)


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
    machine: float,
) -> tuple[Verdict, str]:
    """(the verdict on a change that was measured, why it is none)."""
    if interval is None:
        return "AMBIGUOUS", f"fewer than {FEWEST} samples"
    low, high = interval
    verdict = beyond(change, threshold)
    whole = (1 + change) * (1 + machine) ** FOLLOWS
    if abs(machine) > ANOTHER and {beyond(each - 1, threshold) for each in (whole, whole / (1 + machine))} != {verdict}:
        return "AMBIGUOUS", f"the machine itself took {machine:+.1%}: a fixed matmul beside the samples"
    if -threshold <= low and high <= threshold:
        return "SAME", ""
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
    both = samples_of(base, new)
    for name, m, samples in zip(("BASE", "NEW"), (base, new), both, strict=True):
        seen, drifts = m.guards or {}, drift(samples, fast_share(*both))
        if beyond(change - drifts, threshold) != verdict:
            return "AMBIGUOUS", f"the fastest samples of {name} drift by {drifts:+.1%}"
        if seen.get("throttled"):
            return "AMBIGUOUS", f"the clock was throttled in {name}"
        if (others := seen.get("others") or 0.0) > CROWDED:
            return "AMBIGUOUS", f"other programs took {others:.0%} of the cores in {name}"
    return verdict, ""
