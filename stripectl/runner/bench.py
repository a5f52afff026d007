"""Times plans side by side, each by the strongest method that its target and the budget allow.

On a target that is available here, plans are measured where they fit the devices and the budget, and otherwise
simulated from tiles timed here. For another target they are compiled, or simulated from its datasheet where its
compiler is not installed. On a machine that is too small for a ring, a bench ends with the small ring that it can run,
measured and compared with its own simulation.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from stripectl.core.method import METHODS
from stripectl.errors import BadInput
from stripectl.measure.local_target import LocalTarget
from stripectl.measure.sampler import refused_without
from stripectl.results.backend import Backend, Event, Final, Tell, finals, ignore
from stripectl.results.case import Case
from stripectl.results.measurement import Measurement
from stripectl.runner.backends import Backends, LocalBackends, cases_that_run, run_one_by_one
from stripectl.runner.cases import already_measured, bench_cases, compiling, nothing_left, one_device
from stripectl.runner.effort import bench_methods, unused_effort
from stripectl.runner.max_length import max_length, max_length_cases
from stripectl.runner.refinement import run_search
from stripectl.runner.request import Request
from stripectl.runner.small_ring import small_ring
from stripectl.simulate.sensitivity import with_estimated_sensitivity
from stripectl.util.progress import Say
from stripectl.workers.hosts import Cluster, HostLost


def bench(request: Request, say: Say, cluster: Cluster | None = None, tell: Tell = ignore) -> Iterator[Event]:
    """Resolve the request for its target, make its cases, and run them on backends.

    Measurements are in the order of workloads and plans, with a baseline on one device after each workload, then the
    small ring where there is one. For a workload with very many plans only notable measurements are final, and a table
    holds all of them. `tell` gets the devices, of this host or of a cluster, as soon as they are found.

    Raises:
        BadInput: nothing is left to run.
        Missing: a target that should be measured is not available here, or the compiler that it needs is not installed.
    """
    with LocalBackends(request, say, cluster, tell) as backends:
        yield from run_request(request, backends, say)


def run_request(request: Request, backends: Backends, say: Say) -> Iterator[Event]:
    """As `bench`, on backends that are ready."""
    deadline = time.monotonic() + request.sampling.budget_s
    request = resolve(request, backends)
    yield from unused_effort(request, bench_methods(request, backends.place))
    if request.find_max_length:
        yield from run_max_length(request, backends)
        return
    cases = make_cases(request, backends.place, say)
    yield from run_cases(request, cases, backends, deadline)
    if needs_small_ring(request, backends.place):
        yield from small_ring(request, backends, lambda: max(0.0, deadline - time.monotonic()), say)


def resolve(request: Request, backends: Backends) -> Request:
    """Fill in the default values of the request's target, if a method can do it and its compiler is ready.

    Raises:
        BadInput: no method can do what is requested.
        Missing: the compiler is not installed.
    """
    place = backends.place
    request = request.resolve_for(place)
    check_possible(request, place)
    if request.method == "compiled":
        backends.compiled(place).prepare([])
    return request


def make_cases(request: Request, place: LocalTarget, say: Say) -> list[Case]:
    """Make the cases of every workload and plan, and the baselines on one device.

    Raises:
        BadInput, Missing: all cases are refused.
    """
    wanted = bench_cases(request, place, say)
    if all(case.status == "refused" for case in wanted):
        raise nothing_left("run", wanted[0])
    return wanted + (one_device(request, place, wanted) if request.baseline and not request.is_search else [])


def run_cases(request: Request, cases: Sequence[Case], backends: Backends, deadline: float) -> Iterator[Event]:
    """Run the cases of each workload in turn; each workload gets a share of the remaining time by its work. Where a
    host is lost, the cases without a result are refused; a search refuses none, because it chooses the cases that it
    runs."""
    run = run_search if request.is_search else run_group
    groups = [[case for case in cases if case.workload == workload] for workload in request.workloads]
    for index, (workload, group) in enumerate(zip(request.workloads, groups, strict=True)):
        left_s = max(0.0, deadline - time.monotonic())
        share_s = left_s * workload.flops / sum(each.flops for each in request.workloads[index:])
        ended = set[tuple[str, ...]]()
        try:
            for event in run(request, group, backends, share_s):
                ended |= {each.identity for each in finals([event])}
                yield event
        except HostLost as lost:
            later = [case for each in groups[index:] for case in each if not already_measured(request, case)]
            left = [] if request.is_search else [case for case in later if case.identity not in ended]
            yield from (Final(without_host(case, lost)) for case in left)
            raise


def without_host(case: Case, lost: HostLost) -> Measurement:
    """Mark a case that did not run before a host was lost; a case that was not ready keeps its reason."""
    made = Measurement.of(case)
    return replace(made, status="refused", reason=refused_without(lost)) if case.is_ready else made


def run_max_length(request: Request, backends: Backends) -> Iterator[Event]:
    """The longest sequence that fits with each plan."""
    place = backends.place
    explained = strongest_ahead(request, backends)
    brief = explained if compiling(request, place) else backends.simulated(place, explains=False)
    yield from max_length(request, place, brief, explained)


def needs_small_ring(request: Request, place: LocalTarget) -> bool:
    """Whether this machine is too small for the requested ring, but can run a smaller ring."""
    return request.target == "local" and request.method == "auto" and 1 < place.here < place.target.devices


def run_group(request: Request, every: Sequence[Case], backends: Backends, budget_s: float) -> Iterator[Event]:
    """The unfinished cases of one workload: compiled or simulated; or measured, if requested, or if all can run here
    and their simulated times suggest that the budget is enough for the samples. A resumed run keeps its methods."""
    place = backends.place
    group = [case for case in every if not already_measured(request, case)]
    if not group:
        return
    if request.method == "measured":
        measured = backends.measured(place)
        measured.prepare(every)
        yield from measured.run(group, budget_s)
    elif request.method == "auto" and all(case.devices <= place.here for case in every if case.is_ready):
        yield from run_if_affordable(request, every, group, backends, budget_s)
    else:
        yield from strongest_ahead(request, backends).run(group)


def run_if_affordable(
    request: Request, every: Sequence[Case], group: Sequence[Case], backends: Backends, budget_s: float
) -> Iterator[Event]:
    """Run the cases of a group: measured if the budget is enough for their samples, otherwise simulated beforehand; a
    resumed run keeps its method."""
    ahead = strongest_ahead(request, backends)
    methods = {method for case in every if case.is_ready for method in METHODS if request.was_run(case, method)}
    if methods and "measured" not in methods:
        yield from ahead.run(group)
        return
    estimates = finals(run_one_by_one(ahead, every))
    turns = request.sampling.min_samples + request.sampling.warmup
    if methods or turns * turn_seconds(every, estimates, ahead) <= budget_s:
        yield from with_estimated_sensitivity(backends.measured(backends.place).run(group, budget_s), estimates)
    else:
        asked = {case.identity for case in group}
        yield from (Final(estimate) for estimate in estimates if estimate.identity in asked)


def turn_seconds(cases: Sequence[Case], estimates: Sequence[Measurement], ahead: Backend) -> float:
    """The estimated time of one sample of every case, in which a deep training step runs with fewer layers."""
    run = [each for case in cases for each in cases_that_run(case)]
    known = {estimate.identity: estimate for estimate in estimates}
    rest = finals(run_one_by_one(ahead, [each for each in run if each.identity not in known]))
    known |= {estimate.identity: estimate for estimate in rest}
    return sum(known[each.identity].median_s or 0.0 for each in run)


def strongest_ahead(request: Request, backends: Backends) -> Backend:
    """The backend of plans that do not run here: the compiler if requested or installed, otherwise the simulator."""
    place = backends.place
    return backends.compiled(place) if compiling(request, place) else backends.simulated(place)


def check_possible(request: Request, place: LocalTarget) -> None:
    """Fail before anything runs if no method can do what is requested.

    Raises:
        BadInput: no method can.
    """
    if request.every_tile and place.here:
        raise BadInput(
            "cannot simulate every tile for this machine, because each would have to be timed. Try stripectl "
            "tune-tiles, or name the tiles."
        )
    if request.find_max_length and (request.method == "measured" or place.target.hardware.kind == "cpu"):
        raise BadInput(
            "cannot find the longest sequence, because only compiled and simulated plans have a known limit of memory. "
            "Try --target v5e:4x4 --method compiled."
        )


def dry_run_bench(request: Request, say: Say, cluster: Cluster | None = None) -> list[Case]:
    """List the cases of a bench: every plan with its mesh and tile, or the reason why it is refused. Nothing is timed
    here: a plan that names no tile has the tile of its kernel's description where no table ships for the machine."""
    with LocalBackends(request, say, cluster) as backends:
        place = replace(backends.place, timed=None)
        request = request.resolve_for(place)
        return max_length_cases(request, place) if request.find_max_length else bench_cases(request, place, say)
