"""The drift of samples against series whose drift is known."""

import numpy as np
import pytest

from stripectl.statistics.drift import MIN_SAMPLES, drift


@pytest.mark.parametrize("change", [-0.2, 0.1, 0.5])
def test_a_straight_line_drifts_by_its_rise_over_its_middle(change: float) -> None:
    samples_s = np.linspace(1.0 - change / 2, 1.0 + change / 2, 21).tolist()
    assert drift(samples_s) == pytest.approx(change)


def test_one_outlier_changes_a_drift_little() -> None:
    samples_s = np.linspace(0.9, 1.1, 21).tolist()
    samples_s[3] = 5.0
    assert drift(samples_s) == pytest.approx(0.2, abs=0.02)


def test_noise_without_an_order_is_no_drift() -> None:
    found = [drift((1 + 0.05 * np.random.default_rng(seed).standard_normal(30)).tolist()) for seed in range(200)]
    assert sum(each != 0.0 for each in found) <= 8  # a hundredth of 200, and chance


def test_few_samples_have_no_drift() -> None:
    assert drift(np.linspace(1.0, 2.0, MIN_SAMPLES - 1).tolist()) == 0.0
