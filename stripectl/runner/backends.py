"""The cases of a workload by a method: simulated on clocks, or measured on the devices here. `bench`
compiles them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stripectl.core.workload import STEP
from stripectl.measure.device_pool import DevicePool, LocalTarget
from stripectl.measure.sampler import Interrupted, measure
from stripectl.results.fit import check_memory
from stripectl.results.measurement import Measurement
from stripectl.runner.request import Request
from stripectl.runner.search import time_plans, with_cost_models
from stripectl.runner.static_facts import with_static_facts
from stripectl.simulate.sensitivity import with_sensitivity
from stripectl.simulate.simulation import simulate
from stripectl.simulate.step_memory import step_memory
from stripectl.simulate.training_step import from_fewer_layers, simulated_step, with_fewer_layers
from stripectl.util.progress import Say

EXPLAINED_PLANS = (
    20  # plans of a group, the fastest: what limits one and how it scales takes ten times its own simulation
)


def simulate_group(cases: Sequence[Measurement], place: LocalTarget, devices: DevicePool) -> list[Measurement]:
    """The cases of one workload on clocks; of many, the fastest alone with what limits them and how they scale."""

    def in_full(case: Measurement) -> Measurement:
        """A case that nobody has described yet is described first."""
        if case.status == "ok" and not case.tiles:
            case = with_static_facts(case, place.target.hardware)
        return simulate_case(case, place, devices)

    if len(cases) <= EXPLAINED_PLANS:
        return [in_full(case) for case in cases]
    found = list(time_plans(cases, place, devices))
    timed = [at for at, m in enumerate(found) if m.status == "ok" and m.median_s]
    for at in sorted(timed, key=lambda at: found[at].median_s or 0.0)[:EXPLAINED_PLANS]:
        found[at] = in_full(cases[at])
    return found


def simulate_case(case: Measurement, place: LocalTarget, devices: DevicePool) -> Measurement:
    """The case on clocks, with what limits it and how it scales; refused where it does not fit the memory or the
    datasheet lacks a figure, failed where its tiles cannot be timed."""
    if case.status != "ok":
        return case
    case, machines = with_cost_models(case, place, devices)
    if case.status != "ok":
        return case
    plan, hardware = case.plan, place.target.hardware
    if case.workload.passes == STEP:
        hardware = devices.hardware(place, case.workload.dtype)
        parts = step_memory(case.workload, plan, hardware.kind)
        case = check_memory(replace(case, memory=parts, peak_bytes=sum(parts.values())))
        return case if case.status != "ok" else simulated_step(case, hardware, machines)
    found = simulate(case.workload, plan, machines[0])
    case = check_memory(replace(case, peak_bytes=found.peak_bytes))
    if case.status != "ok":
        return case
    return with_sensitivity(replace(case, median_s=found.seconds), plan, machines[0], found, hardware.kind)


def measure_cases(
    request: Request, place: LocalTarget, group: Sequence[Measurement], devices: DevicePool, budget_s: float, say: Say
) -> Iterator[Measurement]:
    """The cases of one workload on the devices here, those on as many devices in turns; refused ones as they are."""
    effort = request.sampling
    runnable = [resume_case(case, request) for case in group if case.status == "ok"]
    made = {case.identity: case for case in group if case.status != "ok"}

    def so_far(results: Sequence[Measurement]) -> None:
        for each in reassemble(group, made | {result.identity: result for result in results}):
            if each.samples_s and effort.so_far:
                effort.so_far(each)

    try:
        for count in dict.fromkeys(case.devices for case in runnable):
            together = [case for case in runnable if case.devices == count]
            workers = devices.group(count if place.processes else None)
            share_s = budget_s * len(together) / len(runnable)
            link = place.target.hardware.figure("link_bytes_per_s_one_way")
            run = [each for case in together for each in with_fewer_layers(case)]
            made |= {result.identity: result for result in measure(workers, run, effort, share_s, say, link, so_far)}
    except Interrupted as interrupt:
        made |= {result.identity: result for result in interrupt.measured}
        yield from reassemble(group, made)
        raise
    yield from reassemble(group, made)


def resume_case(case: Measurement, request: Request) -> Measurement:
    """The case to be measured, with the samples that a run which is resumed holds of it; of a whole model's step, which
    is made of others, there are none to go on from."""
    case = replace(case, method="measured")
    known = request.previous_by_key.get(case.key)
    if known is None or len(with_fewer_layers(case)) > 1:
        return case
    kept = ("samples_s", "check", "compile_s", "peak_bytes", "noise")
    return replace(case, **{name: getattr(known, name) for name in kept})


def reassemble(group: Sequence[Measurement], made: Mapping[Any, Measurement]) -> Iterator[Measurement]:
    """The cases of a group that were made, training steps from those of fewer layers that were run in their place;
    of these, the ones that a profile was captured of."""
    for case in group:
        parts = [made[each.identity] for each in with_fewer_layers(case) if each.identity in made]
        yield from (each for each in parts if each.profile and len(parts) > 1)
        if len(parts) == len(with_fewer_layers(case)):
            yield from_fewer_layers(case, parts)
