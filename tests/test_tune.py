"""Searches on recorded sweeps and on made-up ones: what they find, and what it costs."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest

from stripectl.tune import Outcome, exhaustive, race

SWEEPS = sorted((Path(__file__).parent.parent / "benchmarks" / "sweeps").glob("*.json"))
MIN_SAMPLES = 5


class Recorded:
    """A sweep as it was recorded (benchmarks/tile_sweeps.py): the same runs, in the same order, at the same price."""

    def __init__(self, content: dict) -> None:
        work, self.tiles, self.spent_s = content["workload"], content["tiles"], 0.0
        self.groups = work["kv_heads"]
        self.prior_s: Sequence[float | None] = [None] * len(self.tiles)
        self.next = [0] * len(self.tiles)

    def take(self, index: int) -> float:
        seconds = self.tiles[index]["samples_s"][self.next[index]]
        self.next[index] += 1
        self.spent_s += seconds
        return seconds

    def short(self, index: int) -> float:
        if self.groups == 1:  # no shorter than a whole run, which it warms up for
            return self.take(index)
        warm_s, seconds = self.tiles[index]["short_s"][:2]
        self.spent_s += warm_s + seconds
        return seconds * self.groups

    def whole(self, index: int) -> float:
        if self.next[index] == 0:
            self.take(index)
        return self.take(index)

    def median_s(self, index: int | None) -> float:
        assert index is not None
        return statistics.median(self.tiles[index]["samples_s"][1:])


def finish(search) -> Outcome:
    while True:
        try:
            next(search)
        except StopIteration as done:
            return done.value


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_race_finds_what_the_exhaustive_search_finds_in_a_third_of_the_time(path: Path) -> None:
    content = json.loads(path.read_text())
    every, raced = Recorded(content), Recorded(content)
    best, found = finish(exhaustive(every, MIN_SAMPLES, 1e9)), finish(race(raced, MIN_SAMPLES, 1e9))
    assert raced.median_s(found.winner) <= 1.02 * every.median_s(best.winner)
    assert raced.spent_s <= every.spent_s / 3


def test_at_least_five_sweeps_of_a_dozen_tiles_are_recorded() -> None:
    assert len([path for path in SWEEPS if len(json.loads(path.read_text())["tiles"]) >= 12]) >= 5
