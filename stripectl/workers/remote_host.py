"""Another host of a command, and a worker on it, as host 0 sees them."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any

from stripectl.util.files import printable
from stripectl.workers import links, messages
from stripectl.workers.hosts import ANSWER_S, HostLost
from stripectl.workers.messages import Answer, End, Greeting, Start, Stop


@dataclass
class Follower:
    """Another host, as host 0 sees it. It becomes readable when the host is gone."""

    greeting: Greeting
    link: links.Link
    run: Callable[[Coroutine[Any, Any, Any]], "Future[Any]"]
    answers: "asyncio.Queue[bytes | None]" = field(default_factory=asyncio.Queue)
    ends: tuple[socket.socket, socket.socket] = field(default_factory=socket.socketpair)

    @property
    def index(self) -> int:
        return self.greeting.index

    @property
    def name(self) -> str:
        return f"host {self.index} ({printable(self.greeting.name)})"

    def fileno(self) -> int:
        return self.ends[0].fileno()

    def lost(self) -> HostLost:
        return HostLost(f"{self.name} is gone", "Earlier results are saved; continue with --resume on all hosts.")

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        for end in self.ends:
            end.close()

    def tell(self, message: Any) -> None:
        """Send a message that has no answer. Raises OSError where the host is gone."""
        try:
            self.run(self.link.send(messages.write(message))).result(ANSWER_S)
        except (TimeoutError, CancelledError) as error:
            raise ConnectionError("the host does not take messages") from error

    def ask(self, order: Start | End | Stop) -> str | None:
        """The host's answer to an order.

        Raises:
            HostLost: it does not answer.
        """
        try:
            self.tell(order)
            content = self.run(self.answers.get()).result(ANSWER_S)
            if content is not None:
                return messages.read(content, Answer).text
            self.run(self.answers.put(None))  # for the next order
        except (OSError, ValueError, TimeoutError, CancelledError) as error:
            raise self.lost() from error
        raise self.lost()

    async def collect_answers(self) -> None:
        """Collect answers until the host is gone."""
        try:
            while (content := await self.link.receive()) is not None:
                self.answers.put_nowait(content)
        finally:
            self.answers.put_nowait(None)
            self.ends[1].close()


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
        return f"on {self.follower.name} {self.follower.ask(End(self.number))}"

    def stop(self) -> None:
        self.connection.close()
        with contextlib.suppress(HostLost):
            self.follower.ask(Stop(self.number))
