"""Hidden and exposed communication, against counting on a grid."""

from hypothesis import given
from hypothesis import strategies as st

from stripectl.core.intervals import common, length, minus, overlap, union, union_s

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


@given(INTERVALS, INTERVALS)
def test_sets_of_intervals_are_sets_of_seconds(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    first, second = union(a), union(b)
    for found, expected in (
        (union(a, b), seconds(a) | seconds(b)),
        (minus(first, second), seconds(a) - seconds(b)),
        (common(first, second), seconds(a) & seconds(b)),
    ):
        assert seconds(found.astype(int).tolist()) == expected
        assert length(found) == len(expected)  # so none of them overlap
        assert (found[1:, 0] >= found[:-1, 1]).all() and (found[:, 0] < found[:, 1]).all()
    assert (first[1:, 0] > first[:-1, 1]).all()  # in order, and none touch


@given(INTERVALS, INTERVALS)
def test_hidden_and_exposed_are_all_there_is(compute: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    found = overlap(compute, windows)
    assert found.hidden_s + found.exposed_s == union_s(windows)
    assert (found.ratio is None) == (not seconds(windows)) and 0 <= (found.ratio or 0) <= 1


@given(INTERVALS, INTERVALS, st.integers(0, 80))
def test_cutting_intervals_changes_nothing(
    compute: list[tuple[int, int]], windows: list[tuple[int, int]], at: int
) -> None:
    def cut(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
        return [part for start, end in intervals for part in ((start, min(at, end)), (max(at, start), end))]

    assert overlap(cut(compute), cut(windows)) == overlap(compute, windows)


@given(INTERVALS, INTERVALS)
def test_order_and_repetition_change_nothing(compute: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    assert overlap(compute[::-1] * 2, windows[::-1] * 2) == overlap(compute, windows)
