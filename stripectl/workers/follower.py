"""Every host except host 0: it starts and ends workers on host 0's orders until the command is done."""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field

import grpc
import grpc.aio

from stripectl.errors import BadInput, Missing
from stripectl.workers import links, messages
from stripectl.workers.host_workers import HostWorkers
from stripectl.workers.hosts import GATHER_S, HostFacts, HostLost, Hosts, Waiting
from stripectl.workers.messages import Answer, Done, End, Greeting, Refuse, Start, Stop, WorkerGreeting
from stripectl.workers.process import WorkerConfig
from stripectl.workers.secret import TOKEN, TOKEN_FILE, Unauthentic, run_secret

RETRY_S = 0.5
FLUSH_S = 5.0  # for the last bytes of a worker to arrive at host 0


def follow(hosts: Hosts, waiting: Waiting, limit_s: float = GATHER_S) -> Done:
    """Start and end workers on host 0's orders until the command is done; returns how it ended.

    Raises:
        Missing: host 0 does not answer.
        BadInput: it refuses this host.
        HostLost: it is gone.
    """
    return asyncio.run(Host(hosts).follow(waiting, limit_s))


@dataclass
class Host:
    """This host, on host 0's orders."""

    hosts: Hosts
    secret: bytes = b""
    workers: HostWorkers = field(default_factory=HostWorkers)
    pumps: dict[int, "asyncio.Task[None]"] = field(default_factory=dict)

    async def follow(self, waiting: Waiting, limit_s: float) -> Done:
        address, port = self.hosts.address
        target = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        async with grpc.aio.insecure_channel(target, links.OPTIONS) as channel:
            self.channel = channel
            try:
                with self.workers:
                    return await self._obey(await self._connected(waiting, limit_s))
            finally:
                for pump in self.pumps.values():
                    pump.cancel()
                await asyncio.gather(*self.pumps.values(), return_exceptions=True)

    async def _connected(self, waiting: Waiting, limit_s: float) -> links.Link:
        """A connection to host 0, as soon as it listens."""
        deadline = time.monotonic() + limit_s
        while True:
            waiting(0, self.hosts.count)
            self.secret = run_secret(os.environ, leads=False) or b""  # the file may appear while this host waits
            self.call = self.channel.stream_stream(links.FOLLOW)()
            try:
                return await links.join(self.call, self.secret)
            except Unauthentic as error:
                raise self._unauthentic(str(error)) from error
            except ConnectionError as error:
                if time.monotonic() > deadline:
                    raise Missing(self._why_missing()) from error
            await asyncio.sleep(RETRY_S)

    def _why_missing(self) -> str:
        hint = "" if self.secret else f", and set the same {TOKEN} or {TOKEN_FILE} on all hosts"
        return (
            f"host 0 does not answer at {self.hosts.coordinator}. Start this command there with --process-id 0{hint}."
        )

    def _unauthentic(self, reason: str) -> BadInput:
        return BadInput(
            f"cannot join host 0 at {self.hosts.coordinator} because {reason}. Set the same {TOKEN} or {TOKEN_FILE} on "
            "all hosts."
        )

    async def _obey(self, link: links.Link) -> Done:
        greeting = Greeting(index=self.hosts.index, count=self.hosts.count, **asdict(HostFacts.here()))
        reason = "the connection ended"
        try:
            await link.send(messages.write(greeting))
            while (content := await link.receive()) is not None:
                order = messages.read(content, *messages.ORDERS)
                if isinstance(order, Done):
                    return order
                if isinstance(order, Refuse):
                    raise BadInput(order.reason)
                if act := self._actions.get(type(order)):
                    await link.send(messages.write(Answer(await act(order))))
            if await self.call.code() is grpc.StatusCode.UNAUTHENTICATED:
                raise self._unauthentic(await self.call.details())
        except (OSError, ValueError, Unauthentic) as error:
            reason = str(error)
        raise HostLost(f"host 0 at {self.hosts.coordinator} is gone: {reason}", "Its results are saved there.")

    @property
    def _actions(self) -> dict[type, Callable[..., Awaitable[str | None]]]:
        """Everything that host 0 can have done here."""
        return {Start: self.start, End: self.end, Stop: self.stop}

    async def start(self, order: Start) -> None:
        config = WorkerConfig("measure", order.processes, order.process, order.coordinator, order.core)
        own = self.workers.start(order.worker, config)
        self.pumps[order.worker] = asyncio.create_task(self._carry(order.worker, own))

    async def _carry(self, worker: int, own: socket.socket) -> None:
        """Carry the requests and answers of a worker, until it ends or host 0 is gone."""
        call = self.channel.stream_stream(links.WORK)()
        with own:
            link = await links.join(call, self.secret)
            await link.send(messages.write(WorkerGreeting(worker)))
            await links.pump(link, own)
        await call.done_writing()
        await asyncio.wait_for(call.code(), FLUSH_S)

    async def end(self, order: End) -> str:
        return await self.workers.end(order.worker)

    async def stop(self, order: Stop) -> None:
        self.workers.stop(order.worker)
