"""The workers that this host runs for the process that drives them from another machine."""

import asyncio
import socket
from dataclasses import dataclass, field

from stripectl.workers.process import Process, WorkerConfig


@dataclass
class HostWorkers:
    """Workers by number. Use it with `with`: no worker survives the block."""

    workers: dict[int, Process] = field(default_factory=dict)

    def __enter__(self) -> "HostWorkers":
        return self

    def __exit__(self, *exception: object) -> None:
        for number in list(self.workers):
            self.stop(number)

    def start(self, number: int, config: WorkerConfig) -> socket.socket:
        """Start a worker; returns this host's end of its requests and answers."""
        own, channel = socket.socketpair()
        with channel:  # afterwards only the worker holds it, so its end is seen
            try:
                self.workers[number] = Process.start(config, channel=channel.fileno())
            except OSError:
                own.close()
                raise
        own.setblocking(False)
        return own

    async def end(self, number: int) -> str:
        """How a worker ended, in words."""
        return await asyncio.to_thread(self.workers[number].end)

    def stop(self, number: int) -> None:
        """End a worker now, unless it was ended before."""
        if worker := self.workers.pop(number, None):
            worker.stop()
