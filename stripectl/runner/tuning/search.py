"""Searches the tiles of plans, each by the strongest method that its target and the budget allow.

Forward tiles come first, then backward tiles with the best forward tile. A plan whose devices are here runs; where one
device of their kind is here, tiles are timed and plans simulated from them, the best after a full calibration; for any
other target a few plans are compiled, or all are simulated from its datasheet.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from stripectl.analysis.ranking import by_strongest_method, rankings
from stripectl.core.layer_groups import join_plans, layer_groups
from stripectl.core.plan import Plan
from stripectl.core.workload import STEP
from stripectl.errors import BadInput
from stripectl.measure.local_target import LocalTarget
from stripectl.results.backend import Event, Final, Notice, SearchResult, Tell, finals, ignore
from stripectl.results.case import Case
from stripectl.results.environment import PACKAGES, conditions, version
from stripectl.results.measurement import Measurement
from stripectl.runner.backends import Backends, LocalBackends
from stripectl.runner.cases import bench_cases, case_of, compiling, nothing_left, with_named_parts
from stripectl.runner.refinement import run_search
from stripectl.runner.request import Request
from stripectl.runner.tuning.candidates import TileSearch, backward_cases, forward_cases, tile_of_sweep
from stripectl.runner.tuning.evaluators import (
    CompilePlans,
    DatasheetOnly,
    RunPlans,
    SearchStream,
    TileEvaluator,
    TimeTiles,
)
from stripectl.runner.tuning.raised_limit import gains_of_raised_limit
from stripectl.util import disk_cache
from stripectl.util.json import JsonObject, is_list
from stripectl.util.progress import Say
from stripectl.workers.hosts import Cluster

RUNS = 60  # of the forward pass of the default plan: about as long as a race of both passes

TilesWanted = tuple[Case, list[str]]  # the forward pass of a plan with its mesh, and the requested passes


def tune(tuning: TileSearch, say: Say, cluster: Cluster | None = None, tell: Tell = ignore) -> Iterator[Event]:
    """Measurements as they are made; a measurement replaces an earlier one of the same workload, plan, target and
    flags. Notices report that the results are cached, and the plans of training steps of hybrid models. `tell` gets the
    devices, of this host or of a cluster, as soon as they are found.

    Raises:
        BadInput: nothing is left to try.
        Missing: a target that should be measured is not available here, or the compiler that it needs is not installed.
    """
    with LocalBackends(tuning.request, say, cluster, tell) as backends:
        yield from run_tuning(tuning, backends)


def run_tuning(tuning: TileSearch, backends: Backends) -> Iterator[Event]:
    """As `tune`, on backends that are ready."""
    request, place = tuning.request, backends.place
    tuning = replace(tuning, request=request.resolve_for(place))
    key = tuning_key(tuning, place)
    known = disk_cache.load(key) if request.use_cache and not request.previous else None
    stored = [Final(Measurement.from_json(each)) for each in known] if is_list(known) else None
    if stored is not None:
        yield Notice("from the cache of an earlier search with the same versions and flags (--no-cache: search again)")
    made: dict[tuple[str, ...], Measurement] = {}
    for event in with_best_mesh(tuning, backends) if stored is None else stored:
        if isinstance(event, Final):
            made[event.measurement.identity] = event.measurement
        yield event
    for plan in join_hybrid_plans(tuning.request, list(made.values())):
        yield Notice(f"step    {plan} has the tiles of both kinds of layers")
    if place.target.hardware.kind == "tpu" and not tuning.tiles:
        absent = replace(place, here=0, processes=None)
        yield from gains_of_raised_limit(list(made.values()), absent, backends.simulated(absent))
    if stored is None and not any(m.status == "failed" for m in made.values()):
        disk_cache.store(key, [m.to_json() for m in made.values()])


def join_hybrid_plans(request: Request, made: Sequence[Measurement]) -> Iterator[Plan]:
    """Join the plans of a model whose layers differ: the fastest for the first kind of layers, and for the others the
    fastest on the same mesh."""
    by_work = {ranking.workload: [m.plan for m in ranking.rivals] for ranking in rankings(made)}
    steps = (workload for workload in request.workloads if len(workload.kinds) > 1)
    for workload, plan in itertools.product(steps, request.plans):
        best: list[Plan] = []
        for _, own, each in layer_groups(workload, plan):
            mesh = best[0].mesh if best else each.mesh
            alike = (
                known
                for known in by_work.get(own.one_layer("forward-backward") if workload.passes == STEP else own, ())
                if (known.scheme, known.layout) == (each.scheme, each.layout) and mesh in (None, known.mesh)
            )
            best += itertools.islice(alike, 1)
        if len(best) == len(workload.kinds):
            yield join_plans(workload, best)


def with_best_mesh(tuning: TileSearch, backends: Backends) -> Iterator[Event]:
    """If every mesh is requested, first the meshes with the default tile, then the tiles on the best of them."""
    request, place, made = tuning.request, backends.place, list[Measurement]()
    without_baseline = replace(request, baseline=False)
    for workload in request.workloads if request.every_mesh else ():
        group = [case for case in bench_cases(request, place) if case.workload == workload]
        for event in run_search(without_baseline, group, backends, request.sampling.budget_s / 2):
            made += finals([event])
            yield from [] if isinstance(event, SearchResult) else [event]
    if request.every_mesh:
        if not (ranked := rankings(made)):
            raise BadInput(f"no mesh is left to try. {made[0].plan}: {made[0].reason}")
        mesh = by_strongest_method(ranked).best.plan.mesh
        plans = [plan if plan.mesh else replace(plan, mesh=mesh) for plan in request.plans]
        tuning = replace(tuning, request=replace(request, plans=plans, every_mesh=False))
    for made in TileSearches(tuning, backends).run():
        yield made if isinstance(made, Notice) else Final(made)


def tuning_key(tuning: TileSearch, place: LocalTarget) -> JsonObject:
    """Everything that affects a tuning."""
    request, around = tuning.request, conditions()
    effort = request.sampling
    return {
        "tune": [tuning.strategy, tuning.refine_count, list(map(str, tuning.tiles))],
        "target": [str(place.target), repr(place.target.hardware), place.here, place.processes],
        "devices": [place.device_kind] if place.device_kind else [],
        "host": around["host"],
        "versions": [*map(version, PACKAGES), around["versions"]["python"]],
        "around": around["flags"],
        "workloads": [workload.to_json() for workload in request.workloads],
        "plans": [str(plan) for plan in request.plans],
        "flags": [dict(flags) for flags in request.flags],
        "method": [request.method, request.every_mesh],
        "effort": [effort.budget_s, effort.min_samples, effort.warmup, effort.compile_timeout_s],
    }


def dry_run_tuning(tuning: TileSearch, say: Say, cluster: Cluster | None = None) -> list[Case]:
    """The candidates of the forward pass, or of the backward pass with the default tile, refused or not."""
    with LocalBackends(tuning.request, say, cluster) as backends:
        place = replace(backends.place, timed=None)
        tuning, made = replace(tuning, request=tuning.request.resolve_for(place)), list[Case]()
        made += bench_cases(tuning.request, place) if tuning.request.every_mesh else []
        for asked, passes in tile_searches(tuning.request, place):
            forward = forward_cases(tuning, asked, place)
            made += forward
            first = next((case for case in forward if case.is_ready), None)
            if "forward-backward" in passes and first:
                tile = first.plan.tiles["forward"]
                made += backward_cases(tuning, asked, place, tile)
    return made


def tile_searches(request: Request, place: LocalTarget) -> Iterator[TilesWanted]:
    """The searches of a request. The tiles of a training step belong to its attention; a hybrid model has tiles for
    each kind of layer."""
    found: dict[tuple[str, ...], TilesWanted] = {}
    for workload, plan, flags in itertools.product(request.workloads, request.plans, request.flags):
        own = "forward-backward" if workload.passes == STEP else workload.passes
        for _, alike, each in layer_groups(workload, plan):
            layer = case_of(alike.one_layer("forward"), each, flags, place, request.case_method)
            asked = with_named_parts(layer, place)
            _, passes = found.setdefault(asked.identity, (asked, []))
            passes += [own] if own not in passes else []
    yield from found.values()


@dataclass
class TileSearches:
    """The searches of a command."""

    tuning: TileSearch
    backends: Backends

    @property
    def place(self) -> LocalTarget:
        return self.backends.place

    def run(self) -> Iterator[Measurement | Notice]:
        refused = list[Case]()
        for asked, passes in self.wanted:
            forward = forward_cases(self.tuning, asked, self.place)
            if not any(case.is_ready for case in forward):
                refused.append(forward[0])
                if len(refused) == len(self.wanted):
                    raise nothing_left("try", refused[0])
                yield from map(Measurement.of, forward)
                continue
            evaluator = self.evaluator(forward)
            yield from self.notices(forward, "forward")
            ranked = yield from search(evaluator, forward, "forward")
            if ranked and "forward-backward" in passes:
                first = next(case for case in forward if case.is_ready)
                tile, usual = (each.plan.tiles["forward"] for each in (ranked[0], first))
                backward = backward_cases(self.tuning, asked, self.place, tile)
                yield from self.notices(backward, "backward")
                yield from search(evaluator, backward, "backward")
                if tile != usual:  # the baseline of a gain
                    default = backward_cases(self.tuning, asked, self.place, usual)[:1]
                    yield from search(evaluator, default, "backward")

    def notices(self, cases: Sequence[Case], passes: str) -> Iterator[Notice]:
        """The tile of a published sweep among the candidates of a pass, and its source."""
        known = tile_of_sweep(cases[0], self.place, passes)
        if known and any(case.plan.tiles[passes] == known.tile for case in cases):
            yield Notice(f"start   {passes} tile {known.tile}: {known.source}")

    @cached_property
    def wanted(self) -> list[TilesWanted]:
        return list(tile_searches(self.tuning.request, self.place))

    @property
    def budget_s(self) -> float:
        """The budget for one pass of one plan."""
        return self.tuning.request.sampling.budget_s / sum(len(passes) for _, passes in self.wanted)

    def evaluator(self, cases: Sequence[Case]) -> TileEvaluator:
        """The evaluator for the candidates of a plan."""
        request, place, first = self.tuning.request, self.place, next(case for case in cases if case.is_ready)
        here, measured = 0 < first.devices <= place.here, self.backends.measured(place)
        if compiling(request, place):
            on_paper = self.backends.simulated(replace(place, here=0, processes=None))
            return CompilePlans(self.tuning, place, on_paper, self.backends.compiled(place))
        if request.method == "measured":
            measured.prepare([first])
        if request.method == "measured" or (request.method == "auto" and here and self.fits(first)):
            return RunPlans(self.tuning, measured, self.budget_s)
        simulated = self.backends.simulated(place)
        if self.tuning.only_simulates(place):
            return DatasheetOnly(simulated)
        return TimeTiles(self.tuning, simulated, self.budget_s)

    def fits(self, first: Case) -> bool:
        """Whether a race of plans like this one fits its budget, by the time of its tile on a block."""
        sampler = self.backends.simulated(self.place).sampler([first])
        if sampler.pull_short(0) is None:
            return False
        made = sampler.result(0)
        return made is not None and RUNS * (made.median_s or 0.0) <= self.budget_s


def search(evaluator: TileEvaluator, cases: Sequence[Case], passes: str) -> SearchStream:
    """Refused candidates unchanged, the others by the evaluator; returns its final candidates, fastest first."""
    yield from (Measurement.of(case) for case in cases if not case.is_ready)
    return (yield from evaluator.search([case for case in cases if case.is_ready], passes))
