"""Samples of two runs, compared by their fastest.

What else a machine does only adds to a time (Chen and Revels 2016, arXiv:1608.04295), so what counts of each run is the
mean of its fastest samples. Where even these take longer because the machine itself was slower, so does the yardstick
that was timed beside each (`guards`): what a plan follows it by is taken off.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stripectl import guards
from stripectl.measurement.bootstrap import RESAMPLES

if TYPE_CHECKING:
    import numpy as np

FEWEST = 3  # samples of an interval
FASTEST = 20  # samples that count, or half of them where there are few
FOLLOWS = 0.8  # of the yardstick's change, in logarithms, a plan's time has: fitted in benchmarks/README.md
AT_ONCE = 2**20  # samples drawn anew


@dataclass(frozen=True)
class Samples:
    """Times, and those of the yardstick beside each, or ones where it was not timed."""

    times_s: "np.ndarray"
    yardstick_s: "np.ndarray"

    @classmethod
    def of(cls, times_s: Sequence[float], yardstick_s: Sequence[float] = ()) -> "Samples":
        import numpy as np

        yardstick_s = yardstick_s if len(yardstick_s) == len(times_s) else ()
        return cls(np.asarray(times_s), np.asarray(yardstick_s) if len(yardstick_s) else np.ones(len(times_s)))

    def __len__(self) -> int:
        return len(self.times_s)

    def __getitem__(self, at: Any) -> "Samples":
        return Samples(self.times_s[at], self.yardstick_s[at])

    def fast(self, share: float) -> tuple[Any, Any]:
        """(mean of the fastest share of the times, of the yardstick's); of each resample, where these are resamples."""
        import numpy as np

        count = math.ceil(share * self.times_s.shape[-1])
        fastest = (np.sort(each, -1)[..., :count] for each in (self.times_s, self.yardstick_s))
        times_s, yardstick_s = (each.mean(-1) for each in fastest)
        return times_s, yardstick_s


def fast_share(*samples: Samples) -> float:
    """The share of samples that count."""
    return min(0.5, FASTEST / max(1, min(map(len, samples))))


def change_of(base: Samples, new: Samples, share: float) -> tuple[Any, Any]:
    """(change of the times of the fastest but for that of the machine, change of the machine)."""
    (base_s, base_yardstick_s), (new_s, new_yardstick_s) = base.fast(share), new.fast(share)
    machine = new_yardstick_s / base_yardstick_s
    return new_s / base_s / machine**FOLLOWS - 1, machine - 1


def drift(samples: Samples, share: float) -> float:
    """By how much the fastest samples change from the first of them to the last (`guards.drift`)."""
    slowest = sorted(samples.times_s)[math.ceil(share * len(samples)) - 1]
    return guards.drift([float(each) for each in samples.times_s if each <= slowest])


def interval_of(change: Callable[[Any, Any], Any], base: Any, new: Any) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of a change between two runs, which were sampled apart, so not paired."""
    import numpy as np
    from scipy import stats

    if min(len(base), len(new)) < FEWEST:
        return None
    found = stats.bootstrap(
        (np.arange(len(base)), np.arange(len(new))),
        lambda old, fresh, axis=-1: change(base[old], new[fresh]),
        n_resamples=RESAMPLES,
        batch=max(1, AT_ONCE // max(len(base), len(new))),
        method="percentile",
        rng=np.random.default_rng(0),
        vectorized=True,
    ).confidence_interval
    return float(found.low), float(found.high)


def rank_test(base: Samples, new: Samples) -> float:
    """How likely chance alone deals the fastest of all samples, but for the machine, so unevenly to the two runs (Mood
    1950; Fisher's exact test)."""
    import numpy as np
    from scipy import stats

    if min(len(base), len(new)) < 2:
        return 1.0
    share, every = fast_share(base, new), len(base) + len(new)
    scaled = [each.times_s / each.fast(share)[1] ** FOLLOWS for each in (base, new)]
    edge = np.quantile(np.concatenate(scaled), min(0.5, FASTEST / every))
    fast = [int((each <= edge).sum()) for each in scaled]
    slow = [len(each) - count for each, count in zip(scaled, fast, strict=True)]
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
