"""The nodes of a Ray cluster as hosts: one command drives workers on all of them.

An actor per node (`RayHost`) reserves the node's accelerators in a placement group. Ray carries requests and answers;
pings of our own notice a node that is lost, because Ray itself notices a stopped node after about a minute. Nothing
here waits for Ray without a limit: where the head is gone, its functions wait for a minute, and its shutdown for ever.
"""

import atexit
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from dataclasses import dataclass, field
from typing import Any

from stripectl.errors import BadInput, Missing
from stripectl.results.environment import VERSION
from stripectl.util.files import printable
from stripectl.workers.hosts import ANSWER_S, HostFacts, HostLost, Waiting, other_version
from stripectl.workers.process import WorkerConfig
from stripectl.workers.ray_host import RayHost
from stripectl.workers.ray_nodes import RayNode, choose_nodes

PING_S, PING_TIMEOUT_S = 2.0, 15.0
RESERVE_S = 60.0  # for other programs to release the nodes
RELEASE_S, LOST_RELEASE_S = 60.0, 3.0  # half a second is usual; the head may be the host that is lost


@dataclass
class RayPeer:
    """A host on a Ray node. It becomes readable when the node is lost."""

    ray: Any
    index: int
    node: RayNode
    actor: Any
    found: HostFacts | None = None
    ends: tuple[socket.socket, socket.socket] = field(default_factory=socket.socketpair)
    gone: "Future[None]" = field(default_factory=Future)  # has a result from when nothing waits for the host any more

    @property
    def facts(self) -> HostFacts:
        assert self.found
        return self.found

    @property
    def name(self) -> str:
        return f"host {self.index} (Ray node {self.node.address}, {self.node.identity[:8]})"

    def fileno(self) -> int:
        return self.ends[0].fileno()

    def lost(self) -> HostLost:
        return HostLost(f"{self.name} is gone", "Earlier results are saved; continue with --resume.")

    def call(self, method: Any, *arguments: Any, limit_s: float | None = ANSWER_S) -> Any:
        """Call a method of the actor, and return the answer.

        Raises:
            HostLost: it does not answer, or the host is lost meanwhile. Other errors: as its method raises.
        """
        if self.gone.done():
            raise self.lost()
        answer = future_answer(self.ray, method, arguments)
        wait([answer, self.gone], limit_s, FIRST_COMPLETED)
        try:
            if answer.done():
                return answer.result()
        except self.ray.exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except (self.ray.exceptions.RayError, ConnectionError) as error:
            self.leave()
            raise self.lost() from error
        self.leave()
        raise self.lost()

    def watch(self) -> None:
        """Ping the actor until it does not answer, or until this host is closed."""
        with contextlib.suppress(HostLost):
            while not wait([self.gone], PING_S).done:
                self.call(self.actor.ping, limit_s=PING_TIMEOUT_S)

    def leave(self) -> None:
        """End everything that waits for this host."""
        with contextlib.suppress(InvalidStateError):
            self.gone.set_result(None)
        self.ends[1].close()

    def close(self) -> None:
        self.leave()
        self.ends[0].close()


def future_answer(ray: Any, method: Any, arguments: Sequence[Any]) -> "Future[Any]":
    """The later answer of an actor's method. A thread waits for it, because Ray itself may wait for a minute."""
    answer: Future[Any] = Future()

    def ask() -> None:
        try:
            answer.set_result(ray.get(method.remote(*arguments)))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="ray call", daemon=True).start()
    return answer


@dataclass
class RayWorker:
    """A worker on a Ray node."""

    peer: RayPeer
    number: int
    ends: tuple[socket.socket, socket.socket] = field(default_factory=socket.socketpair)
    buffer: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        threading.Thread(target=self._receive, name="ray answers", daemon=True).start()

    def _receive(self) -> None:
        """Copy the worker's answers to a socket, until it or its node ends."""
        with self.ends[1] as answers, contextlib.suppress(OSError, HostLost):
            while data := self.peer.call(self.peer.actor.receive, self.number, limit_s=None):
                answers.sendall(data)

    def fileno(self) -> int:
        return self.ends[0].fileno()

    def send(self, message: bytes) -> None:
        self.peer.call(self.peer.actor.send, self.number, message)

    def end(self) -> str:
        return f"on {self.peer.name} {self.peer.call(self.peer.actor.end, self.number)}"

    def stop(self) -> None:
        self.ends[0].close()
        with contextlib.suppress(HostLost):
            self.peer.call(self.peer.actor.stop, self.number)


@dataclass
class RayCluster:
    """The nodes of the cluster that the module `ray` is connected to. Use it with `with`: afterwards the nodes are free
    and the module is not connected."""

    ray: Any
    count: int | None
    waiting: Waiting
    peers: list[RayPeer] = field(default_factory=list)
    started: int = 0
    recommended: str | None = None
    group: Any = None  # of the nodes' reserved resources

    def __enter__(self) -> "RayCluster":
        try:
            self._reserve()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        lost = any(peer.gone.done() for peer in self.peers)
        for peer in self.peers:
            peer.close()
        releasing = threading.Thread(target=self._release, name="ray release", daemon=True)
        releasing.start()
        releasing.join(LOST_RELEASE_S if lost else RELEASE_S)
        if releasing.is_alive():  # the head is gone, and at its exit Ray would have this process wait for it
            atexit.register(end_process)

    def _release(self) -> None:
        """Free the nodes, which takes a minute or more where the head is gone."""
        with contextlib.suppress(self.ray.exceptions.RayError, ConnectionError):
            for peer in self.peers:
                self.ray.kill(peer.actor)
            if self.group is not None:
                self.ray.util.remove_placement_group(self.group)
        self.ray.shutdown()

    def _reserve(self) -> None:
        """An actor on every node.

        Raises:
            Missing: the nodes are too few, or in use, or have no stripectl.
            BadInput: they have another version of stripectl.
        """
        nodes = choose_nodes(alive_nodes(self.ray), self.count)
        self.waiting(0, len(nodes))
        self.group = self.ray.util.placement_group(
            [node.bundle for node in nodes],
            strategy="STRICT_SPREAD",
            bundle_label_selector=[{"ray.io/node-id": node.identity} for node in nodes],
        )
        if not self.group.wait(RESERVE_S):
            wanted = "; ".join(f"{node.address}: {listed(node.bundle)}" for node in nodes)
            raise Missing(
                f"cannot reserve {len(nodes)} Ray nodes ({wanted}) within {RESERVE_S:g} s because other programs use "
                "them, or a node has left. Run ray status. Try again later, or --num-processes with fewer nodes."
            )
        strategy = self.ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        for index, node in enumerate(nodes):
            placed = strategy(self.group, placement_group_bundle_index=index)
            bundle = dict(node.bundle)
            options = {"num_cpus": bundle.pop("CPU", 0), "num_gpus": bundle.pop("GPU", 0), "resources": bundle}
            actor = self.ray.remote(RayHost).options(scheduling_strategy=placed, **options).remote()
            self.peers.append(RayPeer(self.ray, index, node, actor))
        for peer in self.peers:
            self.waiting(peer.index + 1, len(nodes))
            self._greet(peer)
            threading.Thread(target=peer.watch, name="ray pings", daemon=True).start()

    def _greet(self, peer: RayPeer) -> None:
        try:
            peer.found = HostFacts(**peer.call(peer.actor.facts, limit_s=RESERVE_S))
        except (HostLost, ImportError, TypeError) as error:
            reason = printable(str(error.__cause__ or error)).strip().splitlines()[-1]
            raise Missing(
                f"cannot start stripectl on {peer.name} because {reason}. Install stripectl {VERSION} there."
            ) from error
        if peer.facts.stripectl != VERSION:
            raise BadInput(other_version(peer.name, peer.facts.stripectl))

    @property
    def facts(self) -> list[HostFacts]:
        return [peer.facts for peer in self.peers]

    def jax_coordinator(self) -> str:
        first = self.peers[0]
        return first.call(first.actor.free_address, first.node.address)

    def start(self, host: int, config: WorkerConfig) -> RayWorker:
        self.started += 1
        peer = self.peers[host]
        peer.call(peer.actor.start, self.started, config)
        return RayWorker(peer, self.started)


def end_process() -> None:
    """End without Ray's own exit, as a command does that lost a host."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(HostLost.exit_code)


def listed(bundle: Mapping[str, float]) -> str:
    return ", ".join(f"{count:g} {name}" for name, count in bundle.items())


def alive_nodes(ray: Any) -> list[RayNode]:
    return [
        RayNode(node["NodeID"], node["NodeManagerAddress"], node["Resources"], node.get("Labels") or {})
        for node in ray.nodes()
        if node["Alive"]
    ]
