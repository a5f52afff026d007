"""Intervals of medians and of their ratios, by the percentile bootstrap (Efron 1979): equal to `scipy.stats.bootstrap`,
number by number, in a tenth of its time, because a large run needs hundreds of thousands of intervals."""

import functools
import statistics
from collections.abc import Sequence
from typing import Any

RESAMPLES = 2000
MIN_SAMPLES = 3  # samples for an interval
TAIL = (1 - 0.95) / 2 * 100  # percent outside an interval, on either side


def medians(samples_s: Sequence[float]) -> Any:
    """(RESAMPLES,): medians of resamples, with the same choice of indices for equal numbers of samples."""
    import numpy as np

    count = len(samples_s)
    ordered = np.sort(np.asarray(samples_s)[_indices(count)], axis=1)
    return (ordered[:, (count - 1) // 2] + ordered[:, count // 2]) / 2


@functools.lru_cache(32)
def _indices(count: int) -> Any:
    import numpy as np

    return np.random.default_rng(0).integers(0, count, (RESAMPLES, count))


def percentile_interval(resampled: Any) -> tuple[float, float]:
    """The middle 95 % of a statistic over resamples."""
    import numpy as np

    low, high = np.percentile(resampled, (TAIL, 100 - TAIL))
    return float(low), float(high)


def median_interval(samples_s: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """(median, its 95 % bootstrap interval); no interval from fewer than three samples."""
    median = statistics.median(samples_s)
    return median, percentile_interval(medians(samples_s)) if len(samples_s) >= MIN_SAMPLES else None


def ratio_interval(slow_s: Sequence[float], fast_s: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of the ratio of medians. Samples of plans that are compared are interleaved, so the
    i-th of both were taken together and are resampled together."""
    count = min(len(slow_s), len(fast_s))
    return _ratio_interval(tuple(slow_s[:count]), tuple(fast_s[:count])) if count >= MIN_SAMPLES else None


@functools.lru_cache(2**18)  # each is used several times
def _ratio_interval(slow_s: tuple[float, ...], fast_s: tuple[float, ...]) -> tuple[float, float]:
    return percentile_interval(medians(slow_s) / medians(fast_s))
