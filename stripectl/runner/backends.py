"""The backends of a command: plans are simulated, compiled ahead of time, or measured on the local devices."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Protocol

from stripectl.compile.compiler import CompilerPool, compile_case
from stripectl.core.lengths import format_length
from stripectl.core.validation import why_missing
from stripectl.core.workload import STEP
from stripectl.errors import Missing
from stripectl.hardware.target import Target
from stripectl.measure.block_sampler import BlockSampler, TimedTiles
from stripectl.measure.local_target import LocalTarget, local_target
from stripectl.measure.local_workers import LocalWorkers
from stripectl.measure.machine_timings import MachineTimings
from stripectl.measure.plan_sampler import PlanSampler
from stripectl.measure.sampler import measure
from stripectl.measure.timed_defaults import TimedDefaults
from stripectl.profiling.profiler import Tracer
from stripectl.results.backend import Backend, Event, Final, Partial, Sampler, SamplingBackend, Tell, ignore
from stripectl.results.case import Case
from stripectl.results.measurement import Measurement
from stripectl.runner.request import Request
from stripectl.runner.static_facts import with_static_facts
from stripectl.runner.time_plans import time_plans
from stripectl.simulate.fewer_layers import from_fewer_layers, with_fewer_layers
from stripectl.simulate.layers_apart import from_layers_apart, with_layers_apart
from stripectl.util.progress import Say
from stripectl.workers.hosts import Cluster

EXPLAINED_PLANS = 20  # the fastest plans of a group


@dataclass(frozen=True)
class Simulated:
    """Simulates plans, with tiles and hops timed here where the target's devices are."""

    place: LocalTarget
    timings: MachineTimings
    explains: bool = True  # also limits and scaling, which take ten times as long as the simulation itself
    tiles: TimedTiles | None = None  # shared with other plans

    def prepare(self, cases: Sequence[Case]) -> None:
        """Nothing to prepare."""

    def run(self, cases: Sequence[Case], budget_s: float = math.inf) -> Iterator[Event]:
        """As `Backend.run`; in a group of many cases, only the fastest are explained."""
        if not self.explains or len(cases) > EXPLAINED_PLANS:
            yield from map(Final, time_plans(cases, self.place, self.timings, EXPLAINED_PLANS * self.explains))
            return
        for case in cases:  # one by one, so that each result is stored as soon as it is known
            described = with_static_facts(case, self.place.target.hardware)
            yield from map(Final, time_plans([described], self.place, self.timings, explained=1))

    def sampler(self, cases: Sequence[Case]) -> Sampler:
        """The tiles of the cases timed on one block; the devices must be here."""
        return BlockSampler(self.tiles or TimedTiles(self.timings, self.place), cases, self.place)


@dataclass(frozen=True)
class Compiled:
    """Compiles plans with the target's own compiler, or runs them on the backend `instead` where a kernel is not
    installed here."""

    target: Target
    compilers: CompilerPool
    instead: Backend | None = None

    def prepare(self, cases: Sequence[Case]) -> None:
        self.compilers.toolchain(self.target)

    def run(self, cases: Sequence[Case], budget_s: float = math.inf) -> Iterator[Event]:
        for done, case in enumerate(cases):
            if self.instead and case.is_ready and why_missing(case.layers):
                yield from self.instead.run([case])
                continue
            length = format_length(case.workload.seq_len)
            self.compilers.say(f"compile {case.workload.passes} of {case.plan} at {length}", done, len(cases))
            yield Final(compile_case(with_static_facts(case, self.target.hardware), self.target, self.compilers))


@dataclass(frozen=True)
class Measured:
    """Runs plans here: plans with equally many devices in alternation, with the samples of a resumed run."""

    request: Request
    place: LocalTarget
    workers: LocalWorkers
    tracer: Tracer | None = None

    def prepare(self, cases: Sequence[Case]) -> None:
        if all(case.devices <= self.place.here for case in cases if case.is_ready):
            return
        cpu = f", or --target cpu:{self.workers.cores}" if self.place.target.hardware.kind == "cpu" else ""
        bench = "stripectl bench " if self.tracer else ""  # `trace`, which only measures, has no --method
        raise Missing(f"cannot measure {self.place.target} because it is not here. Try {bench}--method simulated{cpu}.")

    def run(self, cases: Sequence[Case], budget_s: float = math.inf) -> Iterator[Event]:
        say, link = self.workers.say, self.place.target.hardware.figure("link_bytes_per_s_one_way")
        runnable = [case for case in cases if case.is_ready]
        made = {case.identity: Measurement.of(case) for case in cases if not case.is_ready}
        try:
            for count in dict.fromkeys(case.devices for case in runnable):
                together = [case for case in runnable if case.devices == count]
                workers = self.workers.group(count if self.place.processes else None)
                share_s = budget_s * len(together) / len(runnable)
                wanted = [each for case in together for each in measurements_to_sample(case, self.request)]
                for known in measure(workers, wanted, self.request.sampling, share_s, say, link, self.tracer):
                    made |= {result.identity: result for result in known}
                    yield from (Partial(each) for each in reassemble(cases, made) if each.samples_s)
        except KeyboardInterrupt:
            yield from map(Final, reassemble(cases, made))
            raise
        yield from map(Final, reassemble(cases, made))

    def sampler(self, cases: Sequence[Case]) -> Sampler:
        workers = self.workers.group(cases[0].devices if self.place.processes else None)
        found = PlanSampler(workers, cases, self.request.sampling, self.workers.say)
        found.resume({m.identity: m for m in self.request.previous})
        return found


class Backends(Protocol):
    """The backends of a request: its target, and the backends for this and other targets."""

    @property
    def place(self) -> LocalTarget:
        """The target of the request, and its devices that are available here.

        Raises:
            BadInput, Missing: not a target, or no devices.
        """
        ...

    def simulated(self, place: LocalTarget, explains: bool = True) -> SamplingBackend: ...

    def compiled(self, place: LocalTarget) -> Backend: ...

    def measured(self, place: LocalTarget) -> SamplingBackend: ...


class LocalBackends:
    """The devices, compilers and profiler of this machine, or of all hosts of a cluster; they end together."""

    def __init__(self, request: Request, say: Say, cluster: Cluster | None = None, tell: Tell = ignore) -> None:
        self.request, effort = request, request.sampling
        self.workers = LocalWorkers(say, cluster, tell)
        self.timings = MachineTimings(self.workers)
        self.compilers = CompilerPool(say, effort.compile_timeout_s, request.use_cache)
        self.tracer = Tracer(effort.profile_folder, effort.profile_steps) if effort.profile_folder else None
        self.ends = ExitStack()
        self.found: LocalTarget | None = None
        self.tiles = dict[int | None, TimedTiles]()

    def __enter__(self) -> "LocalBackends":
        for each in (self.workers, self.compilers, self.tracer):
            if each:
                self.ends.enter_context(each)
        return self

    def __exit__(self, *exception: object) -> None:
        self.ends.close()

    @property
    def place(self) -> LocalTarget:
        if self.found is None:
            found = local_target(self.request.target, self.request.hardware, self.workers)
            if self.request.method == "measured" and found.here and found.target.hardware.kind == "cpu":
                found = replace(found, target=Target(found.target.hardware, (found.here,)))
            if found.processes is not None and (found.here or self.request.method != "measured"):
                tiles = self.tiles[found.processes] = self.timed_tiles(found)
                found = replace(found, timed=TimedDefaults(tiles, self.request.previous))
            self.found = found
        return self.found

    def simulated(self, place: LocalTarget, explains: bool = True) -> Simulated:
        if place.processes not in self.tiles:
            self.tiles[place.processes] = self.timed_tiles(place)
        return Simulated(place, self.timings, explains, self.tiles[place.processes])

    def timed_tiles(self, place: LocalTarget) -> TimedTiles:
        """Tiles timed on the devices of a place, with the timings of a resumed run."""
        tiles = TimedTiles(self.timings, place)
        tiles.resume(self.request.previous)
        return tiles

    def compiled(self, place: LocalTarget) -> Compiled:
        instead = self.simulated(place) if self.request.method == "auto" else None
        return Compiled(place.target, self.compilers, instead)

    def measured(self, place: LocalTarget) -> Measured:
        return Measured(self.request, place, self.workers, self.tracer)


def run_one_by_one(backend: Backend, cases: Sequence[Case]) -> Iterator[Event]:
    """The cases one by one, so that each of many gets its limits and its scaling."""
    return itertools.chain.from_iterable(backend.run([case]) for case in cases)


def cases_that_run(case: Case) -> list[Case]:
    """The cases that run to measure a case: itself, a deep step with fewer layers, or different layers apart."""
    return [each for few in with_fewer_layers(case) for each in with_layers_apart(few)]


def from_cases_that_ran(case: Case, made: Sequence[Measurement]) -> Measurement:
    """The measurement of a case from the measurements of `cases_that_run`."""
    combine = from_fewer_layers if case.workload.passes == STEP else from_layers_apart
    return combine(case, made)


def measurements_to_sample(case: Case, request: Request) -> list[Measurement]:
    """The measurements of a case. They continue from the samples of a resumed run, but a case in whose place others run
    has no samples there."""
    made = [Measurement.of(each, "measured") for each in cases_that_run(case)]
    if len(made) > 1 or (known := request.previous_by_key.get(made[0].key)) is None:
        return made
    kept = replace(made[0], samples_s=known.samples_s, check=known.check, compile_s=known.compile_s)
    return [replace(kept, peak_bytes=known.peak_bytes, noise=known.noise)]


def reassemble(group: Sequence[Case], made: Mapping[tuple[str, ...], Measurement]) -> Iterator[Measurement]:
    """The finished cases of a group, after the cases that ran in their place and of which a profile was captured."""
    for case in group:
        parts = [made[each.identity] for each in cases_that_run(case) if each.identity in made]
        yield from (each for each in parts if each.profile and len(parts) > 1)
        if len(parts) == len(cases_that_run(case)):
            yield from_cases_that_ran(case, parts)
