"""One command on many hosts: host 0 decides, saves and reports; the others start workers for it.

Every host runs the same command. Host 0 (`coordinator`) listens at its address; the others (`follower`) connect to it,
describe themselves, and start and end workers on its orders. A worker of another host has a socket to host 0 in place
of pipes, so host 0 drives all workers in the same way, and decisions that depend on a measurement (which plans are
left, how many samples) are made once. A host that dies closes its connections, or stops answering their pings
(`links`); in either case the others notice within half a minute.
"""

import platform
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from stripectl.errors import BadInput, StripectlError
from stripectl.results.environment import VERSION, conditions, cores, differing_parts
from stripectl.util.files import printable
from stripectl.util.json import JsonObject
from stripectl.workers.process import Worker, WorkerConfig

GATHER_S = 300.0  # for all hosts to connect
ANSWER_S = 30.0
COMPARED = ("versions", "flags", "host")

Waiting = Callable[[int, int], None]  # called with the number of connected hosts, and of all hosts


class HostLost(StripectlError, KeyboardInterrupt):
    """A host is gone; `fact` says which. As an interrupt does, this ends a run and keeps its results."""

    def __init__(self, fact: str, advice: str) -> None:
        super().__init__(f"{fact}. {advice}")
        self.fact = fact


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


@dataclass(frozen=True)
class HostFacts:
    """The description that a host gives of itself: its name, the processor cores that this process may use, versions of
    libraries, XLA's flags, and the machine. `stripectl` is the version that runs there."""

    name: str
    cores: list[int]
    versions: Mapping[str, object]
    flags: Mapping[str, object]
    host: Mapping[str, object]
    stripectl: str = VERSION

    @classmethod
    def here(cls) -> "HostFacts":
        known = conditions()
        return cls(platform.node(), cores(), known["versions"], known["flags"], known["host"])

    @property
    def place(self) -> JsonObject:
        """The description, for a run's environment."""
        return asdict(self) | {"cores": len(self.cores)}


def host_differences(facts: Sequence[HostFacts]) -> list[str]:
    """Properties in which hosts differ from host 0, one line per host."""
    lines, (first, *others) = [], map(asdict, facts)
    for index, other in enumerate(others, 1):
        unlike = [f"{name} {theirs}, not {ours}" for name, ours, theirs in differing_parts(first, other, COMPARED)]
        if unlike:
            lines.append(f"host {index} ({printable(other['name'])}) differs from host 0: {'; '.join(unlike)}")
    return lines


def other_version(name: str, theirs: str) -> str:
    """Why a host with another version of stripectl is refused."""
    return f"{name} has stripectl {printable(theirs)}, but host 0 has {VERSION}. Install the same version."


def free_address(host: str) -> str:
    """address:port at which nothing listens yet, on this machine."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        port = listener.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def loopback_note(hosts: Hosts, name: str) -> str | None:
    """A note where this host's own name is an address that only itself can reach, as Debian writes it in /etc/hosts:
    JAX's CPU devices give this address to other hosts. None where it is not, or where all hosts are here."""
    try:
        address, leader = socket.gethostbyname(name), socket.gethostbyname(hosts.address[0])
    except OSError:
        return None
    if not address.startswith("127.") or leader.startswith("127."):
        return None
    return (
        f"the name of this host, {printable(name)}, resolves to {address}, which other hosts cannot reach. For CPU "
        "devices on several hosts, write the host's own address into /etc/hosts."
    )


class Peer(Protocol):
    """Another host. It becomes readable when it is gone."""

    def fileno(self) -> int: ...

    def lost(self) -> HostLost:
        """The error that ends the run."""
        ...


class Cluster(Protocol):
    """All hosts of a command, seen from the process that decides, saves and reports."""

    recommended: str | None  # the plan, for the other hosts to print

    @property
    def facts(self) -> Sequence[HostFacts]: ...

    @property
    def peers(self) -> Sequence[Peer]:
        """The hosts other than this machine."""
        ...

    def jax_coordinator(self) -> str:
        """address:port of host 0, at which `jax.distributed` joins the workers of a new group."""
        ...

    def start(self, host: int, config: WorkerConfig) -> Worker:
        """Start a worker on a host.

        Raises:
            HostLost: the host is gone. OSError: its process cannot be started.
        """
        ...
