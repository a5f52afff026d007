"""A real Ray cluster on this machine: nodes with a core each, in network namespaces on request."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stripectl.results.environment import cores
from stripectl.workers.hosts import free_address
from tests.support.hosts import PROGRAM
from tests.support.network import Network, address
from tests.support.processes import children, wait_for

RAY = Path(sys.executable).with_name("ray")


def descendants(pid: int) -> list[int]:
    """Children of all threads, and theirs."""
    found = (children(pid, int(thread.name)) for thread in Path(f"/proc/{pid}/task").glob("*"))
    return [each for of_thread in found for child in of_thread for each in [child, *descendants(child)]]


@dataclass
class RayNodes:
    """Nodes of a cluster on this machine, as processes that `ray start --block` keeps. The first is the head. Commands
    run on the head's host."""

    folder: Path
    network: Network | None = None  # whose hosts the nodes are; None: all nodes share this machine's network
    started: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    sockets: tempfile.TemporaryDirectory[str] = field(  # Linux limits the path of a socket to 107 bytes
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True)
    )

    def __post_init__(self) -> None:
        head = address(0) if self.network else "127.0.0.1"
        self.address, self.client = free_address(head), free_address(head)

    def within(self, host: int) -> list[str]:
        return self.network.within(host) if self.network else []

    def add(self, *words: str, host: int | None = None) -> None:
        """Start a node and wait until it has joined."""
        first, count = not self.started, len(self.started)
        host = count if host is None else host
        port, client = self.address.rpartition(":")[2], self.client.rpartition(":")[2]
        place = ["--head", f"--port={port}", "--include-dashboard=false", f"--ray-client-server-port={client}"]
        place += [f"--temp-dir={self.sockets.name}"]
        core = cores()[host % len(cores())]
        command = [*self.within(host), "taskset", "-c", str(core), RAY, "start"]
        command += [*(place if first else [f"--address={self.address}"])]
        if self.network:
            command.append(f"--node-ip-address={address(host)}")
        with (self.folder / f"node{count}.log").open("wb") as log:
            self.started.append(
                subprocess.Popen(
                    [*command, "--num-cpus=1", "--block", "--disable-usage-stats", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
        running = sum(process.poll() is None for process in self.started)
        joined = wait_for(lambda: self.started[-1].poll() is not None or self.alive() == running, 120)
        assert joined and self.started[-1].poll() is None, (self.folder / f"node{count}.log").read_text()

    def alive(self) -> int:
        """The number of nodes that have joined and not left."""
        asks = "import ray; ray.init('auto', log_to_driver=False); print(sum(each['Alive'] for each in ray.nodes()))"
        command = [*self.within(0), sys.executable, "-c", asks]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=60)
        return int((done.stdout.split() or [0])[0])  # Ray may add lines about its nodes

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"RAY_ADDRESS": self.address}

    def signal(self, node: int, number: int) -> None:
        pid = self.started[node].pid
        for each in [pid, *descendants(pid)]:
            os.kill(each, number)

    def run(
        self, words: Sequence[str], where: str = "ray", program: Sequence[str] = PROGRAM
    ) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*self.within(0), *program, *words, "--cluster", where],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        for node, process in reversed(list(enumerate(self.started))):
            if process.poll() is None:
                self.signal(node, signal.SIGKILL)
            process.wait()
        self.sockets.cleanup()
