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

from stripectl.compile.compiler import Compilers, compiled
from stripectl.compile.toolchain import TOOLCHAINS
from stripectl.core.defaults import with_mesh, with_tile
from stripectl.core.kernel import kernels
from stripectl.core.method import METHODS
from stripectl.core.plan import DEFAULT_KERNELS, Plan, parse_plan
from stripectl.core.workload import STEP
from stripectl.errors import BadInput, Missing
from stripectl.hardware.target import Target
from stripectl.measure.device_pool import Devices, Place
from stripectl.measure.sampler import UNFINISHED
from stripectl.results.measurement import Measurement
from stripectl.results.schema import MOST_ASKED, MOST_SIMULATED
from stripectl.results.search_table import Search
from stripectl.runner.backends import measured, simulate_group, simulated
from stripectl.runner.max_length import longest_cases, longest_of
from stripectl.runner.meshes import MAX_FULL_ROWS, notable, promising
from stripectl.runner.request import SMALL_HEADS, SMALL_LEN, Request, to_make
from stripectl.runner.static_facts import described
from stripectl.simulate.sensitivity import with_reasons
from stripectl.simulate.training_step import shallower
from stripectl.util.progress import Say, quiet
from stripectl.workers.coordinator import Cluster

PROGRESS_PLANS = 256  # between two signs of progress
SMALL_SHARE = 0.45  # of what is left of the budget, for sampling it


def cases(request: Request, place: Place, say: Say = quiet) -> list[Measurement]:
    """One measurement to be made a workload and plan, refused ones with their reason; tile and mesh are named."""
    method = "simulated" if request.method == "auto" else request.method
    found, most = list[Measurement](), MOST_SIMULATED if request.is_search else MOST_ASKED
    for workload in request.workloads:
        usual = (
            request.meshed(each, workload, place) for plan in request.plans for each in request.meshes(plan, place)
        )
        plans = [each for plan in usual for each in request.tiled(plan, workload, place)]
        if len(found) + len(plans) * len(request.flags) > most:
            raise BadInput(f"there are more than {most:,} plans to simulate. Name some of --scheme, --mesh or --tile.")
        for done, (plan, flags) in enumerate(itertools.product(plans, request.flags)):
            if done % PROGRESS_PLANS == 0:
                say("look at plans", done, len(plans))
            found.append(to_make(workload, plan, flags, place, method, describe=not request.is_search))
    return found


def bench(
    request: Request,
    say: Say,
    found: list[dict[str, Any]] | None = None,
    cluster: Cluster | None = None,
    searches: list[Search] | None = None,
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
        return max(0.0, request.effort.budget_s - (time.monotonic() - started))

    effort = request.effort
    limit_s = effort.compile_limit_s
    with Devices(say, found, cluster) as devices, Compilers(say, limit_s, request.cached) as compilers:
        place = devices.place(request.target, request.hardware)
        if request.method == "measured" and place.here and place.target.hardware.kind == "cpu":
            place = replace(place, target=Target(place.target.hardware, (place.here,)))
        request = request.on(place)
        check_possible(request, place, compilers)
        if request.longest:
            yield from longest_of(request, place, devices, compilers, compiling(request, place))
            return
        wanted = cases(request, place, say)
        if all(case.status == "refused" for case in wanted):
            raise BadInput(f"nothing is left to run. {wanted[0].plan}: {wanted[0].reason}")
        wanted += one_device(request, place, wanted) if request.baseline and not request.is_search else []
        for index, workload in enumerate(request.workloads):
            share_s = left_s() * workload.flops / sum(each.flops for each in request.workloads[index:])
            alike = [case for case in wanted if case.workload == workload]
            group = [case for case in alike if not is_done(request, case)]
            if request.is_search:
                search = yield from by_search(request, place, alike, devices, compilers, share_s)
                searches[:] = search.among(searches) if search else searches
            elif compiling(request, place):
                yield from ahead(group, place, compilers)
            else:
                yield from by_method(request, place, alike, devices, share_s, say)
        if request.target == "local" and 1 < place.here < place.target.devices and request.method == "auto":
            yield from small_ring(request, place, devices, left_s, say)


def check_possible(request: Request, place: Place, compilers: Compilers) -> None:
    """Fail before anything runs where the target cannot do what is asked.

    Raises:
        BadInput: no method can. Missing: the compiler is not here.
    """
    if request.every_tile and place.here:
        raise BadInput(
            "cannot simulate every tile for a machine that is here, because each would be timed. Try stripectl "
            "tune-tiles, or name the tiles."
        )
    if request.longest and (request.method == "measured" or place.target.hardware.kind == "cpu"):
        raise BadInput(
            "cannot find the longest sequence, because only compiled and simulated plans have a known limit of memory. "
            "Try --target v5e:4x4 --method compiled."
        )
    if request.method == "compiled":
        compilers.toolchain(place.target)


def is_done(request: Request, case: Measurement) -> bool:
    """Whether the run that is resumed holds it, by the method that is asked for, and with a profile where one is."""
    methods = METHODS if request.method == "auto" else (request.method,)
    made = [request.known[key] for method in methods if (key := (*case.what, method)) in request.known]
    finished = [m for m in made if m.status != "ok" or m.reason != UNFINISHED]
    return any(m.method != "measured" or not request.effort.tracer or "devices" in (m.trace or {}) for m in finished)


def compiling(request: Request, place: Place) -> bool:
    """Whether plans are compiled ahead of time: where that is asked for, or the machine is not here but its compiler
    is."""
    kind = place.target.hardware.kind
    return request.method == "compiled" or (
        request.method == "auto" and not place.here and kind in TOOLCHAINS and not TOOLCHAINS[kind].missing
    )


def ahead(group: Sequence[Measurement], place: Place, compilers: Compilers) -> Iterator[Measurement]:
    """The cases of one workload, compiled."""
    for done, case in enumerate(group):
        compilers.say(f"compile {case.workload.passes} of {case.plan}", done, len(group))
        yield compiled(case, place.target, compilers)


def by_search(
    request: Request,
    place: Place,
    group: Sequence[Measurement],
    devices: Devices,
    compilers: Compilers,
    budget_s: float,
) -> Generator[Measurement, None, Search | None]:
    """The cases of one workload, simulated, or of many the notable ones; the few most promising of schemes and meshes
    compiled too, or measured where they are here. If one of these is refused, the next takes its place. Then the
    baseline on one device, with the kernel and tile of the fastest plan. Returns the table of many cases."""
    started, search = time.monotonic(), None
    known, asked = simulate_group(group, place, devices), {case.what: case for case in group}
    if len(known) > MAX_FULL_ROWS:
        search = Search.of(known, time.monotonic() - started)
        known = notable(known)
    before = {key: m for key, m in request.known.items() if m.reason != UNFINISHED}
    yield from (m for m in known if m.key not in before)
    ranked = promising(known)
    left = [described(asked[m.what], place.target.hardware) for m in ranked]
    if compiling(request, place):
        done = 0
        for case in (replace(case, method="compiled") for case in left):
            if (made := before.get(case.key)) is None:
                compilers.say(f"compile {case.workload.passes} of {case.plan}", done, request.few)
                yield (made := compiled(case, place.target, compilers))
            if (done := done + (made.status == "ok")) == request.few:
                break
    elif request.method != "simulated" and all(m.devices <= place.here for m in left):
        left.sort(key=lambda case: (*case.what, "measured") not in request.known)  # another few, were they timed anew
        chosen = [replace(case, method="measured") for case in with_reasons(left[: request.few], known)]
        chosen = [case for case in chosen if case.key not in before]
        yield from measured(request, place, chosen, devices, budget_s, compilers.say)
    alone = one_device(request, place, ranked) if request.baseline else []
    yield from (m for m in simulate_group(alone, place, devices) if not is_done(request, m))
    return search


def one_device(request: Request, place: Place, wanted: Sequence[Measurement]) -> list[Measurement]:
    """The single-device flash-style baseline of every workload, and set of flags: the kernel and tiles of its first
    plan, where that has tiles."""
    found = []
    for workload, flags in itertools.product(request.workloads, request.flags):
        alike = (case for case in wanted if case.workload == workload and (case.flags or {}) == flags)
        first = next((case for case in alike if case.status == "ok"), None)
        if first is None or first.devices == 1 or workload.passes == STEP:
            continue
        own, alone = parse_plan(first.plan), replace(place, target=Target(place.target.hardware, (1,)))
        name = "pass_kv" if workload.query_len else "ring"
        plan = Plan(name, "contiguous", DEFAULT_KERNELS[workload.attention], mesh=())
        if not kernels[own.kernel].whole:
            plan = replace(plan, kernel=own.kernel, tile=own.tile, backward=own.backward)
        found.append(to_make(workload, plan, flags, alone, first.method))
    return found


def dry_run(request: Request, say: Say, cluster: Cluster | None = None) -> list[Measurement]:
    """What a bench would do: every plan with its mesh and tile, or the reason it is refused."""
    with Devices(say, cluster=cluster) as devices:
        place = devices.place(request.target, request.hardware)
        request = request.on(place)
        return longest_cases(request, place) if request.longest else cases(request, place, say)


def by_method(
    request: Request, place: Place, group: Sequence[Measurement], devices: Devices, budget_s: float, say: Say
) -> Iterator[Measurement]:
    """The cases of one workload that are not done: simulated, or measured where that is asked for, or where all are
    here and their simulated times say that the budget holds enough samples; in a run that is resumed as it was."""
    runnable = [case for case in group if case.status == "ok"]
    here = all(case.devices <= place.here for case in runnable)
    decided = {method for case in runnable for method in METHODS if (*case.what, method) in request.known}
    every, group = group, [case for case in group if not is_done(request, case)]
    if not group:
        return
    if request.method == "measured":
        if not here:
            cpu = f", or --target cpu:{devices.cores}" if place.target.hardware.kind == "cpu" else ""
            raise Missing(
                f"{place.target} is not here, so it cannot be measured. Try stripectl bench --method simulated{cpu}."
            )
        yield from measured(request, place, group, devices, budget_s, say)
    elif request.method == "simulated" or not here or (decided and "measured" not in decided):
        yield from simulate_group(group, place, devices)
    else:
        estimates = [simulated(case, place, devices) for case in every]
        known = {estimate.what: estimate for estimate in estimates}
        run = [each for case in every for each in shallower(case)]
        turn_s = sum((known.get(each.what) or simulated(each, place, devices)).median_s or 0.0 for each in run)
        if decided or turn_s * (request.effort.min_samples + request.effort.warmup) <= budget_s:
            group = with_reasons(group, estimates)
            yield from measured(request, place, group, devices, budget_s, say)
        else:
            asked = {case.what for case in group}
            yield from (estimate for estimate in estimates if estimate.what in asked)


def small_ring(
    request: Request, place: Place, devices: Devices, left_s: Callable[[], float], say: Say
) -> Iterator[Measurement]:
    """The ring that this machine can run, measured, and the same ring simulated from the same tiles: as long as its
    samples fit the budget, with as many heads; in a run that is resumed, the one that it began with."""
    local = replace(place, target=Target(place.target.hardware, (place.here,)))
    asked, turns = replace(request, method="measured"), request.effort.min_samples + request.effort.warmup
    every = [
        small_cases(request, local, seq_len, groups, say)
        for seq_len, groups in itertools.product((SMALL_LEN, SMALL_LEN // 2, SMALL_LEN // 4), (SMALL_HEADS, 2, 1))
    ]
    begun = [wanted for wanted in every if any((*case.what, "measured") in request.known for case in wanted)]
    for wanted in begun[:1] or every:
        missing = [case for case in wanted if not is_done(asked, case)]
        if begun and not missing and all((*case.what, "simulated") in request.known for case in wanted):
            return
        expected = [simulated(case, local, devices) for case in wanted]
        turn_s = sum(each.median_s or 0.0 for each in expected)
        if expected and (begun or turn_s * turns <= SMALL_SHARE * left_s()):
            try:
                for passes in dict.fromkeys(case.workload.passes for case in missing):
                    group = with_reasons([case for case in missing if case.workload.passes == passes], expected)
                    weight = sum(each.median_s or 0.0 for each in expected if each.workload.passes == passes) / turn_s
                    budget_s = SMALL_SHARE * weight * left_s()
                    yield from measured(request, local, group, devices, budget_s, say)
            except KeyboardInterrupt:
                yield from expected
                raise
            yield from expected
            return


def small_cases(request: Request, place: Place, seq_len: int, groups: int, say: Say) -> list[Measurement]:
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
    found = cases(replace(request, workloads=workloads, plans=list(dict.fromkeys(plans))), place, say)
    return [case for case in found if case.status == "ok"]
