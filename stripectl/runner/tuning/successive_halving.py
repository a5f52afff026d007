"""Finds the fastest of many candidates for little device time.

`exhaustive_search` runs all candidates equally often. `successive_halving` ranks them by their priors before anything
runs, gives a short run to each that has a chance, and full runs in alternation to the best, of which the slower half is
dropped repeatedly until the winner is separated (Karnin et al. 2013; Jamieson and Talwalkar, arXiv:1502.07943).

Candidates are numbers; `Arms` knows what they are and where seconds come from, so recordings can be replayed through
the same code. Every choice depends only on the numbers of the arms, and ties go to the first: processes that see the
same numbers make the same choices. Both searches are generators: they yield the number of each candidate about which
something new is known, and return a `SearchOutcome`.
"""

import statistics
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

from stripectl.results.backend import Arms
from stripectl.statistics.intervals import ratio_interval

HOPELESS = 2.0  # times the best prior: no kernel makes up for this factor
KEEP_WITHIN = 1.5  # times the best short run: a slower candidate is slower in full runs too
REPEAT_WITHIN = (1.6, 1.4, 1.3)  # times the best short run so far: faster candidates get another short run
MIN_FULL_ARMS = 4  # at least this many candidates, or a quarter of all, get full runs
HALVE_EVERY = 2  # rounds
RUNS_OF_LAST_ARM = 3  # full runs of the last candidate: with fewer it has no interval
MAX_TIME_SHARE = (
    0.3  # of the time of an exhaustive search, so that a race pays; but two candidates can always be compared
)


@dataclass
class SearchOutcome:
    """The result of a search: the remaining candidates, fastest first, and the samples of all that ran."""

    left: list[int] = field(default_factory=list[int])
    samples_s: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    separated: bool = False  # whether the first is faster than the other remaining candidates, at 95 %

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
    """Candidates by their prior, those without one last, and without hopeless candidates. The very first, with which
    others are compared, stays first."""
    best = min((known for known in prior_s if known is not None), default=0.0)
    hopeful = [i for i, known in enumerate(prior_s) if known is None or known <= HOPELESS * best]
    return sorted(hopeful, key=lambda i: (i > 0, prior_s[i] is None, prior_s[i] or 0.0, i))


def are_separated(samples_s: Sequence[Sequence[float]]) -> bool:
    """Whether each of the others takes longer than the first: intervals of paired ratios of medians are above 1."""
    intervals = (ratio_interval(other, samples_s[0]) for other in samples_s[1:])
    return all(interval is not None and interval[0] > 1 for interval in intervals)


def exhaustive_search(field: Arms, min_samples: int, budget_s: float) -> Search:
    """`min_samples` full runs of every candidate, in alternation; fewer if another round would exceed the budget."""
    outcome = SearchOutcome(left=list(range(len(field.prior_s))))
    for turn in range(min_samples):
        before_s = field.spent_s
        yield from _turn(field, outcome)
        took_s = field.spent_s - before_s
        if field.spent_s + (took_s if turn else took_s / 2) > budget_s:  # the first round also warms up
            break
    outcome.left = outcome.rank(outcome.left)
    outcome.separated = len(outcome.left) > 0 and are_separated([outcome.samples_s[i] for i in outcome.left])
    return outcome


def successive_halving(field: Arms, min_samples: int, budget_s: float) -> Search:
    """Short runs, then halving, within the budget and a fraction of the time of an exhaustive search; no candidate gets
    more than `min_samples` full runs."""
    outcome = SearchOutcome()
    short_s = yield from _short_runs(field, min_samples, budget_s)
    ranked = sorted(short_s, key=lambda i: (short_s[i], i))
    close = [i for i in ranked if short_s[i] <= KEEP_WITHIN * short_s[ranked[0]]]
    outcome.left = close[: max(MIN_FULL_ARMS, -(-len(field.prior_s) // 4))]
    for turn in range(1, min_samples + 1):
        runs = 2 if turn == 1 else 1  # including the warm-up run
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
    """The median of each candidate's short runs. Each that has a chance gets one, and those near the best get more, in
    alternation, while half of the race's time is left for full runs."""
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
    """The expected time of each candidate's full run: from its short runs, corrected by their error where it is
    known."""
    off = [outcome.median_s(i) / short_s[i] for i in outcome.samples_s]
    return {index: seconds * (statistics.median(off) if off else 1.0) for index, seconds in short_s.items()}


def _limit(expected_s: Mapping[int, float], min_samples: int) -> float:
    """Seconds that a race may take: a fraction of full runs of all candidates, but enough to compare two."""
    every_s = sorted(expected_s.values())
    return max(MAX_TIME_SHARE * sum(every_s), sum(every_s[:2])) * (min_samples + 1)


STRATEGIES: dict[str, Strategy] = {"race": successive_halving, "exhaustive": exhaustive_search}


def _turn(field: Arms, outcome: SearchOutcome) -> Search:
    """One full run of each remaining candidate; candidates that fail are dropped."""
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
    """The first of the remaining candidates, as many as can do `runs` runs in the rest of the time; at least one."""
    kept: list[int] = []
    for index in left:
        rest_s -= runs * expected_s[index]
        if rest_s < 0 and kept:
            break
        kept.append(index)
    return kept
