"""Steps as all devices saw them: whose runs belong together, who waits for whom, and every moment's kind.

Skew is waiting for a slower peer: in a hop, the exposed part of its window less the least exposed part over the devices
(of a hop that blocks, this is its duration less the least duration); at the end of a step, the slowest device's end
less its own. The clocks of processes are set to zero where a step begins in each.
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
    """A step on all devices: what each did, and how long each waited for slower ones, by hop and at the end."""

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
        """When a device waits inside hops for slower ones: before the data can move, so first in each."""
        step = self.steps[at]
        found = [leading(minus(windows, step.compute), self.skews[at][key]) for key, windows in step.hops.items()]
        return union(*found)

    def parts(self, at: int) -> dict[str, np.ndarray]:
        """A device's step, divided: every moment is of one kind."""
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
        """A device's seconds."""
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
    """The first so many seconds of intervals."""
    ends = np.cumsum(intervals[:, 1] - intervals[:, 0])
    left = np.clip(seconds - np.concatenate([[0.0], ends[:-1]]), 0.0, None) if len(ends) else ends
    return (
        np.stack([intervals[:, 0], np.minimum(intervals[:, 1], intervals[:, 0] + left)], axis=1) if len(ends) else NONE
    )


def device_steps(processes: Sequence[Sequence[Device]], module: str, program: ProfiledProgram) -> list[DeviceSteps]:
    """Every step that all devices have, in order."""
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
    """The runs that belong together, one a device: by their number where the profile tells it, else by their order."""
    numbered = [{each.run: each for each in found} for found in runs]
    if all(None not in known and len(known) == len(found) for known, found in zip(numbered, runs, strict=True)):
        shared = [number for number in numbered[0] if all(number in known for known in numbered)]
        if shared:
            return [tuple(known[number] for known in numbered) for number in shared]
    return list(zip(*runs, strict=False))


def main_module(devices: Sequence[Device], named: str | None) -> str:
    """The module that took the devices longest, of those of a name where it is known and there."""
    total: dict[str, float] = defaultdict(float)
    for device in devices:
        last = device.operations.end_s.max(initial=0.0)
        for run in device.executions:
            total[run.module] += (run.end_s if np.isfinite(run.end_s) else last) - run.start_s
    own = [module for module in total if device_name(module) == named]
    return max(own or total, key=lambda module: total[module])


def devices_that_ran(processes: Sequence[Sequence[Device]], module: str) -> list[list[Device]]:
    """The devices that ran a module, by process, with those runs alone. A process numbers its programs itself, and one
    that found some in a compile cache gives the same program another number: there, the longest of that name."""
    found = []
    for devices in processes:
        busy = [device for device in devices if device.executions]
        own = module if not busy or any(each.runs(module) for each in busy) else main_module(busy, device_name(module))
        ran = [(each, each.runs(own)) for each in busy if device_name(own) == device_name(module)]
        runs = [(each, [run._replace(module=module) for run in runs]) for each, runs in ran if runs]
        found.append([replace(each, executions=executions) for each, executions in runs])
    return list(filter(None, found))


def device_name(module: str) -> str:
    """Without its number."""
    return module.partition("(")[0]
