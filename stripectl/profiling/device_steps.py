"""Steps on all devices: runs that belong together, which device waits for which, and the kind of every moment.

Skew is waiting for a slower peer. In a hop it is the exposed part of its window minus the smallest exposed part over
all devices (for a blocking hop, its duration minus the shortest duration); at the end of a step it is the slowest
device's end minus the device's own end. The clocks of processes are set to zero where a step begins in each.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stripectl.core.intervals import NONE, common, length, minus, overlap, union
from stripectl.profiling.events import Device, Execution
from stripectl.profiling.program import ProfiledProgram
from stripectl.profiling.steps import DeviceStep, HopKey, device_step


@dataclass(frozen=True)
class DeviceSteps:
    """A step on all devices: the activity of each, and its wait for slower devices, by hop and at the end."""

    steps: list[DeviceStep]
    skews: list[dict[HopKey, float]]
    end_s: float

    @classmethod
    def of(cls, steps: list[DeviceStep]) -> "DeviceSteps":
        exposed = [{key: length(minus(windows, each.compute)) for key, windows in each.hops.items()} for each in steps]
        least: dict[HopKey, float] = {}
        for each in exposed:
            for key, value in each.items():
                least[key] = min(value, least.get(key, np.inf))
        skews = [{key: value - least[key] for key, value in each.items()} for each in exposed]
        return cls(steps, skews, max(step.end_s for step in steps))

    def waits(self, at: int) -> np.ndarray:
        """When a device waits inside hops for slower devices: at the start of each hop, before data can move."""
        step = self.steps[at]
        found = [leading(minus(windows, step.compute), self.skews[at][key]) for key, windows in step.hops.items()]
        return union(*found)

    def parts(self, at: int) -> dict[str, np.ndarray]:
        """A device's step, divided into parts: every moment belongs to one kind."""
        step, waits = self.steps[at], self.waits(at)
        moving = step.windows
        parts = {
            "compute": minus(step.compute, moving),
            "hidden": common(step.compute, moving),
            "exposed": minus(minus(moving, step.compute), waits),
            "skew": union(waits, [(step.end_s, self.end_s)]),
        }
        return parts | {"idle": minus(np.array([[0.0, self.end_s]]), union(*parts.values()))}

    def figures(self, at: int) -> dict[str, float]:
        """A device's seconds by kind."""
        step = self.steps[at]
        found = overlap(step.compute, step.windows)
        parts = {kind: length(part) for kind, part in self.parts(at).items()}
        return {
            "step_s": step.end_s,
            "compute_s": length(step.compute),
            **found._asdict(),
            "skew_s": parts["skew"],
            "idle_s": parts["idle"],
            **({} if step.stall is None else {"stall_s": length(step.stall)}),
        }


def leading(intervals: np.ndarray, seconds: float) -> np.ndarray:
    """The first `seconds` of intervals."""
    ends = np.cumsum(intervals[:, 1] - intervals[:, 0])
    left = np.clip(seconds - np.concatenate([[0.0], ends[:-1]]), 0.0, None) if len(ends) else ends
    return (
        np.stack([intervals[:, 0], np.minimum(intervals[:, 1], intervals[:, 0] + left)], axis=1) if len(ends) else NONE
    )


def device_steps(processes: Sequence[Sequence[Device]], module: str, program: ProfiledProgram) -> list[DeviceSteps]:
    """Every step that is complete on all devices, in order."""
    devices = [(process, device) for process, found in enumerate(processes) for device in found]
    found = []
    for together in match_runs([device.runs(module) for _, device in devices]):
        bases: dict[int, float] = {}
        for (process, _), execution in zip(devices, together, strict=True):
            bases[process] = min(execution.start_s, bases.get(process, np.inf))
        parts = zip(devices, together, strict=True)
        found.append(
            DeviceSteps.of([device_step(device, run, program, bases[process]) for (process, device), run in parts])
        )
    return found


def match_runs(runs: Sequence[Sequence[Execution]]) -> list[tuple[Execution, ...]]:
    """Match the runs that belong together, one per device: by their number where the profile has it, else by their
    order."""
    numbered = [{each.run: each for each in found} for found in runs]
    if all(None not in known and len(known) == len(found) for known, found in zip(numbered, runs, strict=True)):
        shared = [number for number in numbered[0] if all(number in known for known in numbered)]
        if shared:
            return [tuple(known[number] for known in numbered) for number in shared]
    return list(zip(*runs, strict=False))


def main_module(devices: Sequence[Device], named: str | None) -> str:
    """The module that took most time on the devices, among modules of the given name where they exist."""
    total: dict[str, float] = defaultdict(float)
    for device in devices:
        last = device.operations.end_s.max(initial=0.0)
        for run in device.executions:
            total[run.module] += (run.end_s if np.isfinite(run.end_s) else last) - run.start_s
    own = [module for module in total if device_name(module) == named]
    return max(own or total, key=lambda module: total[module])


def devices_that_ran(processes: Sequence[Sequence[Device]], module: str) -> list[list[Device]]:
    """The devices that ran a module, by process, with only its runs. Each process numbers its programs itself, and a
    process that loaded programs from a compile cache gives another number: there, the longest module of this name."""
    found = []
    for devices in processes:
        busy = [device for device in devices if device.executions]
        own = module if not busy or any(each.runs(module) for each in busy) else main_module(busy, device_name(module))
        if device_name(own) == device_name(module):
            found.append([renamed(each, own, module) for each in busy if each.runs(own)])
    return list(filter(None, found))


def renamed(device: Device, own: str, module: str) -> Device:
    """A device with only the runs of its module `own`, under the name `module`."""
    return replace(
        device,
        executions=[run._replace(module=module) for run in device.runs(own)],
        origins=tuple(each._replace(module=module) if each.module == own else each for each in device.origins),
    )


def device_name(module: str) -> str:
    """The name of a module without its number."""
    return module.partition("(")[0]
