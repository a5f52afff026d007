"""Starts and drives the processes that touch devices, and survives their failures. Never imports JAX.

A group is one worker with all devices of a host, or, for `cpu:N`, N single-thread workers pinned to one core each.
Several workers, on one host or on many, are joined by `jax.distributed`. Virtual devices of one process would share
cores, and hide the imbalance that stripectl exists to show.
"""

import contextlib
import json
import os
import re
import selectors
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

from stripectl.errors import BadInput, Missing, StripectlError
from stripectl.results.environment import cores, version
from stripectl.workers.hosts import Cluster, free_address
from stripectl.workers.process import Process, Session, Worker, WorkerConfig

GRACE_S = 5.0  # after one process of a group has failed: for the others to report their failures
MAX_ANSWER_BYTES = 2**30  # of an answer: a profile is one answer
START_S = 120.0


class UnknownFlag(StripectlError):
    """An environment variable holds a flag that XLA does not know: every process that reads it ends."""

    exit_code = BadInput.exit_code


# The messages of XLA (xla/parse_flags_from_env.cc) and libtpu about an unknown flag, before they end the process.
IN_XLA_FLAGS = re.compile(r"Unknown flags? in XLA_FLAGS: (.+)")
IN_LIBTPU_ARGS = re.compile(r"Unknown command line flag '([^']*)'")


def ended_by_flag(last_words: str) -> UnknownFlag | None:
    """The error for a process that ended because of an unknown XLA flag; None for any other."""
    for variable, pattern in (("XLA_FLAGS", IN_XLA_FLAGS), ("LIBTPU_INIT_ARGS", IN_LIBTPU_ARGS)):
        if found := pattern.search(last_words):
            flags = " ".join(f"--{flag.lstrip('-')}" for flag in found[1].split())
            return UnknownFlag(
                f"XLA (jaxlib {version('jaxlib')}) does not know {flags}. "
                f"Correct the variable {variable}, or remove the flag from it."
            )
    return None


class WorkerError(StripectlError):
    """A request that failed; the message is the reason. `group_alive` says whether the workers can take another
    request, `unsupported` that no worker could do it, `timed_out` that it took longer than its limit."""

    def __init__(self, reason: str, *, group_alive: bool, unsupported: bool = False, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.group_alive, self.unsupported, self.timed_out = group_alive, unsupported, timed_out


class WorkerAnswer(NamedTuple):
    """The answer of a worker: its result, or the reason why it has none."""

    result: Any = None  # JSON, which the caller reads
    reason: str | None = None
    unsupported: bool = False


def answer_of(line: bytes | bytearray, number: int) -> WorkerAnswer | None:
    """A worker's answer to the request with this number; None where a line is not an answer."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or content.get("to") != number:
        return None
    if isinstance(content.get("reason"), str):
        return WorkerAnswer(reason=content["reason"], unsupported=bool(content.get("unsupported")))
    return WorkerAnswer(content["result"]) if "result" in content else None


@dataclass
class WorkerGroup:
    """The workers of a target, started when first asked and started again after one died. Use it with `with`: no worker
    survives the block."""

    processes: int | None = None  # N: pinned CPU processes; None: one process per host, with all its devices
    session: Session = "measure"  # the requests that they answer; other hosts measure alone
    variables: Mapping[str, str] = field(default_factory=dict)  # set in its environment, on this host
    memory_bytes: int | None = None  # that each may allocate; None: only the machine's limit
    cluster: Cluster | None = None  # the hosts that take part; None: only this host
    workers: list[Worker] = field(default_factory=list)
    starts: int = 0
    asked: int = 0

    def __enter__(self) -> "WorkerGroup":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __post_init__(self) -> None:
        for host, (count, available) in enumerate(zip(self.on_hosts, self.cores, strict=True)):
            if self.processes is not None and count > len(available):
                where = "this machine" if self.cluster is None else f"host {host}"
                most = sum(map(len, self.cores))
                raise Missing(
                    f"cpu:{self.processes} needs {count} cores, one per process, but {where} has {len(available)}. "
                    f"Try --target cpu:{most}, or --method simulated."
                )

    @property
    def cores(self) -> list[list[int]]:
        """The cores of each host."""
        return [each.cores for each in self.cluster.facts] if self.cluster else [cores()]

    @property
    def on_hosts(self) -> list[int]:
        """The number of workers on each host."""
        hosts = len(self.cores)
        if self.processes is None:
            return [1] * hosts
        return [self.processes // hosts + (host < self.processes % hosts) for host in range(hosts)]

    def start(self) -> None:
        self.starts += 1
        places = [(host, nth) for host, count in enumerate(self.on_hosts) for nth in range(count)]
        coordinator = self.cluster.jax_coordinator() if self.cluster else free_address("127.0.0.1")
        for rank, (host, nth) in enumerate(places):
            core = self.cores[host][nth] if self.processes else None
            config = WorkerConfig(self.session, len(places), rank, coordinator, core, self.memory_bytes)
            self.workers.append(
                self.cluster.start(host, config) if self.cluster else Process.start(config, self.variables)
            )

    def stop(self) -> None:
        """End every worker now."""
        for worker in self.workers:
            worker.stop()
        self.workers.clear()

    def ask(self, do: str, limit_s: float = START_S, **arguments: Any) -> list[Any]:
        """Every worker's answer to a request, in the order of their ranks.

        Raises:
            UnknownFlag: a worker ended because of a flag in its environment.
            WorkerError: a worker answered with an error, died, or took longer than `limit_s`. Where the others cannot
                continue without it the group is stopped, and the next request starts it again.
        """
        if not self.workers:
            try:
                self.start()
            except OSError as error:
                self._fail(f"no process could be started: {error.strerror}")
            limit_s += START_S
        self.asked += 1
        message = json.dumps({"do": do, "with": arguments, "number": self.asked}).encode() + b"\n"
        for rank, worker in enumerate(self.workers):
            try:
                worker.send(message)
            except OSError:
                self._ended(rank)
        return self._gather(time.monotonic() + limit_s, limit_s)

    def _gather(self, deadline: float, limit_s: float) -> list[Any]:
        answers: dict[int, WorkerAnswer] = {}
        failed: tuple[str, bool] | None = None  # the first error: its reason, and whether it is unsupported
        with selectors.DefaultSelector() as selector:
            for rank, worker in enumerate(self.workers):
                selector.register(worker, selectors.EVENT_READ, rank)
            for peer in self.cluster.peers if self.cluster else ():
                selector.register(peer, selectors.EVENT_READ, peer)
            while len(answers) < len(self.workers):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    if failed:
                        self._fail(failed[0], unsupported=failed[1])
                    self._fail(f"took longer than its limit of {limit_s:g} s", timed_out=True)
                for key, _ in selector.select(left_s):
                    if not isinstance(key.data, int):  # a follower speaks only when asked, so this is its end
                        self.stop()
                        raise key.data.lost()
                    answer = self._read(key.data)
                    if answer is None:
                        continue
                    answers[key.data] = answer
                    if answer.reason is not None and failed is None:
                        failed = answer.reason, answer.unsupported
                        deadline = min(deadline, time.monotonic() + GRACE_S)
        if failed is not None:
            raise WorkerError(failed[0], unsupported=failed[1], group_alive=True)
        return [answers[rank].result for rank in range(len(self.workers))]

    def _read(self, rank: int) -> WorkerAnswer | None:
        """A complete answer of a worker, or None while only a part has arrived."""
        worker = self.workers[rank]
        try:
            data = os.read(worker.fileno(), 2**16)
        except OSError:
            data = b""
        if not data:
            self._ended(rank)
        worker.buffer += data
        if b"\n" not in data and len(worker.buffer) <= MAX_ANSWER_BYTES:
            return None
        line, _, more = worker.buffer.partition(b"\n")
        worker.buffer.clear()
        answer = answer_of(line, self.asked)
        if answer is None or more:  # then it is unknown which request the next answer belongs to
            self._fail(f"process {rank} wrote something other than an answer: {line[:80].decode(errors='replace')!r}")
        return answer

    def _ended(self, rank: int) -> NoReturn:
        """Raise with how a worker ended."""
        try:
            ended = self.workers[rank].end()
        finally:
            self.stop()
        if flag := ended_by_flag(ended):
            raise flag
        raise WorkerError(f"process {rank} {ended}", group_alive=False)

    def _fail(self, reason: str, *, unsupported: bool = False, timed_out: bool = False) -> None:
        self.stop()
        raise WorkerError(reason, group_alive=False, unsupported=unsupported, timed_out=timed_out)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGTERM behave like Ctrl-C, so that workers end and results are kept. Ctrl-C as well, because a shell may
    have started this process with it ignored."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
