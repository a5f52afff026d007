"""Documents written as lengths, starts and segment ids."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stripectl import Packing

BATCHES = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=4)


@given(BATCHES, st.integers(0, 5))
def test_each_way_of_writing_gives_the_others(lengths: list[list[int]], padding: int) -> None:
    seq_len = max(map(sum, lengths)) + padding
    packing = Packing.from_lengths(lengths, seq_len)
    for row, own, ids in zip(lengths, packing.lengths, packing.segment_ids, strict=True):
        rest = seq_len - sum(row)
        whole = [*row, rest] if rest else row
        assert own[own > 0].tolist() == whole
        assert ids.tolist() == [i + 1 for i, length in enumerate(whole) for _ in range(length)]
    for again in (
        Packing.from_starts(packing.starts, seq_len),
        Packing.from_segment_ids(packing.segment_ids),
        Packing.from_lengths(packing.lengths),
    ):
        assert again.seq_len == seq_len and np.array_equal(again.starts, packing.starts)


def test_padding_follows_the_starts() -> None:
    packing = Packing.from_lengths([[4, 2], [6]])
    assert packing.starts.tolist() == [[0, 4], [0, 6]] and packing.starts.dtype == np.int32
    assert packing.lengths.tolist() == [[4, 2], [6, 0]]
    assert packing.segment_ids.tolist() == [[1, 1, 1, 1, 2, 2], [1] * 6]
