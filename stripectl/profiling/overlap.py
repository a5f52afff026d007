"""The overlap in a program's profile: how much communication hides, for every step, device, hop and mesh axis.

For each device and step: C is the union of its compute, M the union of its communication windows; hidden = |C and M|,
exposed = |M minus C|, overlap = hidden / |M|. Stall is the time in which a device only waits for a transfer;
`device_steps` defines skew. docs/explanation/definitions.md defines all of them.

Figures are medians over steps. Totals belong to the device that computes longest, as in a simulation: the others
wait for it, which is imbalance and not slow communication. Skew and stall belong to the device with the most.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stripectl.core.intervals import Overlap, busiest_device, common, length, overlap, union
from stripectl.profiling.device_steps import DeviceSteps, device_steps
from stripectl.profiling.diagnosis import cause, end_cause
from stripectl.profiling.events import Device
from stripectl.profiling.program import ProfiledProgram
from stripectl.profiling.steps import HopKey
from stripectl.profiling.timeline import BINS, merge_moments, moments

MAX_HOPS = 64  # rows of hops; where there are more, the most exposed ones
MAX_OPERATIONS = 12
EXPOSED = 0.05  # of a hop's window: a hop with less exposed time is hidden


def analyse(
    processes: Sequence[Sequence[Device]], module: str, program: ProfiledProgram, told: Mapping[str, Any]
) -> dict[str, Any]:
    """The overlap of a profile (`results.schema.is_profile`). `told` holds the facts for finding a cause: the link's
    rate (`link_bytes_per_s`), the platform, the plan's layout and unrolling, where they are known."""
    steps = device_steps(processes, module, program)
    found: dict[str, Any] = {"module": module, "steps": len(steps), "overlap": None}
    found |= {"devices": [], "hops": [], "axes": [], "timeline": None}
    if not steps:
        return found | {"reason": "the profile holds no step that is complete on all its devices"}
    names = device_names(processes)
    figures = [[seen.figures(at) for seen in steps] for at in range(len(names))]
    devices = [{"name": name, **device_row(each)} for name, each in zip(names, figures, strict=True)]
    found |= {
        "devices": devices,
        "timeline": step_timeline(in_the_middle(steps, lambda seen: seen.end_s)),
        "end": end_cause(devices, told),
    }
    if program.hops:
        return found | {"reason": "kernels of the program send its hops, so the profile does not show where hops end"}
    if not any(step.hops for seen in steps for step in seen.steps):
        return found | {"reason": "the profile holds no collective of the program"}
    hops = hop_rows(steps, told)
    exposed = sorted(hops, key=lambda hop: -max(hop["exposed_s"]))[:MAX_HOPS]
    at = busiest_device(devices)
    return found | {
        "overlap": all_devices_row(devices, at),
        "hops": sorted(exposed, key=lambda hop: hop["start_s"]),
        "hops_left_out": len(hops) - len(exposed),
        "axes": axis_rows(steps, at),
    }


def all_devices_row(devices: Sequence[Mapping[str, Any]], at: int) -> dict[str, float | None]:
    """The figures of all devices together."""
    stalls = [device["stall_s"] for device in devices if "stall_s" in device]
    return {
        **{name: devices[at][name] for name in ("ratio", "hidden_s", "exposed_s")},
        "skew_s": max(device["skew_s"] for device in devices),
        "stall_s": max(stalls) if stalls else None,
    }


def device_row(steps: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """A device's figures: medians over steps, and the figures of each step."""
    by_step = {name: [step[name] for step in steps] for name in steps[0]}
    medians = {name: median(values) for name, values in by_step.items()}
    return {**medians, "ratio": Overlap(medians["hidden_s"], medians["exposed_s"]).ratio, "by_step": by_step}


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


def step_timeline(seen: DeviceSteps) -> dict[str, Any]:
    """A step of every device as (kind, start, end), with `BINS` moments."""
    rows = [merge_moments(moments(seen.parts(at), seen.end_s, BINS), seen.end_s) for at in range(len(seen.steps))]
    return {"end_s": seen.end_s, "devices": rows}


def hop_rows(steps: Sequence[DeviceSteps], told: Mapping[str, Any]) -> list[dict[str, Any]]:
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
        rows.append({"start_s": start_s, **hop_row(key, by_device, sent, told)})
    rows.sort(key=lambda row: row["start_s"])
    return [{"hop": at + 1, **row} for at, row in enumerate(rows)]


def hop_row(key: HopKey, by_device: dict[str, list[float]], sent: int, told: Mapping[str, Any]) -> dict[str, Any]:
    worst = int(np.argmax(by_device["exposed_s"]))
    transfer_s = min(filter(None, by_device["window_s"]), default=0.0)
    row = {
        "opcode": key.site.opcode,
        "pass": key.site.passes,
        "axis": key.site.axis,
        "what": key.site.what,
        "turn": key.turn,
        "sent_bytes": sent,
        "asynchronous": key.site.asynchronous,
        **by_device,
        "transfer_s": transfer_s,
        "bytes_per_s": sent / transfer_s if transfer_s and sent else None,
    }
    if row["bytes_per_s"] and told.get("link_bytes_per_s"):
        row["of_link"] = row["bytes_per_s"] / told["link_bytes_per_s"]
    if by_device["exposed_s"][worst] <= EXPOSED * by_device["window_s"][worst]:
        return row
    figures = {name: values[worst] for name, values in by_device.items()}
    return row | cause(key.site, figures, transfer_s, sent, told)


def own_operations(devices: Sequence[Device], module: str, program: ProfiledProgram) -> list[dict[str, Any]]:
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
    return [
        {
            "name": name,
            "category": program.opcode(name),
            "count": count,
            "self_s": seconds,
            "share": seconds / every_s if every_s else None,
        }
        for name, (count, seconds) in longest
    ]


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


def axis_rows(steps: Sequence[DeviceSteps], at: int) -> list[dict[str, Any]]:
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
        row = {"axis": axis, "hidden_s": hidden_s, "exposed_s": exposed_s, "sent_bytes": sent}
        row["ratio"] = Overlap(hidden_s, exposed_s).ratio
        rows.append(row | {"bytes_per_s": sent / window_s if window_s and sent else None})
    return rows
