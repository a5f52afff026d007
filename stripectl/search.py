"""Many plans on clocks at once: their time and memory, without what explains them.

Plans that differ in their tiles alone run together: the clocks take an axis of plans.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from stripectl import BadInput
from stripectl.arithmetic import COUNTING, with_counts, within_memory
from stripectl.defaults import with_tile
from stripectl.devices import Devices, Place
from stripectl.hybrid import layers_of
from stripectl.launch import PlanFailed
from stripectl.machine import Machine
from stripectl.measurement import Measurement
from stripectl.plan import Plan, make_mesh, parse_plan
from stripectl.refusal import unsupported
from stripectl.scheme import schemes
from stripectl.simulate import Times, simulate, times_of
from stripectl.simulate.step_memory import memory_of_step
from stripectl.step import again, of_step, seconds_computed, seconds_sent
from stripectl.topology import hardware_kind
from stripectl.training_time import told
from stripectl.workload import STEP, Workload

MOST_TIMES = 2**6  # as many devices as a case has are looked at


def timed_together(cases: Sequence[Measurement], place: Place, devices: Devices) -> Iterator[Measurement]:
    """The cases, in their order, with time, memory and bytes; those that are not to be run as they are."""
    groups: dict[tuple[Workload, Plan], list[tuple[Measurement, Plan]]] = {}
    for case in cases:
        if case.status == "ok":
            plan = parse_plan(case.plan)
            groups.setdefault((case.workload, but_for_tiles(plan)), []).append((case, plan))
    found = {id(case): made for group in groups.values() for case, made in _group(group, place, devices)}
    return (found.get(id(case), case) for case in cases)


def enough_devices(case: Measurement) -> Plan | None:
    """The plan of a case on so many times the devices along its scheme's first axis that it fits their memory, as its
    arrays add up; None where that is not known."""
    plan = parse_plan(case.plan)
    axis = next((axis for axis in schemes[plan.scheme].axes if plan.size(axis) > 1), None)
    if axis is None or not case.hbm_bytes:
        return None
    for times in (2**power for power in range(1, MOST_TIMES.bit_length())):
        mesh = make_mesh({**plan.axes, axis: plan.size(axis) * times})
        wider = replace(plan, mesh=mesh, tile=None, backward=None)
        kind = hardware_kind(case.target)
        if unsupported(wider, case.workload, kind):
            return None
        wider = with_tile(wider, case.workload, kind)
        if peak_bytes(case.workload, wider, kind) <= case.hbm_bytes:
            return wider
    return None


def peak_bytes(workload: Workload, plan: Plan, kind: str) -> int:
    """The most memory that a device of a kind of hardware holds, as arrays on clocks add up."""
    if workload.passes == STEP:
        return sum(memory_of_step(workload, plan, kind).values())
    return simulate(workload, plan, COUNTING).peak_bytes


def but_for_tiles(plan: Plan) -> Plan:
    softmax = plan.softmax and replace(plan.softmax, tile=None, backward=None)
    return replace(plan, tile=None, backward=None, softmax=softmax)


def _group(
    group: Sequence[tuple[Measurement, Plan]], place: Place, devices: Devices
) -> Iterator[tuple[Measurement, Measurement]]:
    """Each case of plans that differ in their tiles alone, and what was made of it."""
    runnable = list[tuple[Measurement, Plan, list[Machine]]]()
    for case, plan in group:
        try:
            machines = [devices.machine(place, alike, own) for _, alike, own in layers_of(case.workload, plan)]
        except BadInput as error:
            yield case, replace(case, status="refused", reason=str(error))
        except PlanFailed as failure:
            yield case, replace(case, status="failed", reason=f"its tiles could not be timed: {failure}")
        else:
            runnable.append((case, plan, machines))
    if not runnable:
        return
    first, step = runnable[0][0], runnable[0][0].workload.passes == STEP
    kinds = list[Times]()
    for at, (_, alike, _) in enumerate(layers_of(first.workload, runnable[0][1])):
        plans = [layers_of(case.workload, plan)[at].plan for case, plan, _ in runnable]
        work = alike.of_layer("forward-backward") if step else alike
        try:
            kinds.append(times_of(work, plans, [machines[at] for _, _, machines in runnable], layer=step))
        except Exception as error:  # a scheme may be anybody's code; one that breaks must not take the others along
            reason = f"its program fails on clocks: {type(error).__name__}: {error}"
            yield from ((case, replace(case, status="failed", reason=reason)) for case, _, _ in runnable)
            return
    for at, (asked, plan, machines) in enumerate(runnable):
        case = replace(asked, method="simulated", calibration=told(machines))
        case = with_counts(case, place.target.hardware, int(kinds[0].computed[at]), kinds[0].sent)
        yield asked, _step(case, plan, machines, kinds, at, place, devices) if step else _attention(case, kinds[0], at)


def _attention(case: Measurement, times: Times, at: int) -> Measurement:
    case = within_memory(replace(case, peak_bytes=int(times.peak_bytes[at])))
    return replace(case, median_s=float(times.seconds[at])) if case.status == "ok" else case


def _step(
    case: Measurement,
    plan: Plan,
    machines: Sequence[Machine],
    kinds: Sequence[Times],
    at: int,
    place: Place,
    devices: Devices,
) -> Measurement:
    """As `training_time.simulated_step` times it."""
    workload, hardware = case.workload, devices.hardware(place, case.workload.dtype)
    parts = memory_of_step(workload, plan, hardware.kind, max(int(each.peak_bytes[at]) for each in kinds))
    case = within_memory(replace(case, memory=parts, peak_bytes=sum(parts.values())))
    if case.status != "ok":
        return case
    step, twice = of_step(workload, plan), [again(own) for _, _, own in layers_of(workload, plan)]
    counts = [count for count, _, _ in layers_of(workload, plan)]
    sent, seconds = Counter[str](), [*seconds_computed(step, hardware, workload.dtype).values()]
    for count, times, both in zip(counts, kinds, twice, strict=True):
        seconds.append(count * float(times.seconds[at] + both * times.forward_s[at]))
        for along in (times.along, *[times.forward_along] * both):
            for (_, opcode), nbytes in along.items():
                sent[opcode] += count * nbytes
    for each in step.sent:
        seconds.append(seconds_sent(each, plan, machines[0]))
        sent[each.opcode] += round(each.nbytes * each.times)
    return replace(case, median_s=math.fsum(seconds), bytes=dict(sent))
