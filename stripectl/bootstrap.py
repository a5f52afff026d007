"""Medians of samples with their bootstrap intervals. SciPy is imported where it is used: it takes a second."""

from collections.abc import Sequence

RESAMPLES = 2000


def median_interval(samples_s: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """(median, its 95 % bootstrap interval); no interval from fewer than three samples."""
    import numpy as np
    from scipy import stats

    if len(samples_s) < 3:
        return float(np.median(samples_s)), None
    found = stats.bootstrap(
        (samples_s,), np.median, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(0)
    )
    low, high = found.confidence_interval
    return float(np.median(samples_s)), (float(low), float(high))


def ratio_interval(slow_s: Sequence[float], fast_s: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of the ratio of medians. Samples of plans that are compared are interleaved, so the
    i-th of both were taken together and are resampled together."""
    import numpy as np
    from scipy import stats

    count = min(len(slow_s), len(fast_s))
    if count < 3:
        return None
    found = stats.bootstrap(
        (slow_s[:count], fast_s[:count]),
        lambda a, b, axis=-1: np.median(a, axis) / np.median(b, axis),
        paired=True,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    low, high = found.confidence_interval
    return float(low), float(high)
