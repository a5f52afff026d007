"""Bounds against closed forms and the striped attention paper's published table."""

import csv

import pytest

from stripectl.core.bounds import attention_speedup, ring_work, theoretical_max_speedup
from stripectl.core.layout import MASKS, Tile, layouts
from stripectl.util.files import data_folder

CAUSAL = MASKS["causal"]
PUBLISHED = list(
    csv.DictReader((data_folder("profiles") / "published" / "striped-attention.csv").read_text().splitlines())
)


def test_all_published_rows_are_there() -> None:
    assert len(PUBLISHED) == 137


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: "-".join([*list(row.values())[:5]]))
def test_tms_reproduces_the_paper(row: dict[str, str]) -> None:
    cost = 2.0 if row["hw"] == "A100" else 1.0
    model, seq_len, ring = row["model"].lower(), int(row["n_seq"]), int(row["sp"])
    found = theoretical_max_speedup(model=model, seq_len=seq_len, ring=ring, attention_cost=cost, mlp="paper")
    assert found == pytest.approx(float(row["tms_published"]), abs=0.005)


def test_swiglu_counts_three_matrices() -> None:
    both = [theoretical_max_speedup(model="1b", seq_len=2**18, ring=8, mlp=mlp) for mlp in ("paper", "swiglu")]
    assert 1 < both[1] < both[0]


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
