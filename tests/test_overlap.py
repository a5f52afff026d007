"""Hidden and exposed communication, against counting on a grid."""

from hypothesis import given
from hypothesis import strategies as st

from stripectl.overlap import overlap, union_s

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda x: (x[0], x[0] + x[1])), max_size=8)


def seconds(intervals: list[tuple[int, int]]) -> set[int]:
    return {second for start, end in intervals for second in range(start, end)}


@given(INTERVALS, INTERVALS)
def test_it_is_what_counting_seconds_gives(compute: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    found, busy, sent = overlap(compute, windows), seconds(compute), seconds(windows)
    assert union_s(windows) == len(sent)
    assert (found.hidden_s, found.exposed_s) == (len(busy & sent), len(sent - busy))
    assert found.ratio == (len(busy & sent) / len(sent) if sent else None)


def test_transfers_side_by_side_count_once() -> None:
    assert overlap([(0, 10)], [(5, 15), (5, 15)]).ratio == 0.5
