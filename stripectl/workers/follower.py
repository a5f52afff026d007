"""Every host except host 0: it starts and ends workers on host 0's orders until the command is done."""

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stripectl.errors import BadInput, Missing
from stripectl.results.environment import VERSION
from stripectl.workers.hosts import ANSWER_S, GATHER_S, HostConnection, HostLost, Hosts, Waiting, host_facts
from stripectl.workers.process import Process


def follow(hosts: Hosts, waiting: Waiting, limit_s: float = GATHER_S) -> Mapping[str, Any]:
    """Start and end workers on host 0's orders until the command is done. Returns its exit `code`, the `recommended`
    plan, if any, and, where something went wrong, the message `said`.

    Raises:
        Missing: host 0 does not answer. BadInput: it refuses this host. HostLost: it is gone.
    """
    link, workers = connected(hosts, waiting, limit_s), dict[int, Process]()
    orders = Orders(hosts, workers)
    try:
        link.send({"index": hosts.index, "count": hosts.count, "stripectl": VERSION} | host_facts())
        while (order := link.receive()) is not None:
            if order["do"] == "done":
                return order
            if order["do"] == "refuse":
                raise BadInput(str(order["reason"]))
            if order["do"] != "welcome":
                link.send({"result": getattr(orders, order.pop("do"))(**order)})
    except (OSError, ValueError) as error:
        raise HostLost(f"host 0 at {hosts.coordinator} is gone: {error}. Its results are saved there.") from error
    finally:
        link.close()
        for worker in workers.values():
            worker.stop()
    raise HostLost(f"host 0 at {hosts.coordinator} is gone. Its results are saved there.")


def connected(hosts: Hosts, waiting: Waiting, limit_s: float) -> HostConnection:
    """A connection to host 0, as soon as it listens."""
    deadline = time.monotonic() + limit_s
    while True:
        waiting(0, hosts.count)
        try:
            return HostConnection(socket.create_connection(hosts.address, timeout=5))
        except OSError as error:
            if time.monotonic() > deadline:
                raise Missing(
                    f"host 0 does not answer at {hosts.coordinator}: {error}. Start this command there with "
                    "--process-id 0."
                ) from error
            time.sleep(0.5)


@dataclass
class Orders:
    """The orders that host 0 may give another host."""

    hosts: Hosts
    workers: dict[int, Process]

    def start(self, worker: int, config: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        channel = socket.create_connection(self.hosts.address, timeout=ANSWER_S)
        channel.settimeout(None)
        HostConnection(channel).send({"worker": worker})
        self.workers[worker] = Process.start(config, variables, channel.fileno())
        channel.close()  # only the worker holds it now, so host 0 notices when the worker ends

    def end(self, worker: int) -> str:
        return self.workers[worker].end()

    def stop(self, worker: int) -> None:
        self.workers.pop(worker).stop()
