"""Bootstrap intervals against those of scipy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stripectl.statistics.intervals import RESAMPLES, median_interval, ratio_interval


@given(st.lists(st.floats(1e-6, 1e3), min_size=3, max_size=12), st.lists(st.floats(1e-6, 1e3), min_size=3, max_size=12))
def test_intervals_are_those_of_scipy(slow_s: list[float], fast_s: list[float]) -> None:
    count = min(len(slow_s), len(fast_s))
    asked = {"n_resamples": RESAMPLES, "method": "percentile", "vectorized": True}
    ratio = stats.bootstrap(
        (slow_s[:count], fast_s[:count]),
        lambda a, b, axis=-1: np.median(a, axis) / np.median(b, axis),
        paired=True,
        rng=np.random.default_rng(0),
        **asked,
    ).confidence_interval
    assert ratio_interval(slow_s, fast_s) == pytest.approx(tuple(ratio), rel=1e-9)
    alone = stats.bootstrap((slow_s,), np.median, rng=np.random.default_rng(0), **asked).confidence_interval
    median, interval = median_interval(slow_s)
    assert median == pytest.approx(float(np.median(slow_s)), rel=1e-12)
    assert interval == pytest.approx(tuple(alone), rel=1e-9)
