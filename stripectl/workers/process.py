"""A worker process: how it starts, and how it ended, in words. Never imports JAX.

It reads requests from and writes answers to a pipe of its parent, or a connection to another host.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

from stripectl.workers.secret import TOKEN, TOKEN_FILE
from stripectl.workers.stderr_tail import StderrTail

VIRTUAL_DEVICES = "--xla_force_host_platform_device_count"  # would give every pinned process several devices
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"  # a pinned process has one core
WIDE_VECTORS = "--xla_cpu_prefer_vector_width=512"  # with XLA's default of 256 an exponential takes a quarter longer
END_S = 10.0  # for a process to end after its pipe was closed


# The table of requests that a worker answers.
Session = Literal["measure", "compile", "profile", "hosts", "probe"]


@dataclass(frozen=True)
class WorkerConfig:
    """The configuration of a worker: process `process` of `processes`, which `jax.distributed` joins at `coordinator`
    (address:port); pinned to a core, or free; with at most `memory_bytes` allocated, or without a limit."""

    session: Session
    processes: int
    process: int
    coordinator: str
    core: int | None = None
    memory_bytes: int | None = None


class Worker(Protocol):
    """A process that drives devices, here or on another host."""

    buffer: bytearray  # of an incomplete answer

    def fileno(self) -> int:
        """The file descriptor of its answers; end of file means that the worker is gone."""
        ...

    def send(self, message: bytes) -> None:
        """Send a message. Raises OSError where the worker is gone."""
        ...

    def end(self) -> str:
        """How it ended, in words."""
        ...

    def stop(self) -> None:
        """End it now."""
        ...


def safe_path_environment() -> dict[str, str]:
    """This process's environment for a Python that imports nothing from the current folder, whatever lies there:
    without the entries of PYTHONPATH that mean it, and without the secret of hosts."""
    environment = {name: value for name, value in os.environ.items() if name not in (TOKEN, TOKEN_FILE)}
    folders = [entry for entry in environment.pop("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(entry)]
    return environment | {"PYTHONSAFEPATH": "1"} | ({"PYTHONPATH": os.pathsep.join(folders)} if folders else {})


def worker_environment(variables: Mapping[str, str], pinned: bool) -> dict[str, str]:
    """The environment of a worker: this process's own, `variables`, and flags that keep a pinned worker on its core."""
    environment = safe_path_environment()
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    environment |= variables
    if pinned:
        environment["JAX_PLATFORMS"] = "cpu"
        own = (flag for flag in os.environ.get("XLA_FLAGS", "").split() if VIRTUAL_DEVICES not in flag)
        environment["XLA_FLAGS"] = " ".join([WIDE_VECTORS, *own, ONE_THREAD])  # the last setting of a flag counts
    return environment


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


@dataclass
class Process:
    """A worker on this host."""

    process: "subprocess.Popen[bytes]"
    log: StderrTail
    buffer: bytearray

    @classmethod
    def start(
        cls, config: WorkerConfig, variables: Mapping[str, str] | None = None, channel: int | None = None
    ) -> "Process":
        """Start `python -P -m stripectl.cli.worker`; `channel` is a file descriptor in place of pipes."""
        ends = subprocess.PIPE if channel is None else channel
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "stripectl.cli.worker", json.dumps(asdict(config))],
            stdin=ends,
            stdout=ends,
            stderr=subprocess.PIPE,
            env=worker_environment(variables or {}, config.core is not None),
            start_new_session=True,  # Ctrl-C goes to the parent, which decides what is kept
        )
        assert process.stderr
        return cls(process, StderrTail(process.stderr), bytearray())

    def fileno(self) -> int:
        assert self.process.stdout
        return self.process.stdout.fileno()

    def send(self, message: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(message)
        self.process.stdin.flush()

    def end(self) -> str:
        try:
            code = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "closed its pipe but did not exit"
        if code == -signal.SIGKILL:
            return "was killed by SIGKILL: by Linux because memory ran out, or by a user"
        ended = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
        return ended + (f": {words}" if (words := self.log.last_line()) else "")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
