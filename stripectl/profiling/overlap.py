"""The overlap in a program's profile: how much communication hides, for every step, device, hop and mesh axis.

Where steps are not marked, a step is a call of the program, or the whole profile where nothing divides the profile.
For each device and step: C is the union of its compute, M the union of its communication windows; hidden = |C and M|,
exposed = |M minus C|, overlap = hidden / |M|. Stall is the time in which a device only waits for a transfer;
`device_steps` defines skew. docs/explanation/definitions.md defines all of them.

Figures are medians over steps. Totals belong to the device that computes longest, as in a simulation: the others
wait for it, which is imbalance and not slow communication. Skew and stall belong to the device with the most.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stripectl.core.intervals import Overlap, common, length, overlap, union
from stripectl.core.reason import Reason, ReasonKind
from stripectl.profiling.device_steps import DeviceSteps, device_steps
from stripectl.profiling.diagnosis import ProfiledPlan, cause, end_cause
from stripectl.profiling.events import Device
from stripectl.profiling.marks import run_unit
from stripectl.profiling.program import ProfiledProgram
from stripectl.profiling.steps import HopKey
from stripectl.profiling.timeline import BINS, merge_moments, moments
from stripectl.results.findings import CommunicationOverlap
from stripectl.results.profile import (
    AxisFigures,
    DeviceFigures,
    HopFigures,
    OperationFigures,
    Profile,
    StepTimeline,
)

MAX_HOPS = 64  # rows of hops; where there are more, the most exposed hops
MAX_OPERATIONS = 12
EXPOSED = 0.05  # of a hop's window: a hop with less exposed time is hidden


def no_overlap(fact: str) -> Reason:
    """Why a profile does not show how much communication is hidden."""
    return Reason(ReasonKind.NO_OVERLAP, fact)


def analyse(
    processes: Sequence[Sequence[Device]], module: str, program: ProfiledProgram, told: ProfiledPlan
) -> Profile:
    """The overlap in a profile of a program."""
    steps = device_steps(processes, module, program)
    if not steps:
        return Profile(
            module=module, steps=0, reason=no_overlap("the profile holds no step that is complete on all its devices")
        )
    unit = run_unit(itertools.chain.from_iterable(processes), module)
    names = device_names(processes)
    figures = [[seen.figures(at) for seen in steps] for at in range(len(names))]
    devices = tuple(device_figures(name, each) for name, each in zip(names, figures, strict=True))
    found = Profile(
        module=module,
        steps=len(steps) if unit == "step" else processes[0][0].marked,
        per=unit,
        calls=len(steps) if unit == "call" else None,
        devices=devices,
        timeline=step_timeline(in_the_middle(steps, lambda seen: seen.end_s)),
        end=end_cause(devices, told, unit) if unit != "profile" else None,
    )
    if program.hops:
        fact = "kernels of the program send its hops, so the profile does not show where hops end"
        return replace(found, reason=no_overlap(fact))
    if not any(step.hops for seen in steps for step in seen.steps):
        return replace(found, reason=no_overlap("the profile holds no collective of the program"))
    hops = hop_rows(steps, told)
    exposed = sorted(hops, key=lambda hop: -hop.most_exposed_s)[:MAX_HOPS]
    return replace(
        found,
        overlap=all_devices_overlap(found),
        hops=tuple(sorted(exposed, key=lambda hop: hop.hop)),
        hops_left_out=len(hops) - len(exposed),
        axes=axis_rows(steps, found.busiest),
    )


def all_devices_overlap(found: Profile) -> CommunicationOverlap:
    """The figures of all devices together."""
    busiest = found.devices[found.busiest]
    return CommunicationOverlap(
        ratio=busiest.ratio,
        hidden_s=busiest.hidden_s,
        exposed_s=busiest.exposed_s,
        skew_s=max(device.skew_s for device in found.devices),
        stall_s=max((device.stall_s for device in found.devices if device.stall_s is not None), default=None),
    )


def device_figures(name: str, steps: Sequence[Mapping[str, float]]) -> DeviceFigures:
    """A device's figures: medians over steps, and the figures of each step."""
    by_step = {figure: tuple(step[figure] for step in steps) for figure in steps[0]}
    medians = {figure: median(values) for figure, values in by_step.items()}
    ratio = Overlap(medians["hidden_s"], medians["exposed_s"]).ratio
    return DeviceFigures(name=name, **medians, ratio=ratio, by_step=by_step)


def device_names(processes: Sequence[Sequence[Device]]) -> list[str]:
    """Names of devices: the device's name, its process, or both, whichever makes them distinct."""
    if len(processes) == 1:
        return [device.name for device in processes[0]]
    return [
        f"process {at}" if len(found) == 1 else f"process {at}, {device.name}"
        for at, found in enumerate(processes)
        for device in found
    ]


def median(values: Any) -> float:
    return float(np.median(list(values)))


def in_the_middle(steps: Sequence[DeviceSteps], figure: Callable[[DeviceSteps], float]) -> DeviceSteps:
    """The step whose figure is the median."""
    return sorted(steps, key=figure)[len(steps) // 2]


def step_timeline(seen: DeviceSteps) -> StepTimeline:
    """Divide a step into `BINS` moments, and list (kind, start, end) for every device."""
    rows = (merge_moments(moments(seen.parts(at), seen.end_s, BINS), seen.end_s) for at in range(len(seen.steps)))
    return StepTimeline(end_s=seen.end_s, devices=tuple(map(tuple, rows)))


def hop_rows(steps: Sequence[DeviceSteps], told: ProfiledPlan) -> list[HopFigures]:
    """Every hop with its figures by device, and the cause of its exposed time, in the order in which hops begin. All
    figures of a hop are from one step, the step of median exposure, so that they are consistent."""
    devices = range(len(steps[0].steps))
    keys = dict.fromkeys(key for seen in steps for step in seen.steps for key in step.hops)
    rows = []
    for key in keys:
        took_part = [seen for seen in steps if any(key in step.hops for step in seen.steps)]
        typical = in_the_middle(took_part, lambda seen: max(exposed_s(seen, at, key) for at in devices))  # noqa: B023
        by_device = {
            name: [f(typical, at, key) if key in typical.steps[at].hops else 0.0 for at in devices]
            for name, f in HOP_FIGURES.items()
        }
        start_s = min(step.hops[key][0, 0] for step in typical.steps if key in step.hops)
        sent = max(step.sent_bytes.get(key, 0) for step in typical.steps)
        rows.append(hop_figures(key, start_s, by_device, sent, told))
    rows.sort(key=lambda hop: hop.start_s or 0.0)
    return [replace(hop, hop=at + 1) for at, hop in enumerate(rows)]


def hop_figures(
    key: HopKey, start_s: float, by_device: dict[str, list[float]], sent: int, told: ProfiledPlan
) -> HopFigures:
    """A hop, without its number, and why it is exposed where it is."""
    worst = int(np.argmax(by_device["exposed_s"]))
    transfer_s = min(filter(None, by_device["window_s"]), default=0.0)
    bytes_per_s = sent / transfer_s if transfer_s and sent else None
    found = HopFigures(
        hop=0,
        opcode=key.site.opcode,
        passes=key.site.passes,
        axis=key.site.axis,
        what=key.site.what,
        turn=key.turn,
        start_s=start_s,
        sent_bytes=sent,
        asynchronous=key.site.asynchronous,
        window_s=tuple(by_device["window_s"]),
        hidden_s=tuple(by_device["hidden_s"]),
        exposed_s=tuple(by_device["exposed_s"]),
        skew_s=tuple(by_device["skew_s"]),
        round_compute_s=tuple(by_device["round_compute_s"]),
        transfer_s=transfer_s,
        bytes_per_s=bytes_per_s,
        of_link=bytes_per_s / told.link_bytes_per_s if bytes_per_s and told.link_bytes_per_s else None,
    )
    if by_device["exposed_s"][worst] <= EXPOSED * by_device["window_s"][worst]:
        return found
    figures = {name: values[worst] for name, values in by_device.items()}
    return replace(found, **vars(cause(key.site, figures, transfer_s, sent, told)))


def own_operations(devices: Sequence[Device], module: str, program: ProfiledProgram) -> tuple[OperationFigures, ...]:
    """The operations of a module that took most time, from the events of all devices, without containers."""
    total: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for device, run in ((each, run) for each in devices for run in each.runs(module)):
        events = device.operations.between(run.start_s, run.end_s)
        counts = np.bincount(events.which, minlength=len(events.names))
        lengths = np.bincount(events.which, events.end_s - events.start_s, minlength=len(events.names))
        for name, count, seconds in zip(events.names, counts.tolist(), lengths.tolist(), strict=True):
            role = program.role(name)
            if count and (role is None or role.kind not in ("container", "none")):
                total[name] = [total[name][0] + count, total[name][1] + seconds]
    every_s = sum(seconds for _, seconds in total.values())
    longest = sorted(total.items(), key=lambda item: -item[1][1])[:MAX_OPERATIONS]
    return tuple(
        OperationFigures(
            name=name,
            category=program.opcode(name),
            count=int(count),
            self_s=seconds,
            share=seconds / every_s if every_s else None,
        )
        for name, (count, seconds) in longest
    )


def round_compute_s(seen: DeviceSteps, at: int, key: HopKey) -> float:
    """A device's compute from a hop's start to the first hop that starts after its end."""
    step = seen.steps[at]
    start, end = step.hops[key][0, 0], step.hops[key][-1, 1]
    later = [windows[0, 0] for windows in step.hops.values() if windows[0, 0] >= end]
    return length(common(step.compute, np.array([[start, min(later, default=step.end_s)]])))


def exposed_s(seen: DeviceSteps, at: int, key: HopKey) -> float:
    windows = seen.steps[at].hops.get(key)
    return 0.0 if windows is None else overlap(seen.steps[at].compute, windows).exposed_s


HOP_FIGURES = {
    "window_s": lambda seen, at, key: length(seen.steps[at].hops[key]),
    "hidden_s": lambda seen, at, key: overlap(seen.steps[at].compute, seen.steps[at].hops[key]).hidden_s,
    "exposed_s": exposed_s,
    "skew_s": lambda seen, at, key: seen.skews[at][key],
    "round_compute_s": round_compute_s,
}


def axis_rows(steps: Sequence[DeviceSteps], at: int) -> tuple[AxisFigures, ...]:
    """Communication along each axis of the mesh, on one device: time, bytes, and the rate while any is on its way."""
    rows = []
    for axis in dict.fromkeys(key.site.axis for seen in steps for step in seen.steps for key in step.hops):
        found = []
        for seen in steps:
            step = seen.steps[at]
            windows = union(*(part for key, part in step.hops.items() if key.site.axis == axis))
            found.append((*overlap(step.compute, windows), length(windows)))
        hidden_s, exposed_s, window_s = (median(column) for column in zip(*found, strict=True))
        step = steps[0].steps[at]
        sent = sum(count for key, count in step.sent_bytes.items() if key.site.axis == axis)
        rows.append(
            AxisFigures(
                axis=axis,
                hidden_s=hidden_s,
                exposed_s=exposed_s,
                sent_bytes=sent,
                ratio=Overlap(hidden_s, exposed_s).ratio,
                bytes_per_s=sent / window_s if window_s and sent else None,
            )
        )
    return tuple(rows)
