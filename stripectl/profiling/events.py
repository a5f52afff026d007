"""The events of a device, as columns, and the runs of programs on it."""

from array import array
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

HOST_COPY = ("MemcpyH2D", "MemcpyD2H", "Memset")  # neither compute nor communication
NS = 1e-9


class Execution(NamedTuple):
    """A run of a module on a device; `run` is equal on all devices that took part, where the profile has it."""

    module: str
    run: int | None
    start_s: float
    end_s: float


class Origin(NamedTuple):
    """The program and the kernel that events of one name come from, where a profile shows them."""

    module: str = ""
    kernel: str = ""


UNKNOWN = Origin()


class Columns:
    """Events while they are collected."""

    def __init__(self) -> None:
        self.names: dict[tuple[str, Origin], int] = {}
        self.which, self.lines = array("i"), array("h")
        self.start_ns, self.end_ns = array("d"), array("d")

    def add(self, name: str, line: int, event: Any, origin: Origin = UNKNOWN) -> None:
        self.which.append(self.names.setdefault((name, origin), len(self.names)))
        self.lines.append(line)
        start = event.start_ns
        self.start_ns.append(start)
        self.end_ns.append(start + event.duration_ns)

    def done(self) -> "Events":
        start_s, end_s = (np.array(column) * NS for column in (self.start_ns, self.end_ns))
        order = np.lexsort((-end_s, start_s))
        which, lines = np.array(self.which, np.int32)[order], np.array(self.lines, np.int16)[order]
        return Events(tuple(name for name, _ in self.names), which, lines, start_s[order], end_s[order])


class Events(NamedTuple):
    """Events by start time: `names[which[i]]` ran on line `lines[i]`. A name has several places where several programs
    or kernels share it."""

    names: tuple[str, ...]
    which: np.ndarray
    lines: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray

    def between(self, start_s: float, end_s: float) -> "Events":
        """The events that start in an interval."""
        return self.where(slice(*np.searchsorted(self.start_s, [start_s, end_s])))

    def where(self, chosen: Any) -> "Events":
        """The events at the indices of `chosen`."""
        return Events(self.names, *(column[chosen] for column in self[1:]))


@dataclass
class Device:
    """The activity of one device. `asynchronous` holds the windows that a TPU shows on a separate line."""

    name: str
    kind: str
    operations: Events
    asynchronous: Events
    executions: list[Execution]
    peers: set[str] = field(default_factory=set)  # names that are communication whatever the program says
    origins: tuple[Origin, ...] = ()  # of each name of `operations`, on a GPU
    marked: int = 0  # steps that the host of its process marks
    undivided: bool = False  # whether its one execution is the whole profile, because nothing divides it

    @property
    def texts(self) -> tuple[str, ...]:
        """The names of its events."""
        return self.operations.names + self.asynchronous.names

    def runs(self, module: str) -> list[Execution]:
        return [each for each in self.executions if each.module == module]
