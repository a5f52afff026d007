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
        return replace(found, cost_source=replace(found.cost_source, coarse=coarse.cost_source.coarse))


@dataclass
class CompilePlans:
    """Compiles a few candidates: the default, the tile of a published sweep, then the nearest to the best so far,
    except those slow by the datasheet."""

    tuning: TileSearch
    place: LocalTarget
    on_paper: Backend
    compiled: Backend

    def search(self, cases: Sequence[Case], passes: str) -> SearchStream:
        few = self.tuning.refine_count
        guessed = [found for case in cases for found in finals(self.on_paper.run([case]))]
        yield from (guess for guess in guessed if guess.status == "ok")
        best = min((m.median_s for m in guessed if m.median_s), default=0.0)
        hopeful = [i for i, m in enumerate(guessed) if not m.median_s or m.median_s <= COMPILE_WITHIN * best]
        known = tile_of_sweep(cases[0], self.place, passes)
        published = [i for i, case in enumerate(cases) if known and tile_of(case, passes) == known.tile]
        hopeful = list(dict.fromkeys([*hopeful[:1], *published, *hopeful]))
        if self.tuning.strategy == "exhaustive":
            few, hopeful = len(cases), list(range(len(cases)))
        tried, made = list[int](), list[Measurement]()
        while len(by_time(made)) < few and len(tried) < 2 * few and (left := [i for i in hopeful if i not in tried]):
            waiting = [i for i in published if tried and i in left]
            best_so_far = next(iter(by_time(made)), None)
            index = waiting[0] if waiting else self.next_of(cases, passes, left, best_so_far)
            tried.append(index)
            made += finals(self.compiled.run([cases[index]]))
            yield made[-1]
            if (why := made[-1].reason) and made[-1].status == "refused":
                own = tile_of(cases[index], passes)
                for i in [i for i in left if i != index and tile_covers(tile_of(cases[i], passes), own)]:
                    hopeful.remove(i)
                    fact = f"not compiled: larger than {own}, which was refused: {why.fact}"
                    reason = Reason(ReasonKind.NOT_RUN, fact, why.advice)
                    yield replace(Measurement.of(cases[i]), status="refused", reason=reason)
        return by_time(made)

    def next_of(self, cases: Sequence[Case], passes: str, left: Sequence[int], best: Measurement | None) -> int:
        """The default first, then the tile nearest to the best so far, in the logarithms of its sides."""
        if best is None:
            return left[0]
        around = tile_of(best, passes)

        return min(left, key=lambda index: (tile_of(cases[index], passes).distance(around), index))


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
