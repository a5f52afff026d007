"""Change points of fixed series: where, how large, and what is none."""

import itertools
import math

import numpy as np
import pytest

from stripectl.statistics.change_points import (
    MIN_CHANGE,
    MIN_LEVEL_RUNS,
    MIN_RUNS,
    candidates,
    cheapest_partition,
    level_changes,
)
from tests.support.histories import NOISE


def steps(*levels: tuple[int, float]) -> list[float]:
    """So many runs at each level, with the noise of NOISE."""
    every = [level for count, level in levels for _ in range(count)]
    return [level * noise for level, noise in zip(every, itertools.cycle(NOISE), strict=False)]


@pytest.mark.parametrize("step", [0.95, 1.05, 1.1, 1.2, 3.0])
def test_a_step_is_found_where_it_is(step: float) -> None:
    (found,) = level_changes(steps((20, 1.0), (6, step)), exact=False)
    assert found.at == 20
    assert found.ratio == pytest.approx(step - 1, abs=0.015)
    assert found.interval and found.interval[0] < step - 1 < found.interval[1]


def test_noise_is_no_change() -> None:
    assert level_changes(NOISE, exact=False) == []


@pytest.mark.parametrize("at", [0, 1, 7, 28, 29])
def test_an_outlier_is_no_change(at: int) -> None:
    series = list(NOISE)
    series[at] *= 1.6
    assert level_changes(series, exact=False) == []


def test_two_outliers_are_not_either_and_hide_no_step() -> None:
    series = steps((15, 1.0), (15, 1.1))
    series[4] *= 1.5
    series[22] *= 1.4
    assert [each.at for each in level_changes(series, exact=False)] == [15]


def test_a_fault_that_is_mended_is_two_changes() -> None:
    found = level_changes(steps((12, 1.0), (8, 1.2), (10, 1.0)), exact=False)
    assert [each.at for each in found] == [12, 20]
    assert found[0].ratio and found[0].ratio > 0 > (found[1].ratio or 0)


@pytest.mark.parametrize(
    ("before", "after", "sure"), [(5, 5, True), (4, 5, False), (11, 3, True), (10, 3, False), (25, 2, False)]
)
def test_few_runs_are_sure_of_nothing(before: int, after: int, sure: bool) -> None:
    assert bool(level_changes(steps((before, 1.0), (after, 1.5)), exact=False)) == sure
    assert before + after >= MIN_RUNS or not sure


def test_a_difference_too_small_to_matter_is_none() -> None:
    quiet = [1 + noise / 1000 for noise in NOISE]
    low, high = 1 + MIN_CHANGE / 2, 1 + 2 * MIN_CHANGE
    assert level_changes([*quiet, *(each * low for each in quiet)], exact=False) == []
    assert len(level_changes([*quiet, *(each * high for each in quiet)], exact=False)) == 1


def test_each_difference_of_what_is_exact_is_a_change() -> None:
    found = level_changes([3, 3, 3, 3.0001, 3.0001 * (1 + 1e-12), 2, 3], exact=True)
    assert [(each.at, each.before, each.after) for each in found] == [
        (3, 3, 3.0001),
        (5, 3.0001 * (1 + 1e-12), 2),
        (6, 2, 3),
    ]
    assert all(each.interval is None for each in found)


@pytest.mark.parametrize("exact", [True, False])
def test_what_does_not_vary_does_not_change(exact: bool) -> None:
    for series in ([], [1.0], [2.0] * 30, [0.0] * 30):
        assert level_changes(series, exact) == []


def test_levels_without_noise_and_from_zero() -> None:
    (found,) = level_changes([1.0] * 6 + [1.2] * 6, exact=False)
    assert (found.at, found.before, found.after) == (6, 1.0, 1.2)
    (found,) = level_changes([0.0] * 10 + [0.35] * 10, exact=False)
    assert (found.at, found.ratio, found.interval) == (10, None, None)


def test_candidates_leave_levels_of_the_fewest_runs() -> None:
    series = steps(*[(4, 1 + 0.2 * (at % 2)) for at in range(8)])
    ends = [0, *candidates(series), len(series)]
    assert len(ends) > 2 and all(later - earlier >= MIN_LEVEL_RUNS for earlier, later in itertools.pairwise(ends))


def test_a_unit_changes_nothing() -> None:
    series = steps((15, 1.0), (15, 1.1))
    assert [each.at for each in level_changes([value * 1e-6 for value in series], exact=False)] == [15]
    found = level_changes([math.pi * value for value in series], exact=False)
    assert found[0].ratio == pytest.approx(level_changes(series, exact=False)[0].ratio)


@pytest.mark.parametrize("penalty", [0.0, 0.3, 1.5, 50.0])
@pytest.mark.parametrize("count", [MIN_LEVEL_RUNS, 2 * MIN_LEVEL_RUNS - 1, 11, 13])
def test_no_partition_is_cheaper(count: int, penalty: float) -> None:
    rng, width = np.random.default_rng(count), 0.05
    signal = np.where(np.arange(count) < count // 2, 0.0, 0.2) + 0.05 * rng.standard_normal(count)

    def cost(parted: tuple[int, ...]) -> float:
        total = penalty * len(parted)
        for first, end in itertools.pairwise([0, *parted, count]):
            runs = signal[first:end]
            total += len(runs) - np.exp(-((runs[:, None] - runs) ** 2) / (2 * width**2)).sum() / len(runs)
        return total

    places = (
        each for changed in range(count // MIN_LEVEL_RUNS) for each in itertools.combinations(range(1, count), changed)
    )
    able = [p for p in places if all(b - a >= MIN_LEVEL_RUNS for a, b in itertools.pairwise([0, *p, count]))]
    assert cost(tuple(cheapest_partition(signal, width, penalty))) == pytest.approx(min(map(cost, able)))
