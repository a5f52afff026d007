"""Starts and drives the processes that touch devices, and outlives whatever happens to them. Never imports JAX.

A device set is one worker with every device of this machine, or, for `cpu:N`, N single-thread workers pinned to a core
each and joined by `jax.distributed`: virtual devices of one process would share cores, and hide the imbalance that this
tool exists to show.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Any

from stripectl import Missing, StripectlError
from stripectl.environment import cores

GRACE_S = 5.0  # after one process of a set has failed: how long the others may take to say so too
START_S = 120.0
VIRTUAL_DEVICES = "--xla_force_host_platform_device_count"  # would give every pinned process several devices
CPU_FLAGS = "--xla_cpu_multi_thread_eigen=false"


class PlanFailed(StripectlError):
    """A request that the workers could not do; the message is the reason. `alive` says whether the set still works,
    `refused` that what was asked cannot be done by anybody, `late` that it took longer than its limit."""

    def __init__(self, reason: str, *, alive: bool, refused: bool = False, late: bool = False) -> None:
        super().__init__(reason)
        self.alive, self.refused, self.late = alive, refused, late


@dataclass
class Worker:
    """One process and its pipes."""

    process: "subprocess.Popen[bytes]"
    log: IO[bytes]
    buffer: bytes = b""

    def last_words(self) -> str:
        """The last line of its log that says something, for a reason."""
        self.log.flush()
        with open(self.log.name, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4000))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
        return next((line[:300] for line in reversed(lines) if line and not line.startswith("*** ")), "")

    def end(self) -> str:
        """How it ended, in words."""
        code = self.process.wait()
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with code {code}" + (f": {words}" if (words := self.last_words()) else "")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@dataclass
class DeviceSet:
    """The workers of a target, started when first asked and started anew after one died. Use it with `with`: however
    the block ends, no worker is left behind."""

    processes: int | None = None  # N: pinned CPU processes; None: one process with every device here
    session: str = "measure"  # the module whose Session answers: measure, compile
    variables: Mapping[str, str] = field(default_factory=dict)  # set in its environment
    workers: list[Worker] = field(default_factory=list)
    starts: int = 0

    def __enter__(self) -> "DeviceSet":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __post_init__(self) -> None:
        available = cores()
        if self.processes is not None and self.processes > len(available):
            raise Missing(
                f"cpu:{self.processes} needs {self.processes} cores, one a process, and this machine has "
                f"{len(available)}. Try --target cpu:{len(available)}, or --method simulated."
            )

    def start(self) -> None:
        self.starts += 1
        count, available = self.processes or 1, cores()
        coordinator = f"127.0.0.1:{free_port()}"
        environment = dict(os.environ)
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        environment |= self.variables
        if self.processes:
            environment["JAX_PLATFORMS"] = "cpu"
            own = os.environ.get("XLA_FLAGS", "").split()
            environment["XLA_FLAGS"] = " ".join([*(flag for flag in own if VIRTUAL_DEVICES not in flag), CPU_FLAGS])
        for rank in range(count):
            core = available[rank] if self.processes else None
            config = {"core": core, "processes": count, "process": rank, "coordinator": coordinator}
            config["session"] = self.session
            log = tempfile.NamedTemporaryFile(prefix="stripectl-worker-", suffix=".log")  # noqa: SIM115
            process = subprocess.Popen(
                [sys.executable, "-m", "stripectl.worker", json.dumps(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the parent, which decides what is kept
            )
            self.workers.append(Worker(process, log))

    def stop(self) -> None:
        """End every worker now."""
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.process.wait()
            for pipe in (worker.process.stdin, worker.process.stdout, worker.log):
                if pipe:
                    with contextlib.suppress(OSError):
                        pipe.close()
        self.workers.clear()

    def ask(self, do: str, limit_s: float = START_S, **arguments: Any) -> list[Any]:
        """Every worker's answer to a request, in the order of their ranks.

        Raises:
            PlanFailed: one answered with an error, died, or took longer than `limit_s`. Where the others cannot go on
                without it the set is stopped, and the next request starts it anew.
        """
        if not self.workers:
            self.start()
            limit_s += START_S
        message = json.dumps({"do": do, "with": arguments}).encode() + b"\n"
        for rank, worker in enumerate(self.workers):
            assert worker.process.stdin
            try:
                worker.process.stdin.write(message)
                worker.process.stdin.flush()
            except OSError:
                self._fail(f"process {rank} {worker.end()}")
        return self._gather(time.monotonic() + limit_s, limit_s)

    def _gather(self, deadline: float, limit_s: float) -> list[Any]:
        answers: dict[int, Mapping[str, Any]] = {}
        failed: Mapping[str, Any] | None = None  # the first answer that is an error
        with selectors.DefaultSelector() as selector:
            for rank, worker in enumerate(self.workers):
                assert worker.process.stdout
                selector.register(worker.process.stdout, selectors.EVENT_READ, rank)
            while len(answers) < len(self.workers):
                events = selector.select(max(0.0, deadline - time.monotonic()))
                if not events:
                    late = {"reason": f"took longer than its limit of {limit_s:g} s", "late": True}
                    self._fail(**(failed or late))
                for key, _ in events:
                    answer = self._read(key.data)
                    if answer is None:
                        continue
                    answers[key.data] = answer
                    if "reason" in answer and failed is None:
                        failed, deadline = answer, min(deadline, time.monotonic() + GRACE_S)
        if failed is not None:
            raise PlanFailed(**failed, alive=True)
        return [answers[rank]["result"] for rank in range(len(self.workers))]

    def _read(self, rank: int) -> Mapping[str, Any] | None:
        """A whole answer of a worker, or None while there is only a part of it."""
        worker = self.workers[rank]
        assert worker.process.stdout
        data = os.read(worker.process.stdout.fileno(), 2**16)
        if not data:
            self._fail(f"process {rank} {worker.end()}")
        worker.buffer += data
        line, newline, rest = worker.buffer.partition(b"\n")
        if not newline:
            return None
        worker.buffer = rest
        return json.loads(line)

    def _fail(self, reason: str, *, refused: bool = False, late: bool = False) -> None:
        self.stop()
        raise PlanFailed(reason, alive=False, refused=refused, late=late)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Make a polite kill behave like Ctrl-C, so that workers are ended and what was measured is kept. Ctrl-C too: a
    shell may have started us with it ignored."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
