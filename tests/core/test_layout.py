"""Layouts against brute force from positions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stripectl.core.layout import MASKS, UNBOUNDED, MaskBlock, Tile, Window, layouts
from stripectl.core.mask_tiles import count_pairs, count_tiles
from stripectl.core.sequence_sharding import SequenceSharding

NAMES = layouts.names()
WINDOWS = [*MASKS.values(), Window(5, 0), Window(3, 4)]


def kept(bands: list[MaskBlock], rows: int) -> np.ndarray:
    """bool[rows, rows]: what the bands of a pair of shards keep."""
    keep = np.zeros((rows, rows), bool)
    for band in bands:
        i, j = np.arange(band.rows)[:, None], np.arange(band.cols)
        live = (j >= i + int(band.low)) & (j <= i + int(band.high))
        keep[band.row : band.row + band.rows, band.col : band.col + band.cols] |= live
    return keep


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shards", [1, 2, 3, 4, 8])
def test_every_position_lies_on_one_shard(name: str, shards: int) -> None:
    positions = layouts[name].positions(shards, 12)
    assert sorted(positions.reshape(-1)) == list(range(12 * shards))
    natural = np.arange(12 * shards)
    sharded = natural[layouts[name].permutation(shards, 12 * shards)]
    assert (sharded[layouts[name].inverse(shards, 12 * shards)] == natural).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shards", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("window", WINDOWS)
def test_bands_keep_what_positions_say(name: str, shards: int, window: Window) -> None:
    layout, rows = layouts[name], 8
    positions = layout.positions(shards, rows)
    for me in range(shards):
        for src in range(shards):
            distance = positions[src] - positions[me][:, None]
            expected = np.ones((rows, rows), bool)
            if window.left is not None:
                expected &= distance >= -window.left
            if window.right is not None:
                expected &= distance <= window.right
            assert (kept(SequenceSharding.square(layout, window, shards, rows).bands(me, src), rows) == expected).all()


@pytest.mark.parametrize("name", NAMES)
def test_bands_of_all_devices_at_once_are_those_of_each(name: str) -> None:
    me = np.arange(4)
    together = SequenceSharding.square(layouts[name], MASKS["causal"], 4, 8).bands(me, (me + 1) % 4)
    for device in range(4):
        alone = SequenceSharding.square(layouts[name], MASKS["causal"], 4, 8).bands(device, (device + 1) % 4)
        for band, one in zip(together, alone, strict=True):
            assert np.broadcast_to(band.low, 4)[device] == one.low
            assert np.broadcast_to(band.high, 4)[device] == one.high


limits = st.one_of(st.integers(-40, 40), st.sampled_from([-UNBOUNDED, UNBOUNDED]))


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 9), st.integers(1, 9), limits, limits)
@settings(max_examples=400)
def test_tiles_are_counted_by_what_they_hold(
    rows: int, cols: int, block_q: int, block_kv: int, low: int, high: int
) -> None:
    tile, band = Tile(min(block_q, rows), min(block_kv, cols)), MaskBlock(0, 0, rows, cols, low, max(low, high))
    i, j = np.arange(rows)[:, None], np.arange(cols)
    keep = (j >= i + band.low) & (j <= i + band.high)
    live = whole = total = visited = 0
    for row in range(0, rows, tile.block_q):
        cells = [keep[row : row + tile.block_q, col : col + tile.block_kv] for col in range(0, cols, tile.block_kv)]
        total += len(cells)
        live += sum(cell.any() for cell in cells)
        whole += sum(cell.all() and cell.shape == tile.sides for cell in cells)
        visited += any(cell.any() for cell in cells)
    counts = count_tiles([band], tile)
    assert counts.computed == live
    assert counts.whole == whole
    assert counts.dead == total - live
    assert counts.rows == visited
    assert count_pairs([band]) == keep.sum()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mask", MASKS)
def test_pairs_of_all_shards_are_the_mask(name: str, mask: str) -> None:
    shards, rows = 4, 16
    me, sharding = np.arange(shards), SequenceSharding.square(layouts[name], MASKS[mask], shards, rows)
    total = sum(int(np.broadcast_to(count_pairs(sharding.bands(me, src)), shards).sum()) for src in range(shards))
    length = shards * rows
    assert total == (length * (length + 1) // 2 if mask == "causal" else length**2)


def test_unsupported_names_the_nearest_length() -> None:
    reason = layouts["zigzag"].why_unsupported(8191, 8)
    assert str(reason) == (
        "zigzag needs a multiple of 2 rows per shard; 8191 over 8 shards gives 1023.875. Try --seqlen 8192."
    )
    assert layouts["striped"].why_unsupported(8192, 8) is None


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
@pytest.mark.parametrize("name", ["contiguous", "zigzag"])
def test_adjacent_runs_hold_the_positions_before_and_behind(name: str, shards: int) -> None:
    layout, rows = layouts[name], 4 * layouts[name].pieces
    pieces = layout.positions(shards, rows).reshape(shards, layout.pieces, -1)
    for run in range(layout.pieces):
        neighbours = zip(layout.adjacent_runs(run, shards), layout.adjacent_runs(run, shards, 1), strict=True)
        for shard, (before, behind) in enumerate(neighbours):
            first, last = pieces[shard, run, 0], pieces[shard, run, -1]
            assert layout.run_places(shard, shards)[run] == first // 4
            assert (before is None, behind is None) == (first == 0, last == shards * rows - 1)
            assert before is None or pieces[*before, -1] == first - 1
            assert behind is None or pieces[*behind, 0] == last + 1
