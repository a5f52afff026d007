"""One command on several hosts of this machine: real processes, in network namespaces where the machine allows it."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from stripectl.results.environment import cores
from stripectl.workers.hosts import free_address
from stripectl.workers.secret import TOKEN
from tests.support.network import NAMESPACES, Network, address
from tests.support.processes import children, wait_for

SHAPE = ["--seqlen", "2k", "--heads", "1", "--head-dim", "16", "--tile", "128", "--pass", "forward", "--quiet"]
BENCH = ["bench", "--method", "measured", *SHAPE]
LONG = [*BENCH, "--time-budget", "1h", "--layout", "contiguous", "--seqlen", "1k,64k", "--output", "run"]
SECRET = "a secret of this test, long enough"
PROGRAM = [sys.executable, "-m", "stripectl"]
OTHER_VERSION = "0.0.9"
OTHER_PROGRAM = [
    sys.executable,
    "-c",
    f"import stripectl.results.environment as own; own.VERSION = {OTHER_VERSION!r}\nimport stripectl.__main__",
]


def nobody(there: int, count: int) -> None: ...


def long_run(count: int) -> list[str]:
    """A bench that samples its second plan for an hour, as soon as it has measured the first."""
    return [*LONG, "--target", f"cpu:{count}"]


def ends(processes: Sequence["subprocess.Popen[str]"], limit_s: float = 240) -> list[tuple[int, str, str]]:
    """(exit code, standard output, standard error) of each."""
    said = [process.communicate(timeout=limit_s) for process in processes]
    return [(process.returncode, *each) for process, each in zip(processes, said, strict=True)]


def sampling(processes: Sequence["subprocess.Popen[str]"], folder: Path) -> list[int]:
    """Wait for the first measurement of a long run; the processes of workers by then."""
    path = folder / "run" / "run.json"  # it is there, without measurements, before the first of them
    assert wait_for(lambda: path.exists() and "samples_s" in path.read_text()), [each.poll() for each in processes]
    return [each for process in processes for each in children(process.pid)]


def is_worker(pid: int) -> bool:
    try:
        return b"stripectl.cli.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return False


@dataclass
class Slice:
    """So many hosts on this machine, a core each: with a network, a name, an /etc/hosts and a folder of runs of their
    own where that can be, otherwise just processes."""

    count: int
    folder: Path
    started: list["subprocess.Popen[str]"] = field(default_factory=list)
    network: Network | None = None

    def __enter__(self) -> "Slice":
        self.coordinator = free_address(address(0) if NAMESPACES else "127.0.0.1")
        with ExitStack() as stack:
            stack.callback(self._end)
            if NAMESPACES:
                self.network = stack.enter_context(Network(self.count, self.folder))
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stack.close()

    def _end(self) -> None:
        """End all processes and their children, because a child that is stopped before it runs its own program keeps
        the pipes of its parent open."""
        for process in self.started:
            left = children(process.pid) if process.poll() is None else []
            process.kill()
            for child in left:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            process.communicate()

    def start(
        self, host: int, words: Sequence[str], variables: dict[str, str], program: Sequence[str] = PROGRAM
    ) -> "subprocess.Popen[str]":
        core = cores()[host % len(cores())]
        within = self.network.within(host, self.folder / "run" if host else None) if self.network else []
        self.started.append(
            subprocess.Popen(
                [*within, "taskset", "-c", str(core), *program, *words],
                cwd=self.folder,
                env=os.environ | variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return self.started[-1]

    def run(self, words: Sequence[str]) -> list["subprocess.Popen[str]"]:
        """The same command on all of them."""
        return [self.command(host, words) for host in range(self.count)]

    def command(self, host: int, words: Sequence[str], program: Sequence[str] = PROGRAM) -> "subprocess.Popen[str]":
        """A command on one of them, which joins the others."""
        place = ["--coordinator", self.coordinator, "--num-processes", str(self.count), "--process-id", str(host)]
        return self.start(host, [*words, *place], {TOKEN: SECRET}, program)
