"""The hosts of a command, as host 0 sees them: it gathers and compares them, and has them start workers."""

import contextlib
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stripectl.errors import BadInput, Missing
from stripectl.results.environment import VERSION, differing_parts
from stripectl.workers.hosts import ANSWER_S, COMPARED, GATHER_S, HostConnection, HostLost, Hosts, Waiting, host_facts


@dataclass
class Follower:
    """Another host, as host 0 sees it."""

    index: int
    link: HostConnection
    told: Mapping[str, Any]  # its name, cores and environment

    @property
    def name(self) -> str:
        return f"host {self.index} ({self.told['name']})"

    def lost(self) -> HostLost:
        return HostLost(f"{self.name} is gone. Earlier results are saved; continue with --resume on all hosts.")

    def ask(self, do: str, **order: Any) -> Any:
        """Its answer to an order.

        Raises:
            HostLost: it does not answer.
        """
        try:
            self.link.send({"do": do, **order})
            answer = self.link.receive(ANSWER_S)
        except (OSError, ValueError) as error:
            raise self.lost() from error
        if answer is None:
            raise self.lost()
        return answer["result"]


@dataclass
class RemoteWorker:
    """A worker on another host."""

    follower: Follower
    number: int
    connection: socket.socket
    buffer: bytearray = field(default_factory=bytearray)

    def fileno(self) -> int:
        return self.connection.fileno()

    def send(self, message: bytes) -> None:
        self.connection.sendall(message)

    def end(self) -> str:
        return f"on {self.follower.name} {self.follower.ask('end', worker=self.number)}"

    def stop(self) -> None:
        self.connection.close()
        with contextlib.suppress(HostLost):
            self.follower.ask("stop", worker=self.number)


@dataclass
class Cluster:
    """All hosts, seen from host 0. Use it with `with`; `done` tells the other hosts how the command ended."""

    hosts: Hosts
    own_cores: Mapping[str, Any] = field(default_factory=host_facts)
    followers: list[Follower] = field(default_factory=list)
    started: int = 0
    recommended: str | None = None  # the plan, for the other hosts to print

    def __post_init__(self) -> None:
        port = self.hosts.address[1]
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        try:
            self.listener = socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=128)
        except OSError as error:
            raise BadInput(f"cannot listen at port {port}: {error.strerror}. Choose another --coordinator.") from error

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *exception: object) -> None:
        for follower in self.followers:
            follower.link.close()
        self.listener.close()

    def gather(self, waiting: Waiting, limit_s: float = GATHER_S) -> None:
        """Wait for the other hosts.

        Raises:
            Missing: a host did not connect. BadInput: a host runs another stripectl.
        """
        deadline, known = time.monotonic() + limit_s, dict[int, Follower]()
        while len(known) < self.hosts.count - 1:
            waiting(len(known) + 1, self.hosts.count)
            self.listener.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                follower = self._greeted(known)
            except TimeoutError:
                absent = ", ".join(str(i) for i in range(1, self.hosts.count) if i not in known)
                raise Missing(
                    f"host {absent} of {self.hosts.count} did not connect within {limit_s:g} s. Start the same command "
                    f"there, with --coordinator {self.hosts.coordinator}, and check that the port is open."
                ) from None
            if follower:
                known[follower.index] = follower
        self.followers = [known[index] for index in sorted(known)]

    def _greeted(self, known: Mapping[int, Follower]) -> Follower | None:
        """The next host that connects; None where the peer is not a host of this command.

        Raises:
            TimeoutError: nobody connects. BadInput: the host runs another stripectl.
        """
        link = HostConnection(self.listener.accept()[0])
        try:
            told = link.receive(ANSWER_S)
            index, version = int(told["index"]), str(told["stripectl"])
        except (OSError, ValueError, KeyError, TypeError):
            return link.close()
        follower = Follower(index, link, told)
        wrong = None
        if version != VERSION:
            wrong = f"{follower.name} has stripectl {version}, but host 0 has {VERSION}. Install the same version."
        elif told["count"] != self.hosts.count or not 0 < index < self.hosts.count or index in known:
            wrong = f"{follower.name} of {told['count']} exists twice, or is not one of {self.hosts.count} hosts."
        link.send({"do": "refuse", "reason": wrong} if wrong else {"do": "welcome"})
        if wrong:
            link.close()
            raise BadInput(wrong)
        return follower

    @property
    def cores(self) -> list[list[int]]:
        """The processor cores that each host lets this process use."""
        return [self.own_cores["cores"], *(follower.told["cores"] for follower in self.followers)]

    @property
    def places(self) -> list[dict[str, Any]]:
        """A description of the hosts, for a run's environment."""
        return [
            {"name": told["name"], "cores": len(told["cores"])} | {name: told[name] for name in COMPARED}
            for told in (self.own_cores, *(follower.told for follower in self.followers))
        ]

    def differences(self) -> list[str]:
        """Properties that differ between hosts, one line per host."""
        lines = []
        for follower in self.followers:
            found = differing_parts(self.own_cores, follower.told, COMPARED)
            unlike = [f"{name} {theirs}, not {ours}" for name, ours, theirs in found]
            if unlike:
                lines.append(f"{follower.name} differs from host 0: {'; '.join(unlike)}")
        return lines

    def start(self, host: int, config: Mapping[str, Any], variables: Mapping[str, str]) -> RemoteWorker:
        """Start a worker on another host.

        Raises:
            HostLost: the host is gone.
        """
        follower, self.started = self.followers[host - 1], self.started + 1
        follower.ask("start", worker=self.started, config=dict(config), variables=dict(variables))
        self.listener.settimeout(ANSWER_S)
        try:
            connection = self.listener.accept()[0]
            while int(HostConnection(connection).receive(ANSWER_S)["worker"]) != self.started:
                connection.close()
                connection = self.listener.accept()[0]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise follower.lost() from error
        connection.settimeout(None)
        return RemoteWorker(follower, self.started, connection)

    def done(self, code: int, said: str) -> None:
        """Tell every host that the command has ended: its exit code, and the reason where it failed."""
        for follower in self.followers:
            with contextlib.suppress(OSError):
                follower.link.send({"do": "done", "code": code, "said": said, "recommended": self.recommended})
