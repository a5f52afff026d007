"""Bounds against closed forms."""

import pytest

from stripectl.core.bounds import attention_speedup, ring_work
from stripectl.core.layout import MASKS, Tile, layouts

CAUSAL = MASKS["causal"]


@pytest.mark.parametrize(("n", "c"), [(1, 8), (2, 8), (8, 64), (5, 10)])
def test_critical_paths_have_their_closed_forms(n: int, c: int) -> None:
    paths = {name: ring_work(layouts[name], n, c, CAUSAL, Tile(1, 1)).critical_pairs for name in layouts.names()}
    assert paths["contiguous"] == c * (c + 1) // 2 + (n - 1) * c * c
    assert paths["striped"] == n * c * (c + 1) // 2
    assert paths["zigzag"] == (n - 1) * c * c // 2 + c * (c + 1) // 2


def test_balanced_layouts_approach_two_minus_one_over_n() -> None:
    for name in ("striped", "zigzag"):
        assert attention_speedup(layouts[name], 8, 2**15, CAUSAL) == pytest.approx(2 - 1 / 8, rel=1e-4)


@pytest.mark.parametrize(("tiles", "gain"), [(1, 1.00), (2, 1.29), (4, 1.52), (8, 1.68), (16, 1.77)])
def test_tiles_limit_the_gain_of_striped(tiles: int, gain: float) -> None:
    assert attention_speedup(layouts["striped"], 8, tiles * 64, CAUSAL, Tile(64, 64)) == pytest.approx(gain, abs=0.005)


def test_zigzag_keeps_its_gain_with_two_tiles() -> None:
    assert attention_speedup(layouts["zigzag"], 8, 128, CAUSAL, Tile(64, 64)) == pytest.approx(1.82, abs=0.005)


def test_full_masks_leave_nothing_to_gain() -> None:
    assert attention_speedup(layouts["striped"], 8, 128, MASKS["full"], Tile(64, 64)) == 1.0
