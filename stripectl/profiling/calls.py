"""The calls of programs in a profile. A GPU's profile shows kernels and no calls, but each call runs the same kernels,
and one call ends before the next begins.

So the number of calls divides how often each kernel runs, and the largest such divisor whose parts follow each other is
the number of repetitions. A loop repeats its kernels too. Repetitions are calls where each of them runs an instruction
outside loops once and begins where the program begins, or where the device pauses long between them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stripectl.hlo.async_ops import instructions_inside
from stripectl.hlo.module import Module
from stripectl.profiling.events import HOST_COPY, NS, Device, Events, Execution
from stripectl.results.profile import ProgramCalls

MIN_PAUSE_S = 1e-3  # between calls; a loop on a device does not pause as long in each of its turns
MAX_PROGRAMS = 12


def divided_by_calls(processes: Sequence[Sequence[Device]], module: str, program: Module) -> list[list[Device]]:
    """The devices, with calls of the program as their runs where nothing else divides the profile, if all devices show
    equally many."""
    calls = [
        calls_on_gpu(device, module, program) if device.undivided else device.runs(module)
        for found in processes
        for device in found
    ]
    if not all(calls) or len(set(map(len, calls))) > 1:
        return list(map(list, processes))
    each = iter(calls)
    return [[replace(device, executions=next(each), undivided=False) for device in found] for found in processes]


def other_programs(devices: Sequence[Device], module: str) -> tuple[ProgramCalls, ...]:
    """The programs besides a module that ran on the devices of one process, and how often one device called each."""
    most: dict[str, int] = {}
    for device in devices:
        for name, count in calls_of_programs(device).items():
            most[name] = max(count, most.get(name, 0))
    others = [(name, count) for name, count in most.items() if name not in ("", module)]
    return tuple(ProgramCalls(module=name, calls=count or None) for name, count in others[:MAX_PROGRAMS])


def calls_of_programs(device: Device) -> dict[str, int]:
    """How often a device called each of its programs; 0 where the profile does not show where a call begins."""
    if device.kind == "gpu":
        modules = dict.fromkeys(origin.module for origin in device.origins)
        return {module: len(calls_on_gpu(device, module, None)) for module in modules}
    return Counter(run.module for run in device.executions)


def calls_on_gpu(device: Device, module: str, program: Module | None) -> list[Execution]:
    """The calls of a program on a GPU; none where the profile does not show where a call begins."""
    events = events_of(device, module)
    if device.kind != "gpu" or not len(events.which):
        return []
    part, spans = repetitions(events)
    pauses_s = spans[1:, 0] - spans[:-1, 1]
    if (program and once_each(events, part, program)) or (len(pauses_s) and pauses_s.min() >= MIN_PAUSE_S):
        return [Execution(module, None, start, end) for start, end in spans.tolist()]
    return []


def events_of(device: Device, module: str) -> Events:
    """The events of a program on a GPU. An event that names no program belongs to the program of the event before it;
    copies to and from the host belong to none."""
    copies = np.array([name.startswith(HOST_COPY) for name in device.operations.names], bool)
    events = device.operations.where(~copies[device.operations.which])
    named = np.array([bool(origin.module) for origin in device.origins], bool)[events.which]
    own = np.array([origin.module == module for origin in device.origins], bool)[events.which]
    before = np.maximum.accumulate(np.where(named, np.arange(len(named)), named.argmax() if len(named) else 0))
    return events.where(own[before]) if len(named) else events


def repetitions(events: Events) -> tuple[np.ndarray, np.ndarray]:
    """The repetition that each event belongs to, and (start, end) of each repetition."""
    counts = np.bincount(events.which)
    by_name = np.argsort(events.which, kind="stable")
    turn = np.empty(len(by_name), int)
    turn[by_name] = np.arange(len(by_name)) - np.repeat(np.cumsum(counts) - counts, counts)
    every = int(np.gcd.reduce(counts))
    for times in (each for each in range(every, 0, -1) if every % each == 0):
        part = turn * times // counts[events.which]
        starts, ends = np.full(times, np.inf), np.zeros(times)
        np.minimum.at(starts, part, events.start_s)
        np.maximum.at(ends, part, events.end_s)
        if (ends[:-1] <= starts[1:] + NS).all():
            return part, np.stack([starts, ends], axis=1)
    raise AssertionError("one repetition overlaps nothing")


def once_each(events: Events, part: np.ndarray, program: Module) -> bool:
    """Whether each repetition runs an instruction of the entry once, and begins where the program begins."""
    entry = program.computations.get(program.entry, [])
    once = {line.name for line in entry}
    order = {
        line.name: at for at, within in enumerate(entry) for line in (within, *instructions_inside(program, within))
    }
    counts = np.bincount(events.which, minlength=len(events.names))
    runs = [count for name, count in zip(events.names, counts.tolist(), strict=True) if count and name in once]
    place = np.array([order.get(name, len(entry)) for name in events.names])[events.which]
    first = np.unique(part, return_index=True)[1]
    return min(runs, default=0) == len(first) and bool((place[first] == place.min()).all())
