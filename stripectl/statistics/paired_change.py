"""Samples of two runs, compared where the machine was equally fast.

Cores that are lent to others, or that clock down, are fast for a while and then slower, so samples form several levels,
and the number of samples in each moves means, medians and minima from run to run. A sample is therefore compared only
with samples of the other run during which the yardstick, a fixed matmul next to each sample, took equally long. The
change is the ratio that most of these pairs show, the mode by a kernel density estimate (Parzen 1962): a
delay of some samples does not move the mode.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stripectl.statistics.drift import is_ordered
from stripectl.statistics.intervals import percentile_interval

if TYPE_CHECKING:
    import numpy as np

MIN_SAMPLES = 3  # samples for an interval, and samples of each run with a match in the other
MIN_MATCHED_SHARE = 0.1  # share of the samples with a match: with fewer, the machine's speed was different
MAX_COMPARED_SAMPLES = 400  # samples of a run that are compared, because pairs grow with their square
MAX_YARDSTICK_DIFFERENCE = 0.05  # difference of yardsticks, in logarithms, from which samples do not match
GRID, SPAN = 0.0025, 1.0  # of the logarithms of ratios: the step, and the range around the ratio of medians
KERNEL_STEPS = 41  # steps of the grid on either side from which the kernel is zero
GRID_STEPS = round(2 * SPAN / GRID) + 1
DRAWS = 500  # bootstrap resamples
RANK_REACH = 0.1  # of ranks, in logarithms of times, beyond the change
CONTINUITY = 1.0  # half of the change in the ranks of two samples that exchange their places
MIN_SECONDS = 1e-60  # whose logarithm is taken of a shorter time


@dataclass(frozen=True)
class Samples:
    """Logarithms of times, and of the yardstick's times next to them."""

    times: "np.ndarray"
    yardstick: "np.ndarray"

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, at: slice) -> "Samples":
        return Samples(self.times[at], self.yardstick[at])

    @classmethod
    def of(cls, times_s: Sequence[float], yardstick_s: Sequence[float] = ()) -> "Samples":
        """At most MAX_COMPARED_SAMPLES of the samples, evenly spaced. Without a yardstick its time is 1 s."""
        import numpy as np

        kept = np.unique(np.linspace(0, len(times_s) - 1, MAX_COMPARED_SAMPLES).round().astype(int))
        both = (np.asarray(each, float)[kept] for each in (times_s, yardstick_s or (1.0,) * len(times_s)))
        return cls(*(np.log(np.maximum(each, MIN_SECONDS)) for each in both))

    def drift(self) -> float:
        """How much longer the second half took than the first, minus 1, where the machine was equally fast; 0 where
        this may be chance (Kendall's tau)."""
        half = len(self) // 2
        if half < MIN_SAMPLES or not is_ordered(self.times - self.yardstick):
            return 0.0
        return SamplePairs.of(self[:half], self[half:]).change()


def pair_weights(base: Samples, new: Samples) -> Any:
    """(new, base): how similar the machine's speed was, 1 where the yardstick took equally long."""
    import numpy as np

    return np.maximum(0.0, 1 - np.abs(new.yardstick[:, None] - base.yardstick) / MAX_YARDSTICK_DIFFERENCE)


@dataclass(frozen=True)
class SamplePairs:
    """Pairs of samples of two runs, (new, base): the logarithms of the ratios of their times, in steps of the grid from
    `start`, and how similar the machine's speed was, 1 where the yardstick took equally long."""

    steps: "np.ndarray"
    alike: "np.ndarray"
    start: int

    @classmethod
    def of(cls, base: Samples, new: Samples) -> "SamplePairs":
        import numpy as np

        start = round(float(np.median(new.times) - np.median(base.times) - SPAN) / GRID)
        steps = np.rint((new.times[:, None] - base.times) / GRID) - start
        return cls(np.clip(steps, 0, GRID_STEPS - 1).astype(int), pair_weights(base, new), start)

    def is_matched(self) -> bool:
        """Whether the machine was equally fast in both runs for enough of the samples."""
        best = self.alike.max(0), self.alike.max(1)
        return all((each >= 0.5).sum() >= max(MIN_SAMPLES, MIN_MATCHED_SHARE * len(each)) for each in best)

    def change(self) -> float:
        """How much longer the new times are, minus 1, in most pairs."""
        return float(self._most([self._found(1)])[0])

    def interval(self) -> tuple[float, float] | None:
        """The 95 % bootstrap interval of the change; runs were sampled separately, so they are resampled separately."""
        import numpy as np

        if min(self.steps.shape) < MIN_SAMPLES:
            return None
        rng = np.random.default_rng(0)
        now, was = (rng.multinomial(count, np.full(count, 1 / count), DRAWS) for count in self.steps.shape)
        return percentile_interval(self._most([self._found(np.outer(*each)) for each in zip(now, was, strict=True)]))

    def _found(self, times: Any) -> Any:
        """The number of similar pairs at every step, where `times` weights each pair."""
        import numpy as np

        return np.bincount(self.steps.ravel(), (self.alike * times).ravel(), GRID_STEPS)

    def _most(self, found: Any) -> Any:
        import numpy as np
        from scipy.ndimage import uniform_filter1d

        density = np.stack(found)
        for _ in range(2):  # two moving averages make a triangular kernel
            density = uniform_filter1d(density, KERNEL_STEPS, mode="constant")
        return np.expm1((density.argmax(-1) + self.start) * GRID)


@dataclass(frozen=True)
class PairedChange:
    """The change from samples of one run to samples of another: how much longer they took, minus 1, where the machine
    was equally fast, with the 95 % interval and its probability by chance; how much slower the machine itself was;
    `extremes`, the change with none and with all of this subtracted where it was never equally fast; and the drift
    within each run."""

    size: float
    interval: tuple[float, float] | None
    chance: float
    machine: float
    extremes: tuple[float, float]
    drifts: tuple[float, float]

    @classmethod
    def between(cls, old: Samples, fresh: Samples) -> "PairedChange":
        import numpy as np

        drifts, took = (old.drift(), fresh.drift()), np.median(fresh.yardstick) - np.median(old.yardstick)
        machine, apart = math.expm1(took), not SamplePairs.of(old, fresh).is_matched()
        if apart:
            old, fresh = (Samples(each.times, np.zeros_like(each.yardstick)) for each in (old, fresh))
        pairs = SamplePairs.of(old, fresh)
        size = pairs.change()
        extremes = size, (1 + size) / (1 + machine * apart) - 1
        return cls(size, pairs.interval(), rank_test(old, fresh, size), machine, extremes, drifts)


def rank_test(base: Samples, new: Samples, size: float) -> float:
    """The probability that chance orders the samples of two runs so: the rank sum of Wilcoxon (1945), where a sample is
    ranked only among samples during which the machine was equally fast and which took about as long, apart from the
    change; samples around another level would show only how many there are."""
    import numpy as np
    from scipy import stats

    both = Samples(*(np.concatenate(each) for each in ((base.times, new.times), (base.yardstick, new.yardstick))))
    apart = both.times[:, None] - both.times
    near = np.abs(apart) <= RANK_REACH + abs(math.log1p(size))
    ranks: np.ndarray = (pair_weights(both, both) * near * np.sign(apart)).sum(1)
    above, every = abs(ranks[len(base) :].sum()), len(both)
    deviation = math.sqrt(len(base) * len(new) * float(np.mean(ranks**2)) / max(1, every - 1))
    return 2 * float(stats.norm.sf(max(0.0, above - CONTINUITY) / deviation)) if deviation else 1.0


def holm(chances: Sequence[float]) -> list[float]:
    """Probabilities corrected so that the family-wise error equals the error of a single test (Holm 1979)."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    corrected, highest = list(chances), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, chances[index] * (len(chances) - rank)))
        corrected[index] = highest
    return corrected
