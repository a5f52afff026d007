"""The cases of a request: every workload with every plan, each with all its parts named or with the reason why it is
refused; and the baseline on one device."""

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stripectl.compile.toolchain import TOOLCHAINS
from stripectl.core.kernel import kernels
from stripectl.core.method import METHODS, Method, MethodChoice
from stripectl.core.plan import Plan
from stripectl.core.reason import Reason, ReasonKind
from stripectl.core.validation import why_missing, why_unsupported
from stripectl.core.workload import STEP, Workload
from stripectl.costs.core_memory import why_tile_exceeds_core
from stripectl.costs.default_tiles import tiles_for, with_tile
from stripectl.costs.defaults import with_names
from stripectl.errors import BadInput, Missing, StripectlError
from stripectl.hardware.profile import Hardware
from stripectl.hardware.target import Target
from stripectl.measure.local_target import LocalTarget
from stripectl.results.case import Case
from stripectl.results.schema import MAX_ASKED_PLANS, MAX_SIMULATED_PLANS
from stripectl.runner.meshes import every_mesh
from stripectl.runner.replaced_parts import replaced_parts
from stripectl.runner.request import Request
from stripectl.runner.static_facts import with_static_facts
from stripectl.util.progress import Say, quiet
from stripectl.util.units import nbytes

SCORE_BYTES = 4
PROGRESS_PLANS = 256  # between two progress messages


def bench_cases(request: Request, place: LocalTarget, say: Say = quiet) -> list[Case]:
    """One case per workload and plan, with tile and mesh named; refused cases have their reason."""
    found, asked = list[Case](), asked_cases(request, place)
    for done, case in enumerate(asked):
        if done % PROGRESS_PLANS == 0:
            say("check plans", done, len(asked))
        found.append(complete(case, place, describe=not request.is_search))
    return found


def asked_cases(request: Request, place: LocalTarget) -> list[Case]:
    """Every workload with every plan and set of flags, as they were named.

    Raises:
        BadInput: there are too many.
    """
    most = MAX_SIMULATED_PLANS if request.is_search else MAX_ASKED_PLANS
    every = (
        replace(tiled, flags=flags or None)
        for workload in request.workloads
        for plan in request.plans
        for meshed in asked_meshes(request, plan, place)
        for case in [case_of(workload, meshed, {}, place, request.case_method)]
        for tiled in (with_every_tile(case, place) if request.every_tile else [case])
        for flags in request.flags
    )
    found = list(itertools.islice(every, most + 1))
    if len(found) > most:
        raise BadInput(f"there are more than {most:,} plans to simulate. Name some of --scheme, --mesh or --tile.")
    return found


def asked_meshes(request: Request, plan: Plan, place: LocalTarget) -> list[Plan]:
    """Give the plan every requested mesh; a plan without a mesh has the default mesh."""
    return list(every_mesh(plan, place.target.devices)) if request.every_mesh and plan.mesh is None else [plan]


def with_every_tile(case: Case, place: LocalTarget) -> list[Case]:
    """Give a case every tile of its kernel; a plan that names a tile, or cannot run, stays."""
    named = with_named_parts(case, place)
    if named.plan.tile or why_refused(named.plan, named.workload, place.target.hardware, place.target.devices):
        return [named]
    tiles = tiles_for(named.plan, named.workload, place.target.hardware)
    return [replace(named, plan=replace(named.plan, tile=tile)) for tile in tiles]


def make_case(
    workload: Workload,
    plan: Plan,
    flags: Mapping[str, str],
    place: LocalTarget,
    method: Method,
    *,
    describe: bool = True,
) -> Case:
    """Make the case of a plan: with all its parts named, or refused or failed with the reason. Its static facts take as
    long as a simulation, which may `describe` it instead."""
    return complete(case_of(workload, plan, flags, place, method), place, describe=describe)


def case_of(workload: Workload, plan: Plan, flags: Mapping[str, str], place: LocalTarget, method: Method) -> Case:
    """Make the case of a plan as it was asked for."""
    return Case(workload=workload, plan=plan, target=place.target.name, method=method, flags=flags or None)


def complete(case: Case, place: LocalTarget, *, describe: bool = True) -> Case:
    """Complete a case that was asked for, as `make_case` returns it."""
    hardware = place.target.hardware
    named = replace(with_named_parts(case, place), distortions=replaced_parts(case.workload))
    reason = (
        why_refused(named.plan, named.workload, hardware, place.target.devices)
        or why_not_installed(named, named.method, place)
        or why_scores_exceed_memory(named, hardware)
    )
    if reason:
        return replace(named, status="refused", reason=reason)
    flags = named.flags or {}
    full = replace(named, plan=with_tile(named.plan, named.workload, hardware, flags, place.timed))
    if reason := why_tile_exceeds_core(full.plan, full.workload, hardware, flags):
        return replace(full, status="refused", reason=reason)
    return with_static_facts(full, hardware) if describe else full


def with_named_parts(case: Case, place: LocalTarget) -> Case:
    """Name the layout, the mesh and the kernels of a case."""
    return replace(case, plan=with_names(case.plan, case.workload, place.target.hardware, place.target.devices))


def why_refused(plan: Plan, workload: Workload, hardware: Hardware, devices: int | None = None) -> Reason | None:
    """Why the plan cannot compute the workload on `devices` devices of this hardware (None: any number), or None."""
    return why_unsupported(plan, workload, hardware.kind, devices, hardware.capability)


def why_not_installed(case: Case, method: MethodChoice, place: LocalTarget) -> Reason | None:
    """Why a kernel of the case is not installed here, where the method runs it, or None. A simulation runs kernels
    where devices of its target are here, to time tiles, but none that is table only; for `auto` another method is
    left."""
    run = [each for each in case.layers if method != "simulated" or not kernels[each.plan.kernel].table_only]
    return why_missing(run) if place.here or method in ("measured", "compiled") else None


def why_scores_exceed_memory(case: Case, hardware: Hardware) -> Reason | None:
    """Why the scores that a device keeps do not fit in its memory, for a kernel that keeps scores, or None."""
    memory = hardware.figure("hbm_bytes") or host_bytes(hardware)
    if memory is None or not any(kernels[group.plan.kernel].costs.score_touches for group in case.layers):
        return None
    workload = case.workload
    scores = workload.queries * workload.seq_len * workload.heads * workload.batch
    whole = scores * SCORE_BYTES / case.plan.devices
    if whole <= memory:
        return None
    fact = f"its scores take {nbytes(whole)} per device, which has {nbytes(memory)}"
    return Reason(ReasonKind.MEMORY, fact, "Try --scheme ring.")


def host_bytes(hardware: Hardware) -> int | None:
    """The memory of this machine, for a CPU."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hardware.kind == "cpu" else None


def nothing_left(verb: str, first: Case) -> StripectlError:
    """The error of a command whose cases are all refused: of its first case, whose kernel may not be installed."""
    kind = Missing if first.reason and first.reason.kind == ReasonKind.NOT_INSTALLED else BadInput
    return kind(f"nothing is left to {verb}. {first.plan}: {first.reason}")


def one_device(request: Request, place: LocalTarget, wanted: Sequence[Case]) -> list[Case]:
    """The single-device flash-style baseline of every workload and set of flags: with the kernel of its first plan,
    where that has tiles, and with its own default tiles unless the user named tiles."""
    found = list[Case]()
    for workload, flags in itertools.product(request.workloads, request.flags):
        alike = (case for case in wanted if case.workload == workload and (case.flags or {}) == flags)
        first = next((case for case in alike if case.is_ready), None)
        if first is None or first.devices == 1 or workload.passes == STEP:
            continue
        own, alone = first.plan, replace(place, target=Target(place.target.hardware, (1,)))
        name = "pass_kv" if workload.query_len else "memory_efficient" if workload.gated else "ring"
        plan = Plan(name, "contiguous", mesh=())
        if not kernels[own.kernel].keeps_all_scores:
            tiles = {"tile": own.tile, "backward": own.backward} if any(each.tile for each in request.plans) else {}
            plan = replace(plan, kernel=own.kernel, **tiles)
        found.append(make_case(workload, plan, flags, alone, first.method))
    return found


def already_measured(request: Request, case: Case) -> bool:
    """Whether the resumed run contains the case, by the requested method, and with a profile if one is requested."""
    methods = METHODS if request.method == "auto" else (request.method,)
    made = [
        request.previous_by_key[key]
        for method in methods
        if (key := (*case.identity, method)) in request.previous_by_key
    ]
    return any(
        m.method != "measured" or not request.sampling.profile_folder or (m.profile and m.profile.steps is not None)
        for m in made
        if not m.is_unfinished
    )


def compiling(request: Request, place: LocalTarget) -> bool:
    """Whether plans are compiled ahead of time: if requested, or if the target is not available here but its compiler
    is."""
    has_compiler = place.target.hardware.kind in TOOLCHAINS and not place.why_not_compiled
    return request.method == "compiled" or (request.method == "auto" and not place.here and has_compiler)
