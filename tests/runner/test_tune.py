"""Searches on recorded sweeps and on made-up ones: what they find, and what it costs."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripectl.runner.tuning.successive_halving import (
    STRATEGIES,
    SearchOutcome,
    exhaustive_search,
    promising_arms,
    successive_halving,
)

SWEEPS = sorted((Path(__file__).parents[2] / "benchmarks" / "sweeps").glob("*.json"))
MIN_SAMPLES = 5


class Recorded:
    """A sweep as it was recorded (benchmarks/tile_sweeps.py): the same runs, in the same order, at the same price."""

    def __init__(self, content: dict) -> None:
        work, self.tiles, self.spent_s = content["workload"], content["tiles"], 0.0
        self.groups = work["kv_heads"]
        self.prior_s: Sequence[float | None] = [None] * len(self.tiles)
        self.next, self.shorts = [0] * len(self.tiles), [0] * len(self.tiles)
        self.kept: list[list[float]] = [[] for _ in self.tiles]

    def take(self, index: int) -> float:
        seconds = self.tiles[index]["samples_s"][self.next[index]]
        self.next[index] += 1
        self.spent_s += seconds
        return seconds

    def pull_short(self, index: int) -> float:
        nth = self.shorts[index]
        self.shorts[index] += 1
        if self.groups == 1:  # no shorter than a whole run: the one that warms up, then such as count as whole ones
            seconds = self.take(index)
            self.kept[index] += [seconds] * (nth > 0)
            return seconds
        runs = self.tiles[index]["short_s"]
        self.spent_s += runs[nth]
        return runs[nth] * self.groups

    def pull_full(self, index: int) -> float:
        if self.kept[index]:
            return self.kept[index].pop(0)
        if self.next[index] == 0:
            self.take(index)
        return self.take(index)

    def median_s(self, index: int | None) -> float:
        assert index is not None
        return statistics.median(self.tiles[index]["samples_s"][1:])


def finish(search) -> SearchOutcome:
    while True:
        try:
            next(search)
        except StopIteration as done:
            return done.value


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_race_finds_what_the_exhaustive_search_finds_in_a_third_of_the_time(path: Path) -> None:
    content = json.loads(path.read_text())
    every, raced = Recorded(content), Recorded(content)
    best, found = (
        finish(exhaustive_search(every, MIN_SAMPLES, 1e9)),
        finish(successive_halving(raced, MIN_SAMPLES, 1e9)),
    )
    assert raced.median_s(found.winner) <= 1.02 * every.median_s(best.winner)
    assert raced.spent_s <= every.spent_s / 3


def test_at_least_five_sweeps_of_a_dozen_tiles_are_recorded() -> None:
    assert len([path for path in SWEEPS if len(json.loads(path.read_text())["tiles"]) >= 12]) >= 5


class Made:
    """Candidates that take what they are made to take, or fail in their short or their whole run."""

    def __init__(self, seconds: Sequence[float], prior_s: Sequence[float | None], fails: dict[int, str]) -> None:
        self.seconds, self.prior_s, self.fails, self.spent_s = seconds, prior_s, fails, 0.0
        self.ran: list[tuple[str, int]] = []

    def run(self, kind: str, index: int, cost: float) -> float | None:
        self.ran.append((kind, index))
        if self.fails.get(index) == kind:
            return None
        self.spent_s += cost * self.seconds[index]
        return self.seconds[index]

    def pull_short(self, index: int) -> float | None:
        return self.run("short", index, 0.25)

    def pull_full(self, index: int) -> float | None:
        return self.run("whole", index, 1.0 if ("whole", index) in self.ran else 2.0)


@st.composite
def fields(draw) -> Made:
    seconds = draw(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=30))
    known = draw(st.lists(st.booleans(), min_size=len(seconds), max_size=len(seconds)))
    prior_s = [each if use else None for each, use in zip(seconds, known, strict=True)]
    fails = draw(st.dictionaries(st.integers(0, len(seconds) - 1), st.sampled_from(["short", "whole"])))
    return Made(seconds, prior_s, fails)


@given(fields())
def test_without_noise_a_race_finds_the_best_of_those_that_run(field: Made) -> None:
    found = finish(successive_halving(field, MIN_SAMPLES, 1e9))
    assert found.winner not in field.fails
    if not field.fails:
        assert found.winner is not None and field.seconds[found.winner] == min(field.seconds)
        assert found.winner == field.seconds.index(min(field.seconds))


@given(fields(), st.floats(0.01, 100.0))
def test_a_race_keeps_to_its_budget_but_for_what_it_has_begun(field: Made, budget_s: float) -> None:
    begun = max(field.seconds)
    found = finish(successive_halving(field, MIN_SAMPLES, budget_s))
    assert field.spent_s <= budget_s + 5 * begun
    assert all(len(samples) <= MIN_SAMPLES for samples in found.samples_s.values())


@given(fields())
def test_equal_numbers_make_equal_choices(field: Made) -> None:
    again = Made(field.seconds, field.prior_s, field.fails)
    assert finish(successive_halving(field, MIN_SAMPLES, 1e9)) == finish(successive_halving(again, MIN_SAMPLES, 1e9))
    assert field.ran == again.ran


@given(fields())
def test_the_exhaustive_search_runs_all_as_often(field: Made) -> None:
    field.fails = {}
    found = finish(exhaustive_search(field, MIN_SAMPLES, 1e9))
    assert {len(samples) for samples in found.samples_s.values()} == {MIN_SAMPLES}
    assert found.winner == field.seconds.index(min(field.seconds))


def test_of_equals_the_first_is_taken() -> None:
    for strategy in STRATEGIES.values():
        assert finish(strategy(Made([2.0, 1.0, 1.0, 1.0], [None] * 4, {}), MIN_SAMPLES, 1e9)).winner == 1


def test_a_prior_that_is_hopeless_is_never_run() -> None:
    assert promising_arms([3.0, None, 1.0, 2.0]) == [2, 3, 1]
    field = Made([3.0, 1.0, 1.5], [3.0, 1.0, 1.5], {})
    finish(successive_halving(field, MIN_SAMPLES, 1e9))
    assert not any(index == 0 for _, index in field.ran)
