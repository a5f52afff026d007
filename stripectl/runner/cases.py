"""The cases of a request: every workload with every plan, and the baseline on one device."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stripectl.compile.toolchain import TOOLCHAINS
from stripectl.core.kernel import kernels
from stripectl.core.method import METHODS
from stripectl.core.plan import Plan
from stripectl.core.validation import why_missing
from stripectl.core.workload import STEP, Workload
from stripectl.costs.defaults import with_names
from stripectl.errors import BadInput, Missing, StripectlError
from stripectl.hardware.target import Target
from stripectl.measure.local_target import LocalTarget
from stripectl.measure.sampler import UNFINISHED
from stripectl.results.case import Case
from stripectl.results.schema import MAX_ASKED_PLANS, MAX_SIMULATED_PLANS
from stripectl.runner.request import Request, make_case
from stripectl.util.progress import Say, quiet

PROGRESS_PLANS = 256  # between two progress messages


def bench_cases(request: Request, place: LocalTarget, say: Say = quiet) -> list[Case]:
    """One case per workload and plan, with tile and mesh named; refused cases have their reason."""
    found, asked = list[Case](), asked_plans(request, place)
    for done, (workload, plan, flags) in enumerate(asked):
        if done % PROGRESS_PLANS == 0:
            say("check plans", done, len(asked))
        found.append(make_case(workload, plan, flags, place, request.case_method, describe=not request.is_search))
    return found


def asked_plans(request: Request, place: LocalTarget) -> list[tuple[Workload, Plan, Mapping[str, str]]]:
    """Every workload with every plan and set of flags.

    Raises:
        BadInput: there are too many.
    """
    most = MAX_SIMULATED_PLANS if request.is_search else MAX_ASKED_PLANS
    every = (
        (workload, each, flags)
        for workload in request.workloads
        for plan in request.plans
        for meshed in request.with_meshes(plan, place)
        for named in [with_names(meshed, workload, place.target.hardware, place.target.devices)]
        for each in request.with_tiles(named, workload, place)
        for flags in request.flags
    )
    found = list(itertools.islice(every, most + 1))
    if len(found) > most:
        raise BadInput(f"there are more than {most:,} plans to simulate. Name some of --scheme, --mesh or --tile.")
    return found


def nothing_left(verb: str, first: Case) -> StripectlError:
    """The error of a command whose cases are all refused: of its first case, whose kernel may not be installed."""
    kind = Missing if first.reason == why_missing(first.plan, first.workload) else BadInput
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
    finished = [m for m in made if m.status != "ok" or m.reason != UNFINISHED]
    return any(
        m.method != "measured" or not request.sampling.profile_folder or (m.profile and m.profile.steps is not None)
        for m in finished
    )


def compiling(request: Request, place: LocalTarget) -> bool:
    """Whether plans are compiled ahead of time: if requested, or if the target is not available here but its compiler
    is."""
    has_compiler = place.target.hardware.kind in TOOLCHAINS and not place.why_not_compiled
    return request.method == "compiled" or (request.method == "auto" and not place.here and has_compiler)
