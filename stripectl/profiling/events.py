"""The device events of an XLA profile, as columns: one form for TPU, GPU and CPU, whose profiles differ.

TPU: one plane per chip, with lines for operations, asynchronous operations and module runs. GPU: one plane per device,
with one line per stream, and steps marked on the host. CPU: no device plane; every line of the host holds events that
name their device and run.
"""

import re
from array import array
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax.profiler import ProfileData

from stripectl.errors import BadInput

DEVICE = re.compile(r"/device:(TPU|GPU):(\d+)")
HOST = "/host:CPU"
OPERATIONS, ASYNCHRONOUS, MODULES = "XLA Ops", "Async XLA Ops", "XLA Modules"
PEER_COPY = re.compile(r"(?i)^nccl|p2p")
HOST_COPY = ("MemcpyH2D", "MemcpyD2H", "Memset")  # neither compute nor communication
NS = 1e-9


class Execution(NamedTuple):
    """A run of a module on a device; `run` is equal on all devices that took part, where the profile has it."""

    module: str
    run: int | None
    start_s: float
    end_s: float


class Columns:
    """Events while they are collected."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.which, self.lines = array("i"), array("h")
        self.start_ns, self.end_ns = array("d"), array("d")

    def add(self, name: str, line: int, event: Any) -> None:
        self.which.append(self.names.setdefault(name, len(self.names)))
        self.lines.append(line)
        start = event.start_ns
        self.start_ns.append(start)
        self.end_ns.append(start + event.duration_ns)

    def done(self) -> "Events":
        start_s, end_s = (np.array(column) * NS for column in (self.start_ns, self.end_ns))
        order = np.lexsort((-end_s, start_s))
        which, lines = np.array(self.which, np.int32)[order], np.array(self.lines, np.int16)[order]
        return Events(tuple(self.names), which, lines, start_s[order], end_s[order])


class Events(NamedTuple):
    """Events by start time: `names[which[i]]` ran on line `lines[i]`."""

    names: tuple[str, ...]
    which: np.ndarray
    lines: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray

    def between(self, start_s: float, end_s: float) -> "Events":
        """The events that start in an interval."""
        first, last = np.searchsorted(self.start_s, [start_s, end_s])
        return Events(self.names, *(column[first:last] for column in self[1:]))


@dataclass
class Device:
    """The activity of one device. `asynchronous` holds the windows that a TPU shows on a separate line."""

    name: str
    kind: str
    operations: Events
    asynchronous: Events
    executions: list[Execution]
    peers: set[str] = field(default_factory=set)  # names that are communication whatever the program says

    @property
    def texts(self) -> tuple[str, ...]:
        """The names of its events."""
        return self.operations.names + self.asynchronous.names

    def runs(self, module: str) -> list[Execution]:
        return [each for each in self.executions if each.module == module]


def read_profile(path: Path) -> list[Device]:
    """The devices of one process.

    Raises:
        BadInput: the file is not a profile.
    """
    try:
        data = ProfileData.from_file(str(path))
    except RuntimeError as error:
        raise BadInput(f"{path} is not an XLA profile (xplane.pb), or is truncated: {error}.") from error
    planes = {plane.name: plane for plane in data.planes}
    if not planes:
        raise BadInput(f"{path} is empty; an XLA profile (xplane.pb) has planes.")
    accelerators = sorted((found[1], int(found[2]), name) for name in planes if (found := DEVICE.fullmatch(name)))
    if not accelerators:
        return list(read_cpu(planes[HOST])) if HOST in planes else []
    readers = {"TPU": read_tpu, "GPU": read_gpu}
    devices = [readers[kind](planes[name], f"{kind} {at}") for kind, at, name in accelerators]
    gpus = [device for device in devices if device.kind == "gpu" and len(device.operations.which)]
    steps = marked_steps(planes[HOST]) if gpus and HOST in planes else []
    if steps and all(divide(steps, device.operations) for device in gpus):
        ends = [*(step.start_s for step in steps[1:]), np.inf]
        for device in gpus:
            module = device.executions[0].module
            device.executions = [step._replace(module=module, end_s=end) for step, end in zip(steps, ends, strict=True)]
    return devices


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


def read_tpu(plane: Any, name: str) -> Device:
    """A chip, or a core of a chip."""
    columns = {OPERATIONS: Columns(), ASYNCHRONOUS: Columns()}
    executions = []
    for line in plane.lines:
        if line.name == MODULES:
            for event in line.events:
                start, run = event.start_ns * NS, dict(event.stats).get("run_id")
                executions.append(Execution(event.name, run, start, start + event.duration_ns * NS))
        elif line.name in columns:
            for event in line.events:
                columns[line.name].add(event.name, 0, event)
    operations, asynchronous = (each.done() for each in columns.values())
    return Device(name, "tpu", operations, asynchronous, executions or whole_execution(operations))


def read_gpu(plane: Any, name: str) -> Device:
    """A GPU: kernels and copies of all streams, as one run."""
    columns, peers, modules = Columns(), set[str](), defaultdict[str, float](float)
    for at, line in enumerate(plane.lines):
        if not line.name.startswith("Stream"):
            continue
        for event in line.events:
            stats = dict(event.stats)
            known = str(stats.get("hlo_op") or event.name)
            if PEER_COPY.search(event.name):
                peers.add(known)
            if module := stats.get("hlo_module"):
                modules[module_name(module, stats)] += event.duration_ns
            columns.add(known, at, event)
    operations = columns.done()
    module = max(modules, key=lambda each: modules[each]) if modules else ""
    return Device(name, "gpu", operations, Columns().done(), whole_execution(operations, module), peers)


def read_cpu(plane: Any) -> Iterator[Device]:
    """The devices of a process, in order; a device with several modules gives several, because modules can overlap."""
    columns: dict[tuple[int, str], Columns] = defaultdict(Columns)
    runs: dict[tuple[int, str], dict[int, list[float]]] = defaultdict(dict)
    ignored: dict[str, bool] = {}
    for at, line in enumerate(plane.lines):
        for event in line.events:
            name = event.name
            if ignored.setdefault(name, name.startswith("end: ") or "::" in name):
                continue
            stats = dict(event.stats)
            if "hlo_op" not in stats:
                continue
            key = stats.get("device_ordinal", 0), module_name(stats.get("hlo_module", ""), stats)
            columns[key].add(name, at, event)
            start = event.start_ns * NS
            span = runs[key].setdefault(stats.get("run_id", 0), [start, start])
            span[0], span[1] = min(span[0], start), max(span[1], start + event.duration_ns * NS)
    for device, module in sorted(columns):
        spans = runs[device, module].items()
        executions = sorted((Execution(module, run, *span) for run, span in spans), key=lambda run: run.start_s)
        yield Device(f"CPU {device}", "cpu", columns[device, module].done(), Columns().done(), executions)


def module_name(module: Any, stats: dict[str, Any]) -> str:
    """A module's name, as in xprof."""
    return f"{module}({stats['program_id']})" if "program_id" in stats else str(module)


def whole_execution(events: Events, module: str = "") -> list[Execution]:
    """All events as one run, where nothing divides them."""
    return [Execution(module, None, events.start_s[0], events.end_s.max() + NS)] if len(events.which) else []
