"""Times plans side by side, each by the strongest method that its target and the budget allow.

On a target that is available here, plans are measured where they fit the devices and the budget, and otherwise
simulated from tiles timed here. For another target they are compiled, or simulated from its datasheet where its
compiler is not installed. On a machine that is too small for a ring, a bench ends with the small ring that it can run,
measured and compared with its own simulation.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from stripectl.compile.toolchain import TOOLCHAINS
from stripectl.core.defaults import with_mesh, with_tile
from stripectl.core.kernel import kernels
from stripectl.core.method import METHODS
from stripectl.core.plan import DEFAULT_KERNELS, Plan
from stripectl.core.workload import STEP
from stripectl.errors import BadInput
from stripectl.hardware.target import Target
from stripectl.measure.device_pool import LocalTarget
from stripectl.measure.sampler import UNFINISHED
from stripectl.results.backend import Backend, Event, Final, SearchResult, finals
from stripectl.results.case import Case
from stripectl.results.schema import MAX_ASKED_PLANS, MAX_SIMULATED_PLANS
from stripectl.results.search_table import SearchTable
from stripectl.runner.backends import Backends, LocalBackends, with_devices_found
from stripectl.runner.max_length import max_length, max_length_cases
from stripectl.runner.meshes import MAX_FULL_ROWS, notable_plans, promising_plans
from stripectl.runner.request import SMALL_HEADS, SMALL_LEN, Request, make_case
from stripectl.runner.static_facts import with_static_facts
from stripectl.simulate.sensitivity import with_estimated_sensitivity
from stripectl.simulate.training_step import with_fewer_layers
from stripectl.util.progress import Say, quiet
from stripectl.workers.hosts import Cluster

PROGRESS_PLANS = 256  # between two progress messages
SMALL_SHARE = 0.45  # of the remaining budget, for sampling the small ring


def bench_cases(request: Request, place: LocalTarget, say: Say = quiet) -> list[Case]:
    """One case per workload and plan, with tile and mesh named; refused cases have their reason."""
    method = "simulated" if request.method == "auto" else request.method
    found, most = list[Case](), MAX_SIMULATED_PLANS if request.is_search else MAX_ASKED_PLANS
    for workload in request.workloads:
        usual = (
            request.with_mesh_and_kernel(each, workload, place)
            for plan in request.plans
            for each in request.with_meshes(plan, place)
        )
        plans = [each for plan in usual for each in request.with_tiles(plan, workload, place)]
        if len(found) + len(plans) * len(request.flags) > most:
            raise BadInput(f"there are more than {most:,} plans to simulate. Name some of --scheme, --mesh or --tile.")
        for done, (plan, flags) in enumerate(itertools.product(plans, request.flags)):
            if done % PROGRESS_PLANS == 0:
                say("check plans", done, len(plans))
            found.append(make_case(workload, plan, flags, place, method, describe=not request.is_search))
    return found


def bench(request: Request, say: Say, cluster: Cluster | None = None) -> Iterator[Event]:
    """Measurements in the order of workloads and plans, with a baseline on one device after each workload, then the
    small ring where there is one; and the devices, of this host or of a cluster. For a workload with very many plans
    only notable measurements are final, and a table holds all of them.

    Raises:
        BadInput: nothing is left to run.
        Missing: a target that should be measured is not available here, or the compiler that it needs is not installed.
    """
    with LocalBackends(request, say, cluster) as backends:
        yield from with_devices_found(backends, run_request(request, backends, say))


def run_request(request: Request, backends: Backends, say: Say) -> Iterator[Event]:
    """As `bench`, on backends that are ready."""
    deadline = time.monotonic() + request.sampling.budget_s

    def left_s() -> float:
        return max(0.0, deadline - time.monotonic())

    place = backends.place
    request = request.resolve_for(place)
    check_possible(request, place)
    if request.method == "compiled":
        backends.compiled(place).prepare([])
    if request.find_max_length:
        explained = strongest_ahead(request, backends)
        brief = explained if compiling(request, place) else backends.simulated(place, explains=False)
        yield from max_length(request, place, brief, explained)
        return
    wanted = bench_cases(request, place, say)
    if all(case.status == "refused" for case in wanted):
        raise BadInput(f"nothing is left to run. {wanted[0].plan}: {wanted[0].reason}")
    wanted += one_device(request, place, wanted) if request.baseline and not request.is_search else []
    for index, workload in enumerate(request.workloads):
        share_s = left_s() * workload.flops / sum(each.flops for each in request.workloads[index:])
        group = [case for case in wanted if case.workload == workload]
        run = run_search if request.is_search else run_group
        yield from run(request, group, backends, share_s)
    if request.target == "local" and 1 < place.here < place.target.devices and request.method == "auto":
        yield from small_ring(request, backends, left_s, say)


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


def already_measured(request: Request, case: Case) -> bool:
    """Whether the resumed run contains the case, by the requested method, and with a profile if one is requested."""
    methods = METHODS if request.method == "auto" else (request.method,)
    made = [
        request.previous_by_key[key]
        for method in methods
        if (key := (*case.identity, method)) in request.previous_by_key
    ]
    finished = [m for m in made if m.status != "ok" or m.reason != UNFINISHED]
    return any(
        m.method != "measured" or not request.sampling.profile_folder or (m.profile and m.profile.steps is not None)
        for m in finished
    )


def compiling(request: Request, place: LocalTarget) -> bool:
    """Whether plans are compiled ahead of time: if requested, or if the target is not available here but its compiler
    is."""
    kind = place.target.hardware.kind
    return request.method == "compiled" or (
        request.method == "auto" and not place.here and kind in TOOLCHAINS and not TOOLCHAINS[kind].missing
    )


def run_search(request: Request, group: Sequence[Case], backends: Backends, budget_s: float) -> Iterator[Event]:
    """The cases of one workload, simulated, or of many the notable cases. The most promising of each scheme and
    mesh are compiled too, or measured where they can run; if one is refused, the next takes its place. Then the
    baseline on one device, with the kernel and tile of the fastest plan, and, for many cases, a table of all."""
    started, place, search = time.monotonic(), backends.place, None
    simulated = backends.simulated(place)
    known, asked = finals(simulated.run(group)), {case.identity: case for case in group}
    if len(known) > MAX_FULL_ROWS:
        search = SearchTable.of(known, time.monotonic() - started)
        known = notable_plans(known)
    before = {key: m for key, m in request.previous_by_key.items() if m.reason != UNFINISHED}
    yield from (Final(m) for m in known if m.key not in before)
    ranked = promising_plans(known)
    left = [with_static_facts(asked[m.identity], place.target.hardware) for m in ranked]
    if compiling(request, place):
        yield from compile_promising(request, left, backends.compiled(place))
    elif request.method != "simulated" and all(m.devices <= place.here for m in left):
        # Timing them again might choose others.
        left.sort(key=lambda case: (*case.identity, "measured") not in request.previous_by_key)
        chosen = [case for case in left[: request.refine_count] if (*case.identity, "measured") not in before]
        yield from with_estimated_sensitivity(backends.measured(place).run(chosen, budget_s), known)
    alone = one_device(request, place, [asked[m.identity] for m in ranked]) if request.baseline else []
    alone = [case for case in alone if not already_measured(request, case)]
    yield from map(Final, finals(simulated.run(alone)))
    yield from [SearchResult(search)] if search else []


def compile_promising(request: Request, left: Sequence[Case], compiled: Backend) -> Iterator[Event]:
    """The first of these cases that the compiler does not refuse, as many as the request refines."""
    done = 0
    for case in left:
        made = request.previous_by_key.get((*case.identity, "compiled"))
        if made is None or made.reason == UNFINISHED:
            (made,) = finals(compiled.run([case]))
            yield Final(made)
        if (done := done + (made.status == "ok")) == request.refine_count:
            return


def one_device(request: Request, place: LocalTarget, wanted: Sequence[Case]) -> list[Case]:
    """The single-device flash-style baseline of every workload and set of flags: with the kernel and tiles of its first
    plan, where that has tiles."""
    found = []
    for workload, flags in itertools.product(request.workloads, request.flags):
        alike = (case for case in wanted if case.workload == workload and (case.flags or {}) == flags)
        first = next((case for case in alike if case.is_ready), None)
        if first is None or first.devices == 1 or workload.passes == STEP:
            continue
        own, alone = first.plan, replace(place, target=Target(place.target.hardware, (1,)))
        name = "pass_kv" if workload.query_len else "memory_efficient" if workload.gated else "ring"
        plan = Plan(name, "contiguous", DEFAULT_KERNELS[workload.kernel_family], mesh=())
        if not kernels[own.kernel].keeps_all_scores:
            plan = replace(plan, kernel=own.kernel, tile=own.tile, backward=own.backward)
        found.append(make_case(workload, plan, flags, alone, first.method))
    return found


def dry_run_bench(request: Request, say: Say, cluster: Cluster | None = None) -> list[Case]:
    """The cases of a bench: every plan with its mesh and tile, or the reason why it is refused."""
    with LocalBackends(request, say, cluster) as backends:
        place = backends.place
        request = request.resolve_for(place)
        return max_length_cases(request, place) if request.find_max_length else bench_cases(request, place, say)


def run_group(request: Request, every: Sequence[Case], backends: Backends, budget_s: float) -> Iterator[Event]:
    """The unfinished cases of one workload: compiled or simulated; or measured, if requested, or if all can run here
    and their simulated times suggest that the budget is enough for the samples. A resumed run keeps its methods."""
    place = backends.place
    group = [case for case in every if not already_measured(request, case)]
    runnable = [case for case in every if case.is_ready]
    here = all(case.devices <= place.here for case in runnable)
    decided = {method for case in runnable for method in METHODS if (*case.identity, method) in request.previous_by_key}
    ahead = strongest_ahead(request, backends)
    if not group:
        return
    if request.method == "measured":
        measured = backends.measured(place)
        measured.prepare(every)
        yield from measured.run(group, budget_s)
    elif request.method != "auto" or not here or (decided and "measured" not in decided):
        yield from ahead.run(group)
    else:
        estimates = finals(run_one_by_one(ahead, every))
        known = {estimate.identity: estimate for estimate in estimates}
        run = [each for case in every for each in with_fewer_layers(case)]
        rest = finals(run_one_by_one(ahead, [each for each in run if each.identity not in known]))
        known |= {estimate.identity: estimate for estimate in rest}
        turn_s = sum(known[each.identity].median_s or 0.0 for each in run)
        if decided or turn_s * (request.sampling.min_samples + request.sampling.warmup) <= budget_s:
            yield from with_estimated_sensitivity(backends.measured(place).run(group, budget_s), estimates)
        else:
            asked = {case.identity for case in group}
            yield from (Final(estimate) for estimate in estimates if estimate.identity in asked)


def run_one_by_one(backend: Backend, cases: Sequence[Case]) -> Iterator[Event]:
    """The cases one by one, so that each of many gets its limits and its scaling."""
    return itertools.chain.from_iterable(backend.run([case]) for case in cases)


def small_ring(request: Request, backends: Backends, left_s: Callable[[], float], say: Say) -> Iterator[Event]:
    """The ring that this machine can run, measured, and the same ring simulated from the same tiles. It is as long, and
    has as many heads, as the samples' budget allows; a resumed run keeps its ring."""
    place = backends.place
    local = replace(place, target=Target(place.target.hardware, (place.here,)))
    asked, turns = replace(request, method="measured"), request.sampling.min_samples + request.sampling.warmup
    every = [
        small_cases(request, local, seq_len, groups, say)
        for seq_len, groups in itertools.product((SMALL_LEN, SMALL_LEN // 2, SMALL_LEN // 4), (SMALL_HEADS, 2, 1))
    ]
    begun = [
        wanted for wanted in every if any((*case.identity, "measured") in request.previous_by_key for case in wanted)
    ]
    for wanted in begun[:1] or every:
        missing = [case for case in wanted if not already_measured(asked, case)]
        if begun and not missing and all((*case.identity, "simulated") in request.previous_by_key for case in wanted):
            return
        expected = finals(run_one_by_one(backends.simulated(local), wanted))
        turn_s = sum(each.median_s or 0.0 for each in expected)
        if expected and (begun or turn_s * turns <= SMALL_SHARE * left_s()):
            try:
                for passes in dict.fromkeys(case.workload.passes for case in missing):
                    group = [case for case in missing if case.workload.passes == passes]
                    weight = sum(each.median_s or 0.0 for each in expected if each.workload.passes == passes) / turn_s
                    sampled = backends.measured(local).run(group, SMALL_SHARE * weight * left_s())
                    yield from with_estimated_sensitivity(sampled, expected)
            except KeyboardInterrupt:
                yield from map(Final, expected)
                raise
            yield from map(Final, expected)
            return


def small_cases(request: Request, place: LocalTarget, seq_len: int, groups: int, say: Say) -> list[Case]:
    """The request reduced to `seq_len` tokens and `groups` key/value heads, on the devices of `place`, without cases
    that cannot be reduced. Tiles come from the longest length, so that they are timed once."""
    attention = [workload for workload in request.workloads if workload.passes != STEP]
    if not attention or groups > (first := attention[0]).kv_heads:
        return []
    if not (first.query_len or 0) <= seq_len <= first.seq_len:
        return []
    passes = dict.fromkeys(workload.passes for workload in attention)
    cut = {"heads": groups * (first.heads // first.kv_heads), "kv_heads": groups, "batch": 1, "model": None}
    longest = replace(first, seq_len=SMALL_LEN, **cut)
    meshed = [with_mesh(replace(plan, mesh=None), place.target.devices) for plan in request.plans]
    plans = [with_tile(plan, longest, place.target.hardware.kind) for plan in meshed]
    workloads = [replace(first, seq_len=seq_len, passes=each, **cut) for each in passes]
    found = bench_cases(replace(request, workloads=workloads, plans=list(dict.fromkeys(plans))), place, say)
    return [case for case in found if case.is_ready]
