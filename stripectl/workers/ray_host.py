"""A node of a Ray cluster: the actor that runs workers there and carries their requests and answers."""

import asyncio
import socket
from dataclasses import asdict

from stripectl.workers.host_workers import HostWorkers
from stripectl.workers.hosts import HostFacts, free_address
from stripectl.workers.process import WorkerConfig

MAX_PART_BYTES = 2**20  # of an answer, in a reply of this actor


class RayHost:
    """Every method is a coroutine, so that Ray runs them side by side and an answer to `ping` waits for none of them.
    When the actor ends, Linux ends its workers."""

    def __init__(self) -> None:
        self.workers = HostWorkers()
        self.connections: dict[int, socket.socket] = {}

    async def facts(self) -> dict[str, object]:
        return asdict(HostFacts.here())

    async def ping(self) -> None:
        """Nothing: an answer says that the node is there."""

    async def free_address(self, host: str) -> str:
        return free_address(host)

    async def start(self, number: int, config: WorkerConfig) -> None:
        self.connections[number] = self.workers.start(number, config)

    async def send(self, number: int, message: bytes) -> None:
        """Raises OSError where the worker is gone."""
        await asyncio.get_running_loop().sock_sendall(self.connections[number], message)

    async def receive(self, number: int) -> bytes:
        """The next bytes of a worker's answers; none at their end."""
        try:
            return await asyncio.get_running_loop().sock_recv(self.connections[number], MAX_PART_BYTES)
        except ConnectionError:
            return b""

    async def end(self, number: int) -> str:
        return await self.workers.end(number)

    async def stop(self, number: int) -> None:
        self.workers.stop(number)
        if connection := self.connections.pop(number, None):
            connection.close()
