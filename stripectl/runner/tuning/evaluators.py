"""Four ways to evaluate the tiles of a plan: it runs here, its tiles are timed here, it is compiled, or it is simulated
from the datasheet."""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from stripectl.core.layout import Tile
from stripectl.core.reason import Reason, ReasonKind
from stripectl.measure.local_target import LocalTarget
from stripectl.results.backend import Backend, Sampler, SamplingBackend, finals
from stripectl.results.case import Case, Subject
from stripectl.results.measurement import Measurement
from stripectl.runner.tuning.candidates import TileSearch, tile_of_sweep, why_not_run
from stripectl.runner.tuning.successive_halving import STRATEGIES, SearchOutcome

SearchStream = Generator[Measurement, None, list[Measurement]]
FINALISTS = 2  # candidates that get a full calibration, in addition to the kernel's default
COMPILE_WITHIN = 1.25  # times the best time from a datasheet: slower candidates are not compiled
TIE_WITHIN = 1.05  # times the best simulated time: a candidate within it is not known to be slower


class TileEvaluator(Protocol):
    """Evaluates candidates of one plan that differ in the tile of one pass."""

    def search(self, cases: Sequence[Case], passes: str) -> SearchStream:
        """Measurements as they are made; returns the final candidates, fastest first."""
        ...


def by_time(made: Sequence[Measurement]) -> list[Measurement]:
    """Sorted by time, candidates without a time last; ties keep their order."""
    ok = [m for m in made if m.status == "ok"]
    return sorted(ok, key=lambda m: m.median_s or math.inf)


def default_among_ties_first(ranked: list[Measurement], default: Measurement, passes: str) -> list[Measurement]:
    """The candidates with one moved to the front: among those about as fast as the best, the default, or else the
    candidate whose tile is nearest to it."""
    close = [m for m in ranked if (m.median_s or math.inf) <= TIE_WITHIN * (ranked[0].median_s or math.inf)]
    if not close:
        return ranked
    first = min(close, key=lambda m: (m is not default, tile_of(m, passes).distance(tile_of(default, passes))))
    return [first, *(m for m in ranked if m is not first)]


def tile_of(case: Subject, passes: str) -> Tile:
    return case.plan.tiles[passes]


def sample_candidates(
    tuning: TileSearch, sampler: Sampler, cases: Sequence[Case], budget_s: float
) -> Generator[Measurement, None, SearchOutcome]:
    """Sample by the strategy of the search. Yields the result of each candidate about which it learns something, and at
    the end the results of candidates that it never ran."""
    steps, told = STRATEGIES[tuning.strategy](sampler, tuning.request.sampling.min_samples, budget_s), set[int]()
    while True:
        try:
            told.add(index := next(steps))
        except StopIteration as done:
            yield from (result_of(sampler, cases, index) for index in range(len(cases)) if index not in told)
            return done.value
        yield result_of(sampler, cases, index)


def result_of(sampler: Sampler, cases: Sequence[Case], index: int) -> Measurement:
    """The latest result of a candidate, refused if it has not run."""
    refused = replace(Measurement.of(cases[index]), status="refused", reason=why_not_run(sampler.prior_s, index))
    return sampler.result(index) or refused


@dataclass
class RunPlans:
    """Runs plans here: short runs of all candidates, full runs of the best."""

    tuning: TileSearch
    measured: SamplingBackend
    budget_s: float

    def search(self, cases: Sequence[Case], passes: str) -> SearchStream:
        sampler = self.measured.sampler(cases)
        outcome = yield from sample_candidates(self.tuning, sampler, cases, self.budget_s)
        sampler.release()
        return [result_of(sampler, cases, index) for index in outcome.left]


@dataclass
class TimeTiles:
    """Times tiles here on a block, and simulates plans from them; the best candidates again after a full
    calibration."""

    tuning: TileSearch
    simulated: SamplingBackend
    budget_s: float

    def search(self, cases: Sequence[Case], passes: str) -> SearchStream:
        sampler, made = self.simulated.sampler(cases), list[Measurement]()
        outcome = yield from sample_candidates(self.tuning, sampler, cases, self.budget_s)
        sampler.release()
        finalists: list[int] = [*outcome.left[:FINALISTS], *[0][: len(outcome.left)]]
        for index in dict.fromkeys(finalists):
            made.append(self.calibrated(cases[index], result_of(sampler, cases, index)))
            yield made[-1]
        return by_time(made)

    def calibrated(self, case: Case, coarse: Measurement) -> Measurement:
        """The candidate simulated from a full calibration of its tiles, with their first timings."""
        known = next((m for m in self.tuning.request.previous if m.identity == case.identity), None)
        if known and known.cost_source and known.cost_source.forward:
            return known
        (found,) = finals(self.simulated.run([case]))
        if not found.cost_source or not coarse.cost_source:
            return found
        timings = replace(found.cost_source.timings, coarse=coarse.cost_source.timings.coarse)
        return replace(found, cost_source=replace(found.cost_source, timings=timings))


@dataclass
class CompilePlans:
    """Compiles a few candidates: the default, the tile of a published sweep, then the nearest to the best so far,
    except those slow by the datasheet."""

    tuning: TileSearch
    place: LocalTarget
    on_paper: Backend
    compiled: Backend

    def search(self, cases: Sequence[Case], passes: str) -> SearchStream:
        guessed = [found for case in cases for found in finals(self.on_paper.run([case]))]
        yield from (guess for guess in guessed if guess.status == "ok")
        every = self.tuning.strategy == "exhaustive"
        few = len(cases) if every else self.tuning.refine_count
        hopeful = list(cases) if every else promising(cases, guessed)
        known = tile_of_sweep(cases[0], self.place, passes)
        published = [case for case in cases if known and tile_of(case, passes) == known.tile]
        left = {case.identity: case for case in [hopeful[0], *published, *hopeful]}
        made = list[Measurement]()
        while left and len(by_time(made)) < few and len(made) < 2 * few:
            case = left.pop(next_case([*left.values()], published, by_time(made), passes).identity)
            made += finals(self.compiled.run([case]))
            yield made[-1]
            if (why := made[-1].reason) and made[-1].status == "refused":
                own = tile_of(case, passes)
                for larger in [each for each in left.values() if tile_covers(tile_of(each, passes), own)]:
                    yield refused_as_larger(left.pop(larger.identity), own, why)
        return by_time(made)


def promising(cases: Sequence[Case], guessed: Sequence[Measurement]) -> list[Case]:
    """The candidates that are not slow by the datasheet."""
    best_s = min((m.median_s for m in guessed if m.median_s), default=0.0)
    pairs = zip(cases, guessed, strict=True)
    return [case for case, m in pairs if not m.median_s or m.median_s <= COMPILE_WITHIN * best_s]


def next_case(left: Sequence[Case], published: Sequence[Case], made: Sequence[Measurement], passes: str) -> Case:
    """The default first, then the tile of a published sweep, then the tile nearest to the best so far in the logarithms
    of its sides."""
    if not made or left[0] in published:
        return left[0]
    around = tile_of(made[0], passes)
    return min(left, key=lambda case: tile_of(case, passes).distance(around))


def refused_as_larger(case: Case, smaller: Tile, why: Reason) -> Measurement:
    """A candidate that is not compiled, because a smaller tile was refused."""
    fact = f"not compiled: larger than {smaller}, which was refused: {why.fact}"
    return replace(Measurement.of(case), status="refused", reason=Reason(ReasonKind.NOT_RUN, fact, why.advice))


def tile_covers(large: Tile, small: Tile) -> bool:
    """Whether a tile needs at least as much memory as another."""
    pairs = [*zip(large.sides, small.sides, strict=True), (large.block_kv_compute or 0, small.block_kv_compute or 0)]
    return all(a >= b for a, b in pairs)


@dataclass
class DatasheetOnly:
    """Simulates all candidates from the machine's table, or from its datasheet, which hardly distinguishes tiles: the
    default stays unless it is slow, and then the nearest tile is chosen."""

    simulated: Backend

    def search(self, cases: Sequence[Case], passes: str) -> SearchStream:
        made = list[Measurement]()
        for case in cases:
            made += finals(self.simulated.run([case]))
            yield made[-1]
        return default_among_ties_first(by_time(made), made[0], passes)
