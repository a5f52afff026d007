"""The hosts of a command, as host 0 sees them: it gathers and compares them, and has them start workers."""

import asyncio
import contextlib
import os
import queue
import resource
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
import grpc.aio

from stripectl.errors import BadInput, Missing
from stripectl.results.environment import VERSION
from stripectl.util.files import printable
from stripectl.workers import links, messages
from stripectl.workers.hosts import ANSWER_S, GATHER_S, HostFacts, HostLost, Hosts, Waiting, free_address, other_version
from stripectl.workers.messages import Done, Greeting, Refuse, Start, Welcome, WorkerGreeting
from stripectl.workers.process import Process, Worker, WorkerConfig
from stripectl.workers.remote_host import Follower, RemoteWorker
from stripectl.workers.secret import TOKEN, TOKEN_FILE, Unauthentic, run_secret

MAX_STRANGERS_LOGGED = 20
SPARE_DESCRIPTORS = 512  # for files, workers and all else that is no connection
SILENT_S = 10  # for which a connection may be open without a request
CLOSE_S = 1.0
LOOPBACK = ("127.0.0.1", "[::1]")

Result = TypeVar("Result")


def server_options() -> list[tuple[str, int]]:
    """The options of the server: a connection that asks for nothing ends soon, and there are fewer connections than
    this process may have open files, whose limit is raised as far as the system allows. So silent strangers take
    nothing that the run needs."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return [
        *links.OPTIONS,
        ("grpc.server_handshake_timeout_ms", SILENT_S * 1000),
        ("grpc.max_connection_idle_ms", SILENT_S * 1000),
        ("grpc.max_allowed_incoming_connections", max(SPARE_DESCRIPTORS, most - SPARE_DESCRIPTORS)),
    ]


class OtherMethods(grpc.GenericRpcHandler):
    """Answers requests for methods that the service does not have, so that they are printed too."""

    def __init__(self, answer: Callable[[Any, Any], Coroutine[Any, Any, None]]) -> None:
        self.answer = answer

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_stream_rpc_method_handler(self.answer)


@dataclass
class Coordinator:
    """A cluster of hosts that join host 0 over gRPC. Use it with `with`; `done` tells the other hosts how the command
    ended. `warn` gets a line for each stranger that is refused."""

    hosts: Hosts
    warn: Callable[[str], None]
    own_facts: HostFacts = field(default_factory=HostFacts.here)
    peers: list[Follower] = field(default_factory=list)
    started: int = 0
    recommended: str | None = None  # the recommended plan, which the other hosts print

    def __post_init__(self) -> None:
        self.secret = run_secret(os.environ, leads=True)
        self.arrivals: queue.Queue[Follower] = queue.Queue()
        self.expected: dict[int, Future[socket.socket]] = {}
        self.strangers = 0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="hosts", daemon=True)
        self.thread.start()
        try:
            self._run(self._listen()).result()
        except BaseException:
            self._end_loop()
            raise

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> "Future[Result]":
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    async def _listen(self) -> None:
        self.server = grpc.aio.server(options=server_options())
        handlers = {
            links.FOLLOW.rpartition("/")[2]: grpc.stream_stream_rpc_method_handler(self._follow),
            links.WORK.rpartition("/")[2]: grpc.stream_stream_rpc_method_handler(self._work),
        }
        service = links.FOLLOW.split("/")[1]
        known = grpc.method_handlers_generic_handler(service, handlers)
        self.server.add_generic_rpc_handlers((known, OtherMethods(self._refuse_method)))
        port, bound = self.hosts.address[1], 0
        # Without a secret only this machine can connect.
        for address in ("[::]",) if self.secret else LOOPBACK:
            with contextlib.suppress(RuntimeError):
                bound += bool(self.server.add_insecure_port(f"{address}:{port}"))
        if self.secret and not bound:  # a machine without IPv6
            with contextlib.suppress(RuntimeError):
                bound += bool(self.server.add_insecure_port(f"0.0.0.0:{port}"))
        if not bound:
            raise BadInput(
                f"cannot listen at port {port} because another program uses it. Try another port in --coordinator."
            )
        await self.server.start()

    def __enter__(self) -> "Coordinator":
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(TimeoutError, CancelledError):
            self._run(self.server.stop(CLOSE_S)).result(2 * CLOSE_S)
        self._end_loop()
        while not self.arrivals.empty():  # hosts that connected and were not gathered
            self.peers.append(self.arrivals.get())
        for follower in self.peers:
            follower.close()

    def _end_loop(self) -> None:
        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        with contextlib.suppress(TimeoutError, CancelledError):
            self._run(end()).result(CLOSE_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(CLOSE_S)
        if not self.thread.is_alive():
            self.loop.close()

    async def _authenticated(self, context: Any) -> links.Link:
        """The connection of a host that knows the secret; a stranger's ends here, with a line in the log."""
        try:
            return await links.admit(context, self.secret or b"")
        except (Unauthentic, ConnectionError) as error:
            await self._turn_away(context, str(error))
            raise

    async def _refuse_method(self, _: Any, context: Any) -> None:
        await self._turn_away(context, "it asked for an unknown method", grpc.StatusCode.UNIMPLEMENTED)

    async def _turn_away(
        self, context: Any, reason: str, code: grpc.StatusCode = grpc.StatusCode.UNAUTHENTICATED
    ) -> None:
        self.strangers += 1
        if self.strangers <= MAX_STRANGERS_LOGGED:
            more = "; later refusals are not printed" if self.strangers == MAX_STRANGERS_LOGGED else ""
            self.warn(f"refused a connection from {printable(context.peer())} because {printable(reason)}{more}")
        await context.abort(code, reason)

    async def _follow(self, _: Any, context: Any) -> None:
        link = await self._authenticated(context)
        try:
            content = await asyncio.wait_for(link.receive(), ANSWER_S)
            greeting = messages.read(content or b"", Greeting)
        except (ValueError, TimeoutError, Unauthentic) as error:
            return await self._turn_away(context, str(error) or "it said nothing")
        follower = Follower(greeting, link, self._run)
        self.arrivals.put(follower)
        try:
            await follower.collect_answers()
        except (ValueError, Unauthentic) as error:
            await self._turn_away(context, str(error))

    async def _work(self, _: Any, context: Any) -> None:
        link = await self._authenticated(context)
        try:
            content = await asyncio.wait_for(link.receive(), ANSWER_S)
            expected = self.expected.pop(messages.read(content or b"", WorkerGreeting).worker)
        except (ValueError, KeyError, TimeoutError, Unauthentic) as error:
            return await self._turn_away(context, f"no such worker is expected: {error}")
        own, other = socket.socketpair()
        with own:
            expected.set_result(other)
            await links.pump(link, own)

    def gather(self, waiting: Waiting, limit_s: float = GATHER_S) -> None:
        """Wait for the other hosts.

        Raises:
            Missing: a host did not connect.
            BadInput: a host runs another version of stripectl.
        """
        deadline, known = time.monotonic() + limit_s, dict[int, Follower]()
        while len(known) < self.hosts.count - 1:
            waiting(len(known) + 1, self.hosts.count)
            try:
                follower = self.arrivals.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                absent = ", ".join(str(i) for i in range(1, self.hosts.count) if i not in known)
                raise Missing(
                    f"host {absent} of {self.hosts.count} did not connect within {limit_s:g} s. Start the same command "
                    f"there, with --coordinator {self.hosts.coordinator}.{self._hint()} The port must be open."
                ) from None
            if reason := self._why_refused(follower, known):
                with follower, contextlib.suppress(OSError):
                    follower.tell(Refuse(reason))
                raise BadInput(reason)
            with contextlib.suppress(OSError):  # a host that is lost already is noticed at its first order
                follower.tell(Welcome())
            known[follower.index] = follower
        self.peers = [known[index] for index in sorted(known)]

    def _hint(self) -> str:
        """Without a secret only this machine can connect."""
        if self.secret:
            return ""
        return f" Without a secret only this machine can connect: set {TOKEN} or {TOKEN_FILE} on all hosts."

    def _why_refused(self, follower: Follower, known: Mapping[int, Follower]) -> str | None:
        said = follower.greeting
        if said.stripectl != VERSION:
            return other_version(follower.name, said.stripectl)
        if said.count != self.hosts.count:
            each = f"--num-processes {said.count}, and host 0 with --num-processes {self.hosts.count}"
            hint = "Try the same --num-processes on all hosts."
            return f"cannot admit {follower.name} because it was started with {each}. {hint}"
        if not 0 < said.index < self.hosts.count:
            last = self.hosts.count - 1
            return (
                f"cannot admit {follower.name} because hosts have numbers from 1 to {last}. Try another --process-id."
            )
        if said.index in known:
            return f"cannot admit {follower.name} because it has joined already. Try another --process-id."
        return None

    @property
    def facts(self) -> list[HostFacts]:
        return [self.own_facts, *(follower.greeting.facts for follower in self.peers)]

    def jax_coordinator(self) -> str:
        return free_address(self.hosts.address[0])

    def start(self, host: int, config: WorkerConfig) -> Worker:
        if not host:
            return Process.start(config)
        follower, self.started = self.peers[host - 1], self.started + 1
        self.expected[self.started] = connected = Future()
        order = Start(self.started, config.processes, config.process, config.coordinator, config.core)
        try:
            follower.ask(order)
            return RemoteWorker(follower, order.worker, connected.result(ANSWER_S))
        except (HostLost, TimeoutError) as error:
            connected.add_done_callback(lambda late: late.result().close())
            raise follower.lost() from error
        finally:
            self.expected.pop(order.worker, None)

    def done(self, code: int, reason: str) -> None:
        """Tell every host that the command has ended: its exit code, and the reason where it failed."""
        for follower in self.peers:
            with contextlib.suppress(OSError):
                follower.tell(Done(code, reason, self.recommended))
