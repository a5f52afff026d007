"""Reads an XLA profile into one form for TPU, GPU and CPU, whose profiles differ.

TPU: one plane per chip, with lines for operations, asynchronous operations and module runs. GPU: one plane per device,
with one line per stream. CPU: no device plane; every line of the host holds events that name their device and run.
Steps are marked on the host.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jax.profiler import ProfileData

from stripectl.errors import BadInput
from stripectl.profiling.events import NS, Columns, Device, Events, Execution, Origin
from stripectl.profiling.marks import mark_steps

DEVICE = re.compile(r"/device:(TPU|GPU):(\d+)")
HOST = "/host:CPU"
OPERATIONS, ASYNCHRONOUS, MODULES = "XLA Ops", "Async XLA Ops", "XLA Modules"
PEER_COPY = re.compile(r"(?i)^nccl|p2p")


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
    host, readers = planes.get(HOST), {"TPU": read_tpu, "GPU": read_gpu}
    devices = [readers[kind](planes[name], f"{kind} {at}") for kind, at, name in accelerators]
    if host and not accelerators:
        devices = list(read_cpu(host))
    if host:
        mark_steps(devices, host)
    return devices


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
    whole = not executions
    return Device(name, "tpu", operations, asynchronous, executions or whole_execution(operations), undivided=whole)


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
            module = module_name(stats["hlo_module"], stats) if stats.get("hlo_module") else ""
            if module:
                modules[module] += event.duration_ns
            columns.add(known, at, event, Origin(module, event.name))
    operations = columns.done()
    origins = tuple(origin for _, origin in columns.names)
    module = max(modules, key=lambda each: modules[each]) if modules else ""
    runs = whole_execution(operations, module)
    return Device(name, "gpu", operations, Columns().done(), runs, peers, origins, undivided=True)


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
