"""Pairs of shards against brute force from positions: parts of keys, packed documents, cached prefixes, live rounds."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stripectl.core.layout import MASKS, MaskBlock, Tile, Window, layouts
from stripectl.core.mask_tiles import count_pairs, count_tiles, tile_ends
from stripectl.core.mask_tiles import is_live as seen
from stripectl.core.sequence_sharding import SequenceSharding, document_lookup
from stripectl.execute.reference import visible_keys

SHARDS, ROWS = 4, 24
SEQ_LEN = SHARDS * ROWS
NAMES = layouts.names()
WINDOWS = [*MASKS.values(), Window(30, 0), Window(3, 4)]
STARTS = [np.array([0]), np.array([0, 5, 40, 41, 77]), np.arange(0, SEQ_LEN, 7)]


def live(bands: list[MaskBlock], queries: int, keys: int) -> np.ndarray:
    """bool[queries, keys]: what the bands of a pair keep."""
    keep = np.zeros((queries, keys), bool)
    for band in bands:
        i, j = np.arange(band.rows)[:, None], np.arange(band.cols)
        own = (j >= i + band.low) & (j <= i + band.high)  # written again: `layout.is_live` is what is tested
        if band.limits is not None:
            first, end = (limit[:, None] for limit in band.limits)
            own &= (j >= first) & (j < end)
        assert (own == seen(band, i, j, band.limits and [limit[:, None] for limit in band.limits])).all()
        keep[band.row : band.row + band.rows, band.col : band.col + band.cols] |= own
    return keep


def keeps_alignment(band: MaskBlock) -> bool:
    side = band.aligned
    return band.rows % side == band.cols % side == 0 and (side == 1 or band.high % side in (0, side - 1))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("starts", STARTS, ids=len)
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_pair_keeps_what_the_mask_and_the_documents_keep(name: str, window, starts, parts: int) -> None:
    sharding = SequenceSharding.square(layouts[name], window, SHARDS, ROWS)
    whole = visible_keys(SEQ_LEN, SEQ_LEN, window, starts)
    queries, keys = (order.reshape(SHARDS, -1) for order in sharding.orders())
    documents, each = document_lookup(starts, SEQ_LEN), ROWS // parts
    # The diagonals of a causal mask run through the corners of all pieces.
    size = math.gcd(ROWS // layouts[name].pieces, each)
    aligned = size if window == MASKS["causal"] else 1
    for me, src, part in np.ndindex(SHARDS, SHARDS, parts):
        bands = sharding.bands(me, src, (part, parts), documents)
        expected = whole[np.ix_(queries[me], keys[src][part * each : (part + 1) * each])]
        assert (live(bands, ROWS, each) == expected).all()
        assert count_pairs(bands) == expected.sum()
        assert all(keeps_alignment(band) and band.aligned == aligned for band in bands)


BEHIND = [  # queries that are not dealt need neighbours as far apart as those of the keys
    (name, queries, dealt)
    for name in NAMES
    for queries, dealt in ((8, True), (16, True), (1, False), (5, False))
    if dealt or queries == 1 or layouts[name].step(SHARDS) == 1
]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("name", "queries", "dealt"), BEHIND)
def test_queries_behind_a_prefix(name: str, window, queries: int, dealt: bool) -> None:
    rows = queries // SHARDS if dealt else queries
    sharding = SequenceSharding(layouts[name], window, SHARDS, ROWS, rows, dealt)
    whole = visible_keys(queries, SEQ_LEN, window)
    order, keys = sharding.orders()
    order = order.reshape(SHARDS if dealt else 1, -1)
    for me, src in np.ndindex(len(order), SHARDS):
        expected = whole[np.ix_(order[me], keys.reshape(SHARDS, -1)[src])]
        bands = sharding.bands(me, src)
        assert (live(bands, rows, ROWS) == expected).all()
        assert all(keeps_alignment(band) for band in bands)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(NAMES),
    st.sampled_from(WINDOWS),
    st.sets(st.integers(1, SEQ_LEN - 1), max_size=12),
    st.builds(Tile, st.integers(1, 13), st.integers(1, 13)),
)
def test_tiles_by_kind_with_documents(name: str, window, edges: set[int], tile: Tile) -> None:
    """A tile with a live score is computed, and one that is called whole has no other."""
    sharding, documents = (
        SequenceSharding.square(layouts[name], window, SHARDS, ROWS),
        document_lookup(np.array([0, *sorted(edges)]), SEQ_LEN),
    )
    me, src = np.arange(SHARDS), (np.arange(SHARDS) + 1) % SHARDS
    together = count_tiles(sharding.bands(me, src, documents=documents, rows=tile_ends(tile)), tile)
    for device in range(SHARDS):
        bands = sharding.bands(device, src[device], documents=documents)
        counted = count_tiles(sharding.bands(device, src[device], documents=documents, rows=tile_ends(tile)), tile)
        assert [np.broadcast_to(kind, SHARDS)[device] for kind in together] == list(counted)
        any_live = all_live = 0
        for band in bands:
            keep = live([band._replace(row=0, col=0)], band.rows, band.cols)
            for i in range(0, band.rows, tile.block_q):
                for j in range(0, band.cols, tile.block_kv):
                    block = keep[i : i + tile.block_q, j : j + tile.block_kv]
                    any_live += block.any()
                    all_live += block.all() and block.shape == (
                        min(tile.block_q, band.rows),
                        min(tile.block_kv, band.cols),
                    )
        assert counted.computed >= any_live
        assert counted.whole <= all_live


@pytest.mark.parametrize(
    ("name", "window", "onward", "back"),
    [
        ("contiguous", MASKS["causal"], SHARDS, SHARDS),
        ("contiguous", Window(ROWS, 0), 2, SHARDS),
        ("contiguous", Window(ROWS + 1, 0), 3, SHARDS),
        ("contiguous", Window(0, 0), 1, 1),
        ("striped", Window(ROWS, 0), SHARDS, SHARDS),
    ],
)
def test_rounds_end_with_the_last_that_anybody_needs(name: str, window, onward: int, back: int) -> None:
    sharding = SequenceSharding.square(layouts[name], window, SHARDS, ROWS)
    assert (sharding.rounds(), sharding.rounds(-1)) == (onward, back)
