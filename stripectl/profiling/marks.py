"""Steps that a program marks on its host (`jax.profiler.StepTraceAnnotation`): whether they divide a GPU's work, and
whether each run of a program is a step."""

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from stripectl.profiling.events import HOST_COPY, NS, Device, Events, Execution


def mark_steps(devices: list[Device], host: Any) -> None:
    """Note on the devices of a process how many steps its host marks. A GPU shows no runs of programs: where the marks
    divide its work, its runs are the steps."""
    steps = marked_steps(host)
    for device in devices:
        device.marked = len(steps)
    gpus = [device for device in devices if device.kind == "gpu" and len(device.operations.which)]
    if steps and gpus and all(divide(steps, device.operations) for device in gpus):
        ends = [*(step.start_s for step in steps[1:]), np.inf]
        for device in gpus:
            module = device.executions[0].module
            device.executions = [step._replace(module=module, end_s=end) for step, end in zip(steps, ends, strict=True)]
            device.undivided = False


def run_unit(devices: Iterable[Device], module: str) -> Literal["step", "call", "profile"]:
    """The unit that a run of a module is: a step where the program runs as often as its host marks steps, else a call;
    the whole profile where nothing divides it."""
    found = list(devices)
    if any(device.undivided for device in found):
        return "profile"
    return "step" if all(device.marked == len(device.runs(module)) for device in found) else "call"


def marked_steps(plane: Any) -> list[Execution]:
    """Steps that the program marked (`StepTraceAnnotation`), in order. Events of one name have the same fields, so the
    first event decides whether to read the others."""
    found, others = [], set[str]()
    for line in plane.lines:
        for event in line.events:
            name = event.name
            if name in others:
                continue
            if (number := dict(event.stats).get("step_num")) is None:
                others.add(name)
                continue
            start = event.start_ns * NS
            found.append(Execution(name, number, start, start + event.duration_ns * NS))
    return sorted(found, key=lambda step: step.start_s)


def divide(steps: list[Execution], operations: Events) -> bool:
    """Whether steps marked on the host divide a device's work: each has some work, and none is running where one
    begins. A host that does not wait for the device marks steps too early."""
    own = np.array([not name.startswith(HOST_COPY) for name in operations.names])[operations.which]
    starts, ends = operations.start_s[own], operations.end_s[own]
    marks = np.array([step.start_s for step in steps])
    each = np.diff(np.searchsorted(starts, [*marks, np.inf]))
    return bool(each.all()) and not any(((starts < mark) & (ends > mark)).any() for mark in marks)
