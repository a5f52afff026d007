"""Times plans side by side, each by the strongest method that its target and the budget allow.

A target is here or not. Here, plans are measured where they fit the devices and the budget; otherwise they are
simulated, from tiles timed here or from the datasheet of a machine that is not here. A bench of a machine with less
than a ring to offer ends with the small ring it can run, measured beside its own simulation.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stripectl import BadInput, Missing
from stripectl.arithmetic import described
from stripectl.devices import Devices, Place
from stripectl.environment import cores
from stripectl.hardware import Hardware
from stripectl.measurement import Measurement
from stripectl.plan import Plan, parse_plan, unsupported, with_mesh, with_tile
from stripectl.sampling import Effort, Say, measure
from stripectl.simulate import Machine, Simulation, simulate
from stripectl.topology import Target
from stripectl.workload import Workload

SMALL_LEN = 2**14  # of the small ring measured here: long enough that tiles, not messages, take the time
SMALL_SHARE = 0.45  # of what is left of the budget, for sampling it


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a bench is asked. Plans without a mesh get the target's devices on their scheme's axes."""

    workloads: Sequence[Workload]
    plans: Sequence[Plan]
    target: str = "local"
    hardware: Hardware | None = None
    method: str = "auto"
    effort: Effort = field(default_factory=Effort)
    done: Sequence[Measurement] = ()  # of a run that is resumed: not made again


def cases(request: Request, place: Place) -> list[Measurement]:
    """One measurement to be made a workload and plan, refused ones with their reason; tile and mesh are named."""
    hardware, devices = place.target.hardware, place.target.devices
    found = []
    for workload in request.workloads:
        for plan in request.plans:
            meshed = with_mesh(plan, devices)
            reason = unsupported(meshed, workload, hardware.kind, devices)
            full = meshed if reason else with_tile(meshed, workload, hardware.kind)
            method = "simulated" if request.method == "auto" else request.method
            case = Measurement(workload=workload, plan=str(full), target=str(place.target), method=method)
            if reason:
                found.append(replace(case, status="refused", reason=reason))
            else:
                found.append(described(case, hardware))
    return found


def simulated(case: Measurement, machine: Machine) -> Measurement:
    result: Simulation = simulate(case.workload, parse_plan(case.plan), machine)
    calibration = {"source": machine.source, **machine.detail}
    return replace(case, method="simulated", median_s=result.seconds, calibration=calibration)


def bench(request: Request, say: Say, found: list[dict[str, Any]] | None = None) -> Iterator[Measurement]:
    """Measurements in the order of workloads and plans, then the small ring where there is one. The devices that are
    used are added to `found`.

    Raises:
        BadInput: nothing is left to run.
        Missing: the target is not here and was to be measured.
    """
    started = time.monotonic()

    def left_s() -> float:
        return max(0.0, request.effort.budget_s - (time.monotonic() - started))

    with Devices(say, found) as devices:
        place = devices.place(request.target, request.hardware)
        wanted = cases(request, place)
        if all(case.status == "refused" for case in wanted):
            raise BadInput(f"nothing is left to run. {wanted[0].plan}: {wanted[0].reason}")
        baselines = one_device(request, place, wanted) if request.method != "measured" else []
        done = {(m.workload, m.plan, m.target) for m in request.done if m.status != "failed"}
        for index, workload in enumerate(request.workloads):
            share_s = left_s() * workload.flops / sum(each.flops for each in request.workloads[index:])
            for cases_of_one, budget_s in ((wanted, share_s), (baselines, 0.0)):
                group = [case for case in cases_of_one if case.workload == workload]
                left = [case for case in group if (case.workload, case.plan, case.target) not in done]
                yield from by_method(request, place, left, devices, budget_s, say)
        measured_before = any(m.method == "measured" and m.status == "ok" for m in request.done)
        small = request.target == "local" and 1 < place.here < place.target.devices and request.method == "auto"
        if small and not measured_before:
            yield from small_ring(request, place, devices, left_s, say)


def one_device(request: Request, place: Place, wanted: Sequence[Measurement]) -> list[Measurement]:
    """The single-device flash-style baseline of every workload: the kernel of its first plan on one device."""
    found = []
    for workload in request.workloads:
        first = next((case for case in wanted if case.workload == workload and case.status == "ok"), None)
        if first is None or parse_plan(first.plan).devices == 1:
            continue
        plan = replace(parse_plan(first.plan), scheme="ring", layout="contiguous", mesh=())
        case = Measurement(
            workload=workload, plan=str(plan), target=str(Target(place.target.hardware, (1,))), method="simulated"
        )
        found.append(described(case, place.target.hardware))
    return found


def dry_run(request: Request, say: Say) -> list[Measurement]:
    """What a bench would do: every plan with its mesh and tile, or the reason it is refused."""
    with Devices(say) as devices:
        return cases(request, devices.place(request.target, request.hardware))


def by_method(
    request: Request, place: Place, group: Sequence[Measurement], devices: Devices, budget_s: float, say: Say
) -> Iterator[Measurement]:
    """The cases of one workload, each by its method. Those that are measured are sampled in turns."""
    runnable = [case for case in group if case.status == "ok"]
    fits = [case for case in runnable if parse_plan(case.plan).devices <= place.here]
    if request.method == "measured" and len(fits) < len(runnable):
        raise Missing(
            f"{place.target} is not here, so it cannot be measured. Try --method simulated"
            + (f", or --target cpu:{len(cores())}." if place.target.hardware.kind == "cpu" else ".")
        )
    to_measure = fits if request.method == "measured" else []
    found: dict[int, Measurement] = {id(case): case for case in group if case.status != "ok"}
    if request.method != "measured":
        for case in runnable:
            found[id(case)] = simulated(case, devices.machine(place, case.workload, parse_plan(case.plan)))
        turn_s = sum(found[id(case)].median_s or 0.0 for case in fits)
        if (
            request.method == "auto"
            and fits
            and turn_s * (request.effort.min_samples + request.effort.warmup) <= budget_s
        ):
            to_measure = fits
    try:
        for size in dict.fromkeys(parse_plan(case.plan).devices for case in to_measure):
            together = [case for case in to_measure if parse_plan(case.plan).devices == size]
            asked = [replace(case, method="measured") for case in together]
            share_s = budget_s * len(together) / len(to_measure)
            workers = devices.of(size if place.processes else None)
            results = measure(workers, asked, request.effort, share_s, say)
            for result, case in zip(
                results, together, strict=False
            ):  # results first: an interrupt comes after the last
                found[id(case)] = result
    except KeyboardInterrupt:
        yield from (found[id(case)] for case in group if id(case) in found and found[id(case)].median_s)
        raise
    yield from (found[id(case)] for case in group)


def small_ring(request: Request, place: Place, devices: Devices, left_s: Any, say: Say) -> Iterator[Measurement]:
    """The ring that this machine can run, measured, and the same ring simulated from the same tiles."""
    target = Target(place.target.hardware, (place.here,))
    local = replace(place, target=target)
    plans = [replace(plan, mesh=()) for plan in request.plans]
    first = request.workloads[0]
    passes = list(dict.fromkeys(workload.passes for workload in request.workloads))

    def sized(seq_len: int, groups: int) -> tuple[list[Measurement], float]:
        heads = groups * (first.heads // first.kv_heads)
        workloads = [
            replace(first, seq_len=seq_len, heads=heads, kv_heads=groups, batch=1, model=None, passes=each)
            for each in passes
        ]
        found = [
            case for case in cases(replace(request, workloads=workloads, plans=plans), local) if case.status == "ok"
        ]
        for_each = [simulated(case, devices.machine(local, case.workload, parse_plan(case.plan))) for case in found]
        return for_each, sum(each.median_s or 0.0 for each in for_each)

    turns = request.effort.min_samples + request.effort.warmup
    for seq_len, groups in itertools.product((SMALL_LEN, SMALL_LEN // 2, SMALL_LEN // 4), (4, 2, 1)):
        if groups > first.kv_heads or seq_len > first.seq_len:
            continue
        expected, turn_s = sized(seq_len, groups)
        if expected and turn_s * turns <= SMALL_SHARE * left_s():
            asked = [replace(case, method="measured", median_s=None, calibration=None) for case in expected]
            yield from measure(devices.of(place.processes), asked, request.effort, SMALL_SHARE * left_s(), say)
            yield from expected
            return
