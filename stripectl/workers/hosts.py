"""One command on many hosts: host 0 decides, saves and reports; the others start workers for it.

Every host runs the same command. Host 0 (`coordinator`) listens at its address; the others (`follower`) connect to it,
describe themselves, and start and end workers on its orders. A worker of another host has a socket to host 0 in place
of pipes, so host 0 drives all workers in the same way, and decisions that depend on a measurement (which plans are
left, how many samples) are made once. A host that dies closes its connections, or stops answering their pings
(`links`); in either case the others notice within half a minute.
"""

import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stripectl.errors import BadInput, StripectlError
from stripectl.results.environment import cores, environment
from stripectl.util.json import JsonObject
from stripectl.workers.process import Worker, WorkerConfig

GATHER_S = 300.0  # for all hosts to connect
ANSWER_S = 30.0
COMPARED = ("versions", "flags", "host")

Waiting = Callable[[int, int], None]  # called with the number of connected hosts, and of all hosts


class HostLost(StripectlError, KeyboardInterrupt):
    """A host is gone. As an interrupt does, this ends a run and keeps its results."""


def raise_host_lost(error: BaseException | None) -> HostLost | None:
    """The lost host that caused an error, or None."""
    while error is not None and not isinstance(error, HostLost):
        error = error.__cause__
    return error


@dataclass(frozen=True)
class Hosts:
    """The hosts that run the command, and this host's place among them."""

    coordinator: str  # address:port of host 0
    count: int
    index: int

    def __post_init__(self) -> None:
        if not re.fullmatch(r".+:\d{1,5}", self.coordinator) or not 0 < int(self.address[1]) < 2**16:
            raise BadInput(f"--coordinator {self.coordinator!r} is not ADDRESS:PORT of host 0. Try 10.0.0.1:8476.")
        if not 0 <= self.index < self.count:
            raise BadInput(
                f"--process-id {self.index} is not the number of a host. Hosts have the numbers 0 to {self.count - 1}."
            )

    @property
    def address(self) -> tuple[str, int]:
        name, _, port = self.coordinator.rpartition(":")
        return name.strip("[]"), int(port)


def host_facts() -> dict[str, Any]:
    """The description that a host gives of itself."""
    known = environment([])
    return {"name": platform.node(), "cores": cores()} | {name: known[name] for name in COMPARED}


class Peer(Protocol):
    """Another host. It becomes readable when it is gone."""

    def fileno(self) -> int: ...

    def lost(self) -> HostLost:
        """The error that ends the run."""
        ...


class Cluster(Protocol):
    """All hosts of a command, seen from host 0."""

    recommended: str | None  # the plan, for the other hosts to print

    @property
    def address(self) -> str:
        """The address of host 0, at which workers join."""
        ...

    @property
    def cores(self) -> list[list[int]]:
        """The processor cores that each host lets this process use."""
        ...

    @property
    def peers(self) -> Sequence[Peer]: ...

    @property
    def places(self) -> list[JsonObject]:
        """A description of the hosts, for a run's environment."""
        ...

    def differences(self) -> list[str]:
        """Properties that differ between hosts, one line per host."""
        ...

    def start(self, host: int, config: WorkerConfig) -> Worker:
        """Start a worker on another host.

        Raises:
            HostLost: the host is gone.
        """
        ...
