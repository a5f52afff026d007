"""Where a series of runs changes its level.

Values that are counted, or computed without a clock, are exact: every difference is a change. For noisy values:

1. Candidates come from kernel change-point detection (Arlot, Celisse and Harchaoui 2019) on the logarithms, as the
   cheapest partition (Jackson et al. 2005) into levels of MIN_LEVEL_RUNS runs or more. The Gaussian kernel is WIDTH
   standard deviations of the noise wide, which the differences between neighbours give whatever the levels are, and
   limits the weight of an outlier.
2. A candidate is a change where a rank test (Mann and Whitney) distinguishes the levels on both sides, at ALPHA
   divided by the number of places where the series might change (Bonferroni), and their medians differ by SIZE. The
   weakest candidate is dropped first, and the levels that it separated are tested as one level.

A change can be confirmed only with ENOUGH runs, because ranks distinguish no fewer than five runs from five; after
eleven runs three are enough. False alarms, by `benchmarks/change_points.py`: of constant series (10 to 100 runs, a
spread of 1 to 5 %, every twentieth run an outlier) 0.3 % show a change, at most 1.0 %; with correlated neighbours (a
correlation of 0.3) 2.5 %, at most 5.8 %, because noise that persists over several runs is a change to any rank test.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from stripectl.statistics.intervals import RESAMPLES

if TYPE_CHECKING:
    import numpy as np

MIN_LEVEL_RUNS = 3  # runs of a level
MIN_RUNS = 10
ALPHA = 0.05
MIN_CHANGE = 0.02
PENALTY = 0.6  # of a change, times the logarithm of the number of runs
WIDTH = 2.0
ROUNDING = 1e-9  # a relative difference that another order of arithmetic causes


@dataclass(frozen=True)
class LevelChange:
    """From the run at index `at` on, the level is `after`; before, it was `before`. `interval` belongs to `ratio`."""

    at: int
    before: float
    after: float
    interval: tuple[float, float] | None = None

    @property
    def ratio(self) -> float | None:
        """The new level divided by the old one, minus 1; None where the old level is 0."""
        return relative(self.before, self.after)


def relative(before: float, after: float) -> float | None:
    """The second value's increase over the first, as a fraction of the first."""
    return after / before - 1 if before else None


def level_changes(values: Sequence[float], exact: bool) -> list[LevelChange]:
    """The places where values, in order of time, change their level."""
    if exact:
        pairs = enumerate(itertools.pairwise(values), 1)
        return [LevelChange(at, old, new) for at, (old, new) in pairs if not math.isclose(old, new, rel_tol=ROUNDING)]
    found = confirmed(values, candidates(values))
    parts = [values[first:end] for first, end in itertools.pairwise([0, *found, len(values)])]
    return [_change(at, *pair) for at, pair in zip(found, itertools.pairwise(parts), strict=True)]


def _change(at: int, before: Sequence[float], after: Sequence[float]) -> LevelChange:
    import numpy as np
    from scipy import stats

    def change(was: np.ndarray, now: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.median(now, axis) / np.median(was, axis) - 1

    levels, found = (median(before), median(after)), None
    if min(before) > 0:
        rng = np.random.default_rng(0)
        drawn = stats.bootstrap((before, after), change, n_resamples=RESAMPLES, method="percentile", rng=rng)
        found = float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)
    return LevelChange(at, *levels, found)


def candidates(values: Sequence[float]) -> list[int]:
    """Indices at which a level may begin."""
    if len(values) < MIN_RUNS or min(values) == max(values):
        return []
    import numpy as np

    given = np.asarray(values, float)
    signal = np.log(given) if given.min() > 0 else given
    noise = np.median(np.abs(np.diff(signal))) / (0.6745 * math.sqrt(2))  # of a normal distribution
    noise = max(noise, ROUNDING * np.ptp(signal))
    return cheapest_partition(signal, WIDTH * noise, PENALTY * math.log(len(values)))


def cheapest_partition(signal: "np.ndarray", width: float, penalty: float) -> list[int]:
    """The begins of the levels, except the first, in the cheapest partition into levels of MIN_LEVEL_RUNS runs or more:
    each level costs the spread of its runs by a Gaussian kernel of this width, and each change costs the penalty. Time
    grows with the square of the number of runs."""
    import numpy as np

    count = len(signal)
    cost, begins = np.full(count + 1, np.inf), np.zeros(count + 1, int)  # the cheapest partition of the runs before
    cost[0] = -penalty
    alike = np.zeros(count)  # kernel of all pairs of runs from one to the end of a level
    for end in range(1, count + 1):
        near = np.exp(-((signal[:end] - signal[end - 1]) ** 2) / (2 * width**2))
        alike[:end] += 2 * np.cumsum(near[::-1])[::-1] - 1
        if end >= MIN_LEVEL_RUNS:
            runs = end - np.arange(end - MIN_LEVEL_RUNS + 1)
            costs = cost[: len(runs)] + runs - alike[: len(runs)] / runs + penalty
            begins[end] = np.argmin(costs)
            cost[end] = costs[begins[end]]
    found, at = list[int](), int(begins[count])
    while at:
        found.append(at)
        at = int(begins[at])
    return found[::-1]


def confirmed(values: Sequence[float], found: Sequence[int]) -> list[int]:
    """The candidates that the test confirms."""
    kept, places = list(found), len(values) - 2 * MIN_LEVEL_RUNS + 1
    while kept:
        ends = [0, *kept, len(values)]
        doubts = [
            chance_of_no_change(values[ends[i] : at], values[at : ends[i + 2]]) * places for i, at in enumerate(kept)
        ]
        if max(doubts) <= ALPHA:
            break
        kept.pop(doubts.index(max(doubts)))
    return kept


def chance_of_no_change(before: Sequence[float], after: Sequence[float]) -> float:
    """The p-value for two levels being equal; infinite where their medians are too close."""
    from scipy import stats

    old, new = median(before), median(after)
    if abs(new - old) < MIN_CHANGE * abs(old) or old == new:
        return math.inf
    found: Any = stats.mannwhitneyu(before, after)
    return float(found.pvalue)
