"""Samples of two runs, compared with those that were taken while the machine was as fast.

Cores that are lent to others, or that clock down, are fast for a while and then slower, so samples lie about several
levels, and how many lie about each moves means, medians and minima from run to run. A sample is therefore compared with
those samples of the other run beside which the yardstick (`noise`) took as long. The change is the one that most of
these pairs show, the mode of their ratios by a kernel density estimate (Parzen 1962): what holds up some of the samples
moves no mode.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stripectl.results.measurement import Measurement
from stripectl.results.schema import MIN_NUMBER
from stripectl.statistics.bootstrap import percentile_interval

if TYPE_CHECKING:
    import numpy as np

MIN_SAMPLES = 3  # samples of an interval, and of each run that have their like in the other
MIN_MATCHED_SHARE = 0.1  # share of the samples that have their like: of fewer, and the machine was another one
MAX_COMPARED_SAMPLES = 400  # samples of a run that are compared: pairs are as many squared
MAX_YARDSTICK_DIFFERENCE = 0.05  # difference of yardsticks, in logarithms, from which on they have nothing in common
GRID, SPAN = 0.0025, 1.0  # of the logarithms of ratios: a step, and how far from that of the medians
KERNEL_STEPS = 41  # steps of the grid on either side from which on ratios have nothing in common
GRID_STEPS = round(2 * SPAN / GRID) + 1
DRAWS = 500  # samples drawn anew
RANK_REACH = 0.1  # of ranks, in logarithms of times, beyond the change
CONTINUITY = 1.0  # half of what the ranks of two samples change where these change places
CONFIDENCE = 0.01  # chance below which an order of samples is a drift


@dataclass(frozen=True)
class Samples:
    """Logarithms of times, and of those of the yardstick beside each."""

    times: "np.ndarray"
    yardstick: "np.ndarray"

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, at: slice) -> "Samples":
        return Samples(self.times[at], self.yardstick[at])

    @classmethod
    def of(cls, m: Measurement, yardstick_s: Sequence[float]) -> "Samples":
        """At most MAX_COMPARED_SAMPLES of a measurement, from the whole of it. Without a yardstick that is 1 s."""
        import numpy as np

        times_s = m.samples_s or (m.median_s,)
        kept = np.unique(np.linspace(0, len(times_s) - 1, MAX_COMPARED_SAMPLES).round().astype(int))
        both = (np.asarray(each, float)[kept] for each in (times_s, yardstick_s or (1.0,) * len(times_s)))
        return cls(*(np.log(np.maximum(each, MIN_NUMBER)) for each in both))

    def drift(self) -> float:
        """How much longer the second half took than the first, minus 1, where the machine was as fast, or 0 where
        chance may have ordered them so (Kendall's tau)."""
        from scipy import stats

        half = len(self) // 2
        if half < MIN_SAMPLES:
            return 0.0
        ordered: Any = stats.kendalltau(range(len(self)), self.times - self.yardstick)
        return SamplePairs.of(self[:half], self[half:]).change() if ordered.pvalue <= CONFIDENCE else 0.0


def yardsticks(*measured: Measurement) -> list[Sequence[float]]:
    """The seconds of the yardstick beside the samples of each; nothing where it was not timed beside those of all."""
    found: list[Sequence[float]] = [m.noise.yardstick_s if m.noise else () for m in measured]
    timed = all(len(each) == len(m.samples_s) for each, m in zip(found, measured, strict=True))
    return found if timed else [()] * len(measured)


def pair_weights(base: Samples, new: Samples) -> Any:
    """(new, base): how much alike the machine was beside them, 1 where the yardstick took as long."""
    import numpy as np

    return np.maximum(0.0, 1 - np.abs(new.yardstick[:, None] - base.yardstick) / MAX_YARDSTICK_DIFFERENCE)


@dataclass(frozen=True)
class SamplePairs:
    """Samples of a run with those of another, (new, base): the logarithms of the ratios of their times, in steps of the
    grid from `start`, and how much alike the machine was, 1 where the yardstick took as long."""

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
        """Whether the machine was as fast in both runs beside enough of the samples."""
        best = self.alike.max(0), self.alike.max(1)
        return all((each >= 0.5).sum() >= max(MIN_SAMPLES, MIN_MATCHED_SHARE * len(each)) for each in best)

    def change(self) -> float:
        """How much longer the new times are, minus 1, in most pairs."""
        return float(self._most([self._found(1)])[0])

    def interval(self) -> tuple[float, float] | None:
        """The 95 % bootstrap interval of that; runs were sampled apart, so are not drawn together."""
        import numpy as np

        if min(self.steps.shape) < MIN_SAMPLES:
            return None
        rng = np.random.default_rng(0)
        now, was = (rng.multinomial(count, np.full(count, 1 / count), DRAWS) for count in self.steps.shape)
        return percentile_interval(self._most([self._found(np.outer(*each)) for each in zip(now, was, strict=True)]))

    def _found(self, times: Any) -> Any:
        """How many pairs are alike at every step, where each is there so many times."""
        import numpy as np

        return np.bincount(self.steps.ravel(), (self.alike * times).ravel(), GRID_STEPS)

    def _most(self, found: Any) -> Any:
        import numpy as np
        from scipy.ndimage import uniform_filter1d

        density = np.stack(found)
        for _ in range(2):  # two means that run along make a triangle
            density = uniform_filter1d(density, KERNEL_STEPS, mode="constant")
        return np.expm1((density.argmax(-1) + self.start) * GRID)


@dataclass(frozen=True)
class PairedChange:
    """From samples to those of another run: how much longer they took, minus 1, where the machine was as fast, with the
    95 % interval and how likely chance alone makes any; how much longer the machine itself took, and `extremes`, the
    change with none and with all of that taken off where it was never as fast; and the drift within each run."""

    size: float
    interval: tuple[float, float] | None
    chance: float
    machine: float
    extremes: tuple[float, float]
    drifts: tuple[float, float]

    @classmethod
    def between(cls, base: Measurement, new: Measurement) -> "PairedChange":
        import numpy as np

        old, fresh = (
            Samples.of(m, yardstick_s) for m, yardstick_s in zip((base, new), yardsticks(base, new), strict=True)
        )
        drifts, took = (old.drift(), fresh.drift()), np.median(fresh.yardstick) - np.median(old.yardstick)
        machine, apart = math.expm1(took), not SamplePairs.of(old, fresh).is_matched()
        if apart:
            old, fresh = (Samples(each.times, np.zeros_like(each.yardstick)) for each in (old, fresh))
        pairs = SamplePairs.of(old, fresh)
        size = pairs.change()
        extremes = size, (1 + size) / (1 + machine * apart) - 1
        return cls(size, pairs.interval(), rank_test(old, fresh, size), machine, extremes, drifts)


def rank_test(base: Samples, new: Samples, size: float) -> float:
    """How likely chance alone orders the samples of two runs so: the rank sum of Wilcoxon (1945), where a sample's rank
    is among those beside which the machine was as fast, and that took about as long, but for the change: those about
    another level would tell how many lie there."""
    import numpy as np
    from scipy import stats

    both = Samples(*(np.concatenate(each) for each in ((base.times, new.times), (base.yardstick, new.yardstick))))
    apart = both.times[:, None] - both.times
    near = np.abs(apart) <= RANK_REACH + abs(math.log1p(size))
    ranks = (pair_weights(both, both) * near * np.sign(apart)).sum(1)
    above, every = abs(ranks[len(base) :].sum()), len(both)
    deviation = math.sqrt(len(base) * len(new) * np.mean(ranks**2) / max(1, every - 1))
    return 2 * float(stats.norm.sf(max(0.0, above - CONTINUITY) / deviation)) if deviation else 1.0


def holm(chances: Sequence[float]) -> list[float]:
    """The same, so that among all of them one is wrong as seldom as one alone would be (Holm 1979)."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    corrected, highest = list(chances), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, chances[index] * (len(chances) - rank)))
        corrected[index] = highest
    return corrected
