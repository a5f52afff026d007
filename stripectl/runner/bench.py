"""Times plans side by side, each by the strongest method that its target and the budget allow.

A target is here or not. Here, plans are measured where they fit the devices and the budget, otherwise simulated from
tiles timed here. For a machine that is not here they are compiled, or simulated from its datasheet where its compiler
is not here either. A bench of a machine with less than a ring to offer ends with the small ring it can run, measured
beside its own simulation.
"""

import itertools
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

from stripectl.compile.compiler import CompilerPool, compile_case
from stripectl.compile.toolchain import TOOLCHAINS
from stripectl.core.defaults import with_mesh, with_tile
from stripectl.core.kernel import kernels
from stripectl.core.method import METHODS
from stripectl.core.plan import DEFAULT_KERNELS, Plan
from stripectl.core.workload import STEP
from stripectl.errors import BadInput, Missing
from stripectl.hardware.target import Target
from stripectl.measure.device_pool import DevicePool, LocalTarget
from stripectl.measure.sampler import UNFINISHED
from stripectl.results.measurement import Measurement
from stripectl.results.schema import MAX_ASKED_PLANS, MAX_SIMULATED_PLANS
from stripectl.results.search_table import SearchTable
from stripectl.runner.backends import measure_cases, simulate_case, simulate_group
from stripectl.runner.max_length import max_length, max_length_cases
from stripectl.runner.meshes import MAX_FULL_ROWS, notable_plans, promising_plans
from stripectl.runner.request import SMALL_HEADS, SMALL_LEN, Request, make_case
from stripectl.runner.static_facts import with_static_facts
from stripectl.simulate.sensitivity import with_estimated_sensitivity
from stripectl.simulate.training_step import with_fewer_layers
from stripectl.util.progress import Say, quiet
from stripectl.workers.coordinator import Cluster

PROGRESS_PLANS = 256  # between two signs of progress
SMALL_SHARE = 0.45  # of what is left of the budget, for sampling it


def bench_cases(request: Request, place: LocalTarget, say: Say = quiet) -> list[Measurement]:
    """One measurement to be made a workload and plan, refused ones with their reason; tile and mesh are named."""
    method = "simulated" if request.method == "auto" else request.method
    found, most = list[Measurement](), MAX_SIMULATED_PLANS if request.is_search else MAX_ASKED_PLANS
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
                say("look at plans", done, len(plans))
            found.append(make_case(workload, plan, flags, place, method, describe=not request.is_search))
    return found


def bench(
    request: Request,
    say: Say,
    found: list[dict[str, Any]] | None = None,
    cluster: Cluster | None = None,
    searches: list[SearchTable] | None = None,
) -> Iterator[Measurement]:
    """Measurements in the order of workloads and plans, a baseline on one device after each workload, then the small
    ring where there is one. The devices that are used are added to `found`; they are this host's, or a cluster's. Of a
    workload with very many plans the notable ones are yielded, and a table of all is added to `searches`.

    Raises:
        BadInput: nothing is left to run.
        Missing: the target is not here and was to be measured, or its compiler is not and it was to be compiled for.
    """
    started, searches = time.monotonic(), [] if searches is None else searches

    def left_s() -> float:
        return max(0.0, request.sampling.budget_s - (time.monotonic() - started))

    effort = request.sampling
    limit_s = effort.compile_timeout_s
    with DevicePool(say, found, cluster) as devices, CompilerPool(say, limit_s, request.use_cache) as compilers:
        place = devices.local_target(request.target, request.hardware)
        if request.method == "measured" and place.here and place.target.hardware.kind == "cpu":
            place = replace(place, target=Target(place.target.hardware, (place.here,)))
        request = request.resolve_for(place)
        check_possible(request, place, compilers)
        if request.find_max_length:
            yield from max_length(request, place, devices, compilers, compiling(request, place))
            return
        wanted = bench_cases(request, place, say)
        if all(case.status == "refused" for case in wanted):
            raise BadInput(f"nothing is left to run. {wanted[0].plan}: {wanted[0].reason}")
        wanted += one_device(request, place, wanted) if request.baseline and not request.is_search else []
        for index, workload in enumerate(request.workloads):
            share_s = left_s() * workload.flops / sum(each.flops for each in request.workloads[index:])
            alike = [case for case in wanted if case.workload == workload]
            group = [case for case in alike if not already_measured(request, case)]
            if request.is_search:
                search = yield from run_search(request, place, alike, devices, compilers, share_s)
                searches[:] = search.replacing(searches) if search else searches
            elif compiling(request, place):
                yield from compile_group(group, place, compilers)
            else:
                yield from run_group(request, place, alike, devices, share_s, say)
        if request.target == "local" and 1 < place.here < place.target.devices and request.method == "auto":
            yield from small_ring(request, place, devices, left_s, say)


def check_possible(request: Request, place: LocalTarget, compilers: CompilerPool) -> None:
    """Fail before anything runs where the target cannot do what is asked.

    Raises:
        BadInput: no method can. Missing: the compiler is not here.
    """
    if request.every_tile and place.here:
        raise BadInput(
            "cannot simulate every tile for a machine that is here, because each would be timed. Try stripectl "
            "tune-tiles, or name the tiles."
        )
    if request.find_max_length and (request.method == "measured" or place.target.hardware.kind == "cpu"):
        raise BadInput(
            "cannot find the longest sequence, because only compiled and simulated plans have a known limit of memory. "
            "Try --target v5e:4x4 --method compiled."
        )
    if request.method == "compiled":
        compilers.toolchain(place.target)


def already_measured(request: Request, case: Measurement) -> bool:
    """Whether the run that is resumed holds it, by the method that is asked for, and with a profile where one is."""
    methods = METHODS if request.method == "auto" else (request.method,)
    made = [
        request.previous_by_key[key]
        for method in methods
        if (key := (*case.identity, method)) in request.previous_by_key
    ]
    finished = [m for m in made if m.status != "ok" or m.reason != UNFINISHED]
    return any(
        m.method != "measured" or not request.sampling.tracer or "devices" in (m.profile or {}) for m in finished
    )


def compiling(request: Request, place: LocalTarget) -> bool:
    """Whether plans are compiled ahead of time: where that is asked for, or the machine is not here but its compiler
    is."""
    kind = place.target.hardware.kind
    return request.method == "compiled" or (
        request.method == "auto" and not place.here and kind in TOOLCHAINS and not TOOLCHAINS[kind].missing
    )


def compile_group(group: Sequence[Measurement], place: LocalTarget, compilers: CompilerPool) -> Iterator[Measurement]:
    """The cases of one workload, compiled."""
    for done, case in enumerate(group):
        compilers.say(f"compile {case.workload.passes} of {case.plan}", done, len(group))
        yield compile_case(case, place.target, compilers)


def run_search(
    request: Request,
    place: LocalTarget,
    group: Sequence[Measurement],
    devices: DevicePool,
    compilers: CompilerPool,
    budget_s: float,
) -> Generator[Measurement, None, SearchTable | None]:
    """The cases of one workload, simulated, or of many the notable ones; the few most promising of schemes and meshes
    compiled too, or measured where they are here. If one of these is refused, the next takes its place. Then the
    baseline on one device, with the kernel and tile of the fastest plan. Returns the table of many cases."""
    started, search = time.monotonic(), None
    known, asked = simulate_group(group, place, devices), {case.identity: case for case in group}
    if len(known) > MAX_FULL_ROWS:
        search = SearchTable.of(known, time.monotonic() - started)
        known = notable_plans(known)
    before = {key: m for key, m in request.previous_by_key.items() if m.reason != UNFINISHED}
    yield from (m for m in known if m.key not in before)
    ranked = promising_plans(known)
    left = [with_static_facts(asked[m.identity], place.target.hardware) for m in ranked]
    if compiling(request, place):
        done = 0
        for case in (replace(case, method="compiled") for case in left):
            if (made := before.get(case.key)) is None:
                compilers.say(f"compile {case.workload.passes} of {case.plan}", done, request.refine_count)
                yield (made := compile_case(case, place.target, compilers))
            if (done := done + (made.status == "ok")) == request.refine_count:
                break
    elif request.method != "simulated" and all(m.devices <= place.here for m in left):
        # Another few, were they timed anew.
        left.sort(key=lambda case: (*case.identity, "measured") not in request.previous_by_key)
        chosen = [
            replace(case, method="measured") for case in with_estimated_sensitivity(left[: request.refine_count], known)
        ]
        chosen = [case for case in chosen if case.key not in before]
        yield from measure_cases(request, place, chosen, devices, budget_s, compilers.say)
    alone = one_device(request, place, ranked) if request.baseline else []
    yield from (m for m in simulate_group(alone, place, devices) if not already_measured(request, m))
    return search


def one_device(request: Request, place: LocalTarget, wanted: Sequence[Measurement]) -> list[Measurement]:
    """The single-device flash-style baseline of every workload, and set of flags: the kernel and tiles of its first
    plan, where that has tiles."""
    found = []
    for workload, flags in itertools.product(request.workloads, request.flags):
        alike = (case for case in wanted if case.workload == workload and (case.flags or {}) == flags)
        first = next((case for case in alike if case.status == "ok"), None)
        if first is None or first.devices == 1 or workload.passes == STEP:
            continue
        own, alone = first.plan, replace(place, target=Target(place.target.hardware, (1,)))
        name = "pass_kv" if workload.query_len else "ring"
        plan = Plan(name, "contiguous", DEFAULT_KERNELS[workload.attention], mesh=())
        if not kernels[own.kernel].keeps_all_scores:
            plan = replace(plan, kernel=own.kernel, tile=own.tile, backward=own.backward)
        found.append(make_case(workload, plan, flags, alone, first.method))
    return found


def dry_run_bench(request: Request, say: Say, cluster: Cluster | None = None) -> list[Measurement]:
    """What a bench would do: every plan with its mesh and tile, or the reason it is refused."""
    with DevicePool(say, cluster=cluster) as devices:
        place = devices.local_target(request.target, request.hardware)
        request = request.resolve_for(place)
        return max_length_cases(request, place) if request.find_max_length else bench_cases(request, place, say)


def run_group(
    request: Request, place: LocalTarget, group: Sequence[Measurement], devices: DevicePool, budget_s: float, say: Say
) -> Iterator[Measurement]:
    """The cases of one workload that are not done: simulated, or measured where that is asked for, or where all are
    here and their simulated times say that the budget holds enough samples; in a run that is resumed as it was."""
    runnable = [case for case in group if case.status == "ok"]
    here = all(case.devices <= place.here for case in runnable)
    decided = {method for case in runnable for method in METHODS if (*case.identity, method) in request.previous_by_key}
    every, group = group, [case for case in group if not already_measured(request, case)]
    if not group:
        return
    if request.method == "measured":
        if not here:
            cpu = f", or --target cpu:{devices.cores}" if place.target.hardware.kind == "cpu" else ""
            raise Missing(
                f"{place.target} is not here, so it cannot be measured. Try stripectl bench --method simulated{cpu}."
            )
        yield from measure_cases(request, place, group, devices, budget_s, say)
    elif request.method == "simulated" or not here or (decided and "measured" not in decided):
        yield from simulate_group(group, place, devices)
    else:
        estimates = [simulate_case(case, place, devices) for case in every]
        known = {estimate.identity: estimate for estimate in estimates}
        run = [each for case in every for each in with_fewer_layers(case)]
        turn_s = sum((known.get(each.identity) or simulate_case(each, place, devices)).median_s or 0.0 for each in run)
        if decided or turn_s * (request.sampling.min_samples + request.sampling.warmup) <= budget_s:
            group = with_estimated_sensitivity(group, estimates)
            yield from measure_cases(request, place, group, devices, budget_s, say)
        else:
            asked = {case.identity for case in group}
            yield from (estimate for estimate in estimates if estimate.identity in asked)


def small_ring(
    request: Request, place: LocalTarget, devices: DevicePool, left_s: Callable[[], float], say: Say
) -> Iterator[Measurement]:
    """The ring that this machine can run, measured, and the same ring simulated from the same tiles: as long as its
    samples fit the budget, with as many heads; in a run that is resumed, the one that it began with."""
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
        expected = [simulate_case(case, local, devices) for case in wanted]
        turn_s = sum(each.median_s or 0.0 for each in expected)
        if expected and (begun or turn_s * turns <= SMALL_SHARE * left_s()):
            try:
                for passes in dict.fromkeys(case.workload.passes for case in missing):
                    group = with_estimated_sensitivity(
                        [case for case in missing if case.workload.passes == passes], expected
                    )
                    weight = sum(each.median_s or 0.0 for each in expected if each.workload.passes == passes) / turn_s
                    budget_s = SMALL_SHARE * weight * left_s()
                    yield from measure_cases(request, local, group, devices, budget_s, say)
            except KeyboardInterrupt:
                yield from expected
                raise
            yield from expected
            return


def small_cases(request: Request, place: LocalTarget, seq_len: int, groups: int, say: Say) -> list[Measurement]:
    """The request cut to `seq_len` tokens and `groups` key/value heads, on the devices of `place`; what cannot be cut
    so is left out. Tiles are those of the longest length, so that they are timed once."""
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
    return [case for case in found if case.status == "ok"]
