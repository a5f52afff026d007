"""Finds the fastest of many candidates for little device time.

`exhaustive_search` runs every candidate as often as each other. `successive_halving` ranks them by what is known before
anything runs, lets all that have a chance do a short run, and the best of those whole runs in turns, of which the
slower half drops out again and again, until the winner is separated (Karnin et al. 2013; Jamieson and Talwalkar,
arXiv:1502.07943).

Candidates are numbers; what they are, and where seconds come from, is known to the `Arms`. So what was recorded replays
through the code that runs. Every choice is made on the numbers of the arms alone, and of equals the first is taken:
parents that see the same numbers choose the same. Both searches are generators: they yield the number of each candidate
that something new is known of, and return a `SearchOutcome`.
"""

import statistics
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stripectl.results.measurement import ratio_interval

HOPELESS = 2.0  # times the best prior: no kernel makes up for that much
KEEP_WITHIN = 1.5  # times the best short run: what is slower there is slower in whole runs
REPEAT_WITHIN = (1.6, 1.4, 1.3)  # times the best short run so far: what is faster does another
MIN_FULL_ARMS = 4  # whole runs are for at least so many candidates, or for a quarter of them
HALVE_EVERY = 2  # turns
RUNS_OF_LAST_ARM = 3  # whole runs of one that is left alone: fewer have no interval
MAX_TIME_SHARE = (
    0.3  # of what the exhaustive search takes: a race that takes more is none; but two can always be compared
)


class Arms(Protocol):
    """Candidates that can be run."""

    @property
    def prior_s(self) -> Sequence[float | None]:
        """By candidate, a time that is known before it runs, in whatever unit, or None."""
        ...

    @property
    def spent_s(self) -> float:
        """Seconds that devices have run so far, warming up included."""
        ...

    def pull_short(self, index: int) -> float | None:
        """What a short run says that a whole one takes, the first as it warms up; None: it is refused or fails."""
        ...

    def pull_full(self, index: int) -> float | None:
        """Seconds of a whole run, after one that warms up; None: it is refused or fails."""
        ...


@dataclass
class SearchOutcome:
    """What a search found: the candidates that were left, fastest first, and the samples of all that ran."""

    left: list[int] = field(default_factory=list)
    samples_s: dict[int, list[float]] = field(default_factory=dict)
    separated: bool = False  # whether the first is faster than the others that were left, at 95 %

    @property
    def winner(self) -> int | None:
        return self.left[0] if self.left else None

    def median_s(self, index: int) -> float:
        return statistics.median(self.samples_s[index])

    def rank(self, indices: Sequence[int]) -> list[int]:
        return sorted(indices, key=lambda i: (self.median_s(i), i))


Search = Generator[int, None, SearchOutcome]
Strategy = Callable[[Arms, int, float], Search]


def promising_arms(prior_s: Sequence[float | None]) -> list[int]:
    """Candidates by their prior, those without one last; without those whose prior is hopeless. The very first, which
    others are compared with, stays first."""
    best = min((known for known in prior_s if known is not None), default=0.0)
    hopeful = [i for i, known in enumerate(prior_s) if known is None or known <= HOPELESS * best]
    return sorted(hopeful, key=lambda i: (i > 0, prior_s[i] is None, prior_s[i] or 0.0, i))


def are_separated(samples_s: Sequence[Sequence[float]]) -> bool:
    """Whether each of the others takes longer than the first: intervals of paired ratios of medians lie above 1."""
    intervals = (ratio_interval(other, samples_s[0]) for other in samples_s[1:])
    return all(interval is not None and interval[0] > 1 for interval in intervals)


def exhaustive_search(field: Arms, min_samples: int, budget_s: float) -> Search:
    """`min_samples` whole runs of every candidate, in turns; fewer where another turn would go over the budget."""
    outcome = SearchOutcome(left=list(range(len(field.prior_s))))
    for turn in range(min_samples):
        before_s = field.spent_s
        yield from _turn(field, outcome)
        took_s = field.spent_s - before_s
        if field.spent_s + (took_s if turn else took_s / 2) > budget_s:  # the first turn also warms up
            break
    outcome.left = outcome.rank(outcome.left)
    outcome.separated = len(outcome.left) > 0 and are_separated([outcome.samples_s[i] for i in outcome.left])
    return outcome


def successive_halving(field: Arms, min_samples: int, budget_s: float) -> Search:
    """Short runs, then halving, within the budget and a share of what the exhaustive search would take; no candidate
    gets more than `min_samples` whole runs."""
    outcome = SearchOutcome()
    short_s = yield from _short_runs(field, min_samples, budget_s)
    ranked = sorted(short_s, key=lambda i: (short_s[i], i))
    close = [i for i in ranked if short_s[i] <= KEEP_WITHIN * short_s[ranked[0]]]
    outcome.left = close[: max(MIN_FULL_ARMS, -(-len(field.prior_s) // 4))]
    for turn in range(1, min_samples + 1):
        runs = 2 if turn == 1 else 1  # with the one that warms up
        expected_s = _expected(short_s, outcome)
        rest_s = min(budget_s, _limit(expected_s, min_samples)) - field.spent_s
        outcome.left = _affordable(outcome.left, expected_s, runs, rest_s)
        if turn > RUNS_OF_LAST_ARM and len(outcome.left) < 2:
            break
        yield from _turn(field, outcome)
        outcome.left = outcome.rank(outcome.left)
        outcome.separated = are_separated([outcome.samples_s[i] for i in outcome.left])
        if not outcome.left or (outcome.separated and len(outcome.left) > 1):
            break
        if turn % HALVE_EVERY == 0 and len(outcome.left) > 2:
            outcome.left = outcome.left[: -(-len(outcome.left) // 2)]
    return outcome


def _short_runs(field: Arms, min_samples: int, budget_s: float) -> Generator[int, None, dict[int, float]]:
    """The median of each candidate's short runs. All that have a chance do one, those near the best more, in turns,
    while half of what the race may take is left for whole runs."""
    runs_s, short_s = dict[int, list[float]](), dict[int, float]()
    running = promising_arms(field.prior_s)
    for near in REPEAT_WITHIN:
        before_s = field.spent_s
        for index in running:
            if short_s and field.spent_s > budget_s:
                return short_s
            seconds = field.pull_short(index)
            if seconds is None:
                short_s.pop(index, None)
            else:
                runs_s.setdefault(index, []).append(seconds)
                short_s[index] = statistics.median(runs_s[index])
            yield index
        took_s, ran = field.spent_s - before_s, [index for index in running if index in short_s]
        running = [index for index in ran if short_s[index] <= near * min(short_s.values())]
        next_s = took_s * sum(short_s[i] for i in running) / (sum(short_s[i] for i in ran) or 1.0)
        if len(running) < 2 or field.spent_s + next_s > _limit(short_s, min_samples) / 2:
            break
    return short_s


def _expected(short_s: Mapping[int, float], outcome: SearchOutcome) -> dict[int, float]:
    """What a whole run of each should take: as its short runs say, by as much as those are off where both are known."""
    off = [outcome.median_s(i) / short_s[i] for i in outcome.samples_s]
    return {index: seconds * (statistics.median(off) if off else 1.0) for index, seconds in short_s.items()}


def _limit(expected_s: Mapping[int, float], min_samples: int) -> float:
    """Seconds that a race may take: a share of what whole runs of all would, but enough to compare two."""
    every_s = sorted(expected_s.values())
    return max(MAX_TIME_SHARE * sum(every_s), sum(every_s[:2])) * (min_samples + 1)


STRATEGIES: dict[str, Strategy] = {"race": successive_halving, "exhaustive": exhaustive_search}


def _turn(field: Arms, outcome: SearchOutcome) -> Search:
    """One whole run of each that is left; those that fail drop out."""
    for index in list(outcome.left):
        seconds = field.pull_full(index)
        if seconds is None:
            outcome.left.remove(index)
            outcome.samples_s.pop(index, None)
        else:
            outcome.samples_s.setdefault(index, []).append(seconds)
        yield index
    return outcome


def _affordable(left: Sequence[int], expected_s: Mapping[int, float], runs: int, rest_s: float) -> list[int]:
    """The first of those that are left, as many as can do so many runs in the rest of the time; at least one."""
    kept: list[int] = []
    for index in left:
        rest_s -= runs * expected_s[index]
        if rest_s < 0 and kept:
            break
        kept.append(index)
    return kept
