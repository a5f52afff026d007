"""Two runs, measurement by measurement: did it get faster or slower, and is that sure?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stripectl import BadInput
from stripectl.measurement import RESAMPLES, Measurement
from stripectl.run import Run

Verdict = Literal["FASTER", "SLOWER", "SAME", "AMBIGUOUS", "BROKEN", "MISSING"]


@dataclass(frozen=True)
class Comparison:
    """The same plan, workload, target and method in two runs. `change` is new time over base time, minus 1, and
    `interval` its 95 % interval where both were sampled."""

    base: Measurement
    new: Measurement
    verdict: Verdict
    change: float | None
    interval: tuple[float, float] | None


def compare(base: Run, new: Run, threshold: float) -> list[Comparison]:
    """Every measurement of the base: what the new run makes of it. Changes within `threshold` either way are the same;
    what the new run lacks is missing, and what failed in it is broken.

    Raises:
        BadInput: the runs have no measurement in common.
    """
    known = {m.key: m for m in base.measurements if m.status == "ok"}
    pairs = [(known[m.key], m) for m in new.measurements if m.key in known]
    if not pairs:
        raise BadInput("the runs have no measurement in common: same plan, workload, target and method.")
    held = {fresh.key for _, fresh in pairs}
    missing = [Comparison(m, m, "MISSING", None, None) for key, m in known.items() if key not in held]
    return [*(_compared(old, fresh, threshold) for old, fresh in pairs), *missing]


def _compared(base: Measurement, new: Measurement, threshold: float) -> Comparison:
    if new.status != "ok" or not new.median_s or not base.median_s:
        return Comparison(base, new, "BROKEN", None, None)
    change = new.median_s / base.median_s - 1
    interval = change_interval(base.samples_s, new.samples_s) if base.method == "measured" else (change, change)
    return Comparison(base, new, verdict(interval, threshold), change, interval)


def verdict(interval: tuple[float, float] | None, threshold: float) -> Verdict:
    """From where the whole interval of the change lies; where it straddles a threshold nothing is sure."""
    if interval is None:
        return "AMBIGUOUS"
    low, high = interval
    if low > threshold:
        return "SLOWER"
    if high < -threshold:
        return "FASTER"
    return "SAME" if -threshold <= low and high <= threshold else "AMBIGUOUS"


def change_interval(base_s: Sequence[float], new_s: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of the change of the median; the two runs were sampled apart, so not paired."""
    import numpy as np
    from scipy import stats

    if min(len(base_s), len(new_s)) < 3:
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
