"""Two runs, measurement by measurement: did it get faster or slower, and is that sure?

A change is that of samples that were taken while the machine was as fast (`samples`). It is sure where its bootstrap
interval excludes none and a rank test, corrected for as many comparisons as there are, says that it is not by chance;
where it is larger than the threshold; and where the machine does not explain it: one that was never as fast, other
programs, a drift within a run, a throttled clock. What was compiled or simulated is exact: there every change is sure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stripectl.analysis.paired_change import MIN_SAMPLES, PairedChange, holm
from stripectl.errors import BadInput
from stripectl.results.environment import differing_parts
from stripectl.results.findings import Noise
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run

Verdict = Literal["FASTER", "SLOWER", "SAME", "AMBIGUOUS", "BROKEN", "MISSING"]
FAILURES = ("SLOWER", "BROKEN", "MISSING")
MAX_FALSE_ALARMS = 0.05  # of one wrong verdict in a whole comparison where nothing has changed
BUSY_SHARE = 0.5  # share of its cores that leaves no sample alone
# What must be alike for times to be compared: a compiler's do not depend on the machine it runs on.
PARTS_THAT_MATTER = {
    "measured": ("versions", "flags", "host", "devices"),
    "compiled": ("versions", "flags"),
    "simulated": (),
}


@dataclass(frozen=True)
class Comparison:
    """The same plan, workload, target and method in two runs. `change` is new time over base time, minus 1, of samples
    where the machine was as fast, `interval` its 95 % interval where both were sampled, `why` what a verdict that is no
    plain one stands on, and `machine` how much longer the machine itself took."""

    base: Measurement
    new: Measurement
    verdict: Verdict
    change: float | None = None
    interval: tuple[float, float] | None = None
    why: str = ""
    machine: float = 0.0


def matched_measurements(base: Run, new: Run) -> tuple[list[tuple[Measurement, Measurement]], list[Measurement]]:
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


def compare_runs(
    base: Run, new: Run, threshold: float, say: Callable[[str, int, int], None] = lambda *_: None
) -> list[Comparison]:
    """Every measurement of the base: what the new run makes of it. Changes within `threshold` either way are the same;
    what the new run lacks is missing, and what failed in it is broken. `say` hears which is compared, how many are
    done, and of how many.

    Raises:
        BadInput: the runs have no measurement in common.
    """
    both, absent = matched_measurements(base, new)
    sampled = [(old, fresh) for old, fresh in both if old.method == "measured" and is_timed(old, fresh)]
    found = dict[Any, PairedChange]()
    for done, (old, fresh) in enumerate(sampled):
        say(f"compare {fresh.plan}", done, len(sampled))
        found[fresh.key] = PairedChange.between(old, fresh)
    chances = dict(zip(found, holm([each.chance for each in found.values()]), strict=True))
    made = [
        sampled_verdict(old, fresh, found[fresh.key], chances[fresh.key], threshold)
        if fresh.key in found
        else exact_comparisons(old, fresh, threshold)
        for old, fresh in both
    ]
    return [*made, *(Comparison(m, m, "MISSING", why="NEW does not hold it") for m in absent)]


def is_timed(base: Measurement, new: Measurement) -> bool:
    return new.status == "ok" and bool(new.median_s and base.median_s)


def environment_differences(base: Run, new: Run) -> list[str]:
    """What differs in the environments of two runs and matters to what both hold, in words."""
    methods = {old.method for old, _ in matched_measurements(base, new)[0]}
    return differences_in_parts(
        base,
        new,
        [part for part in PARTS_THAT_MATTER["measured"] if any(part in PARTS_THAT_MATTER[each] for each in methods)],
    )


def differences_in_parts(base: Run, new: Run, parts: Sequence[str]) -> list[str]:
    """What differs in these parts of the environments of two runs, in words."""
    return [
        f"{name} {old} and {fresh}" for name, old, fresh in differing_parts(base.environment, new.environment, parts)
    ]


def exact_comparisons(base: Measurement, new: Measurement, threshold: float) -> Comparison:
    """Where every change is sure, or nothing was timed."""
    if not is_timed(base, new):
        return Comparison(base, new, "BROKEN", why=new.reason or "NEW has no time of it")
    change = (new.median_s or 0.0) / (base.median_s or 1.0) - 1
    return Comparison(base, new, exact_verdict(change, threshold), change, (change, change))


def exact_verdict(change: float, threshold: float) -> Verdict:
    """The verdict on a change that is exact."""
    return "SLOWER" if change > threshold else "FASTER" if change < -threshold else "SAME"


def sampled_verdict(
    base: Measurement, new: Measurement, found: PairedChange, chance: float, threshold: float
) -> Comparison:
    """On what was measured, where there may be doubts."""
    why = why_in_doubt(base, new, found, chance, threshold)
    verdict = "AMBIGUOUS" if why else exact_verdict(found.size, threshold)
    return Comparison(base, new, verdict, found.size, found.interval, why, found.machine)


def why_in_doubt(base: Measurement, new: Measurement, found: PairedChange, chance: float, threshold: float) -> str:
    """Why a change that was measured, or that there is none, is not sure; nothing where it is."""
    if found.interval is None:
        return f"fewer than {MIN_SAMPLES} samples"
    verdict, (low, high) = exact_verdict(found.size, threshold), found.interval
    if any(exact_verdict(each, threshold) != verdict for each in found.extremes):
        return f"the machine itself took {found.machine:+.1%} and was never as fast: a fixed matmul beside the samples"
    if verdict == "SAME":
        return "" if -threshold <= low and high <= threshold else "it may be more than the threshold"
    if low <= 0 <= high or chance > MAX_FALSE_ALARMS:
        fewest = min(len(base.samples_s), len(new.samples_s))
        return f"chance may have made it: {fewest} samples (--min-samples takes more)"
    for name, m, drift in zip(("BASE", "NEW"), (base, new), found.drifts, strict=True):
        if exact_verdict(found.size - drift, threshold) != verdict:
            return f"samples of {name} drift by {drift:+.1%} from its first half to its second"
        if why := why_disturbed(m):
            return f"{why} in {name}"
    return ""


def why_disturbed(m: Measurement) -> str:
    """What else leaves no sample of a measurement as it would be, or nothing."""
    noise = m.noise or Noise()
    if noise.throttled:
        return "the clock was throttled"
    return f"other programs took {noise.others:.0%} of the cores" if noise.others > BUSY_SHARE else ""
