"""SIGKILL to a worker and to the command itself, at random moments, again and again: nothing that was measured is lost,
and `--resume` ends with what a run that nobody disturbs finds."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stripectl.measure.sampler import UNFINISHED
from stripectl.results import journal
from stripectl.results.environment import cores
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from tests.support.processes import alive, children, wait_for

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(len(cores()) < 2, reason="a ring of pinned processes needs two cores"),
]

SEED = 20261122
KILLS = [5, pytest.param(50, marks=pytest.mark.full)]  # of the command, and of workers
TUNINGS = [2, pytest.param(6, marks=pytest.mark.full)]
STRIPECTL = [sys.executable, "-m", "stripectl"]
SHAPE = ["--heads", "1", "--head-dim", "16", "--seqlen", "256,512", "--tile", "64", "--pass", "forward"]
BENCH = [
    "bench",
    "--target",
    "cpu:2",
    "--method",
    "measured",
    "--quiet",
    *SHAPE,
    "--min-samples",
    "3",
    "--time-budget",
    "20m",  # of which a busy machine spends minutes on processes
]
TUNE = ["tune-tiles", "--target", "cpu:2", "--method", "measured", "--quiet", "--no-cache", "--strategy", "exhaustive"]
TUNE += ["--heads", "2", "--head-dim", "16", "--seqlen", "1k", "--tile", "64,128,256", "--layout", "striped,zigzag"]
TUNE += ["--pass", "forward", "--min-samples", "3", "--time-budget", "20m"]


def held(folder: Path) -> dict[tuple, Measurement]:
    """What a run's folder holds, which is always a run."""
    if not (folder / "run.json").exists():
        assert not (folder / journal.FILE).exists()
        return {}
    json.loads((folder / "run.json").read_text())
    return {m.key: m for m in Run.load(folder).measurements}


def started(command: list[str], folder: Path, around: dict[str, str]) -> "subprocess.Popen[bytes]":
    resume = ["--resume"] if (folder / "run.json").exists() else []
    pipe = subprocess.PIPE
    return subprocess.Popen([*command, "--output", str(folder), *resume], stdout=pipe, stderr=pipe, env=around)


def kill_one(pids: list[int], chance: random.Random) -> bool:
    """Whether one of them was there to be killed."""
    try:
        os.kill(chance.choice(pids), signal.SIGKILL)
    except (IndexError, ProcessLookupError):
        return False
    return True


def check_kept(before: dict[tuple, Measurement], after: dict[tuple, Measurement], where: str, grows: bool) -> None:
    """Measurements that were done are as they were; of others, no sample is lost. A search, which `grows`, samples what
    it has timed some more, and may fail in that."""
    for key, m in before.items():
        if m.status != "ok":
            continue
        assert key in after, f"{where}: {key} is lost"
        now = after[key]
        more = grows and (len(now.samples_s) > len(m.samples_s) or now.status == "failed")
        if m.reason != UNFINISHED and not more:
            assert (now.status, now.samples_s, now.median_s) == (m.status, m.samples_s, m.median_s), f"{where}: {key}"
        assert now.samples_s[: len(m.samples_s)] == m.samples_s, f"{where}: samples of {key} are lost"


class Killer:
    """Runs a command again and again, and kills a worker and then the command itself."""

    def __init__(self, command: list[str], tmp_path: Path, seed: int, grows: bool = False) -> None:
        self.command, self.tmp_path, self.chance, self.seed = command, tmp_path, random.Random(seed), seed
        self.grows = grows
        self.around = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
        (tmp_path / "tmp").mkdir()
        self.workers_killed, self.killed, self.folders = 0, 0, 0

    def folder(self) -> Path:
        return self.tmp_path / f"run{self.folders}"

    def once(self, longest_s: float) -> None:
        """One start of the command, and its end."""
        folder, where = self.folder(), f"seed {self.seed}, kill {self.killed}"
        before, process = held(folder), started(self.command, self.folder(), self.around)
        ends_s = time.monotonic() + self.chance.uniform(0.0, longest_s)
        worker_s = self.chance.uniform(0.0, longest_s / 2) + time.monotonic()
        seen, hit = set[int](), False
        while time.monotonic() < ends_s and process.poll() is None:
            seen |= {*(now := children(process.pid))}
            if not hit and now and time.monotonic() > worker_s:
                hit = kill_one(now, self.chance)
            time.sleep(self.chance.uniform(0.0, 0.05))
        last = [*children(process.pid)]
        if not hit and process.poll() is None:
            hit = kill_one(last, self.chance)
        known = held(folder)
        ended = process.poll() is not None
        process.kill()
        _, said = process.communicate()
        assert b"Traceback" not in said, f"{where}: {said.decode()}"
        assert wait_for(lambda: not any(map(alive, {*seen, *last})), 20), f"{where}: a worker is left"
        check_kept(before, known, where, self.grows)
        check_kept(known, held(folder), where, self.grows)
        self.workers_killed, self.killed = self.workers_killed + hit, self.killed + (not ended)
        if ended and all(m.status == "ok" for m in held(folder).values()):
            self.folders += 1  # it is done; the next kills are of another

    def finish(self) -> dict[tuple, Measurement]:
        """What the run holds once nobody kills it."""
        before = held(self.folder())
        done = started(self.command, self.folder(), self.around)
        _, said = done.communicate()
        assert done.returncode == 0, f"seed {self.seed}: {said.decode()}"
        found = held(self.folder())
        check_kept(before, found, f"seed {self.seed}, in the end", self.grows)
        return found


def check_clean(killer: Killer) -> None:
    """No file is left but a run and its report."""
    assert sorted(path.name for path in killer.folder().iterdir()) == ["report.html", "run.json"]
    assert not [path for path in (killer.tmp_path / "tmp").iterdir() if "stripectl" in path.name]


@pytest.fixture
def whole(tmp_path: Path):
    """What a command finds that nobody disturbs."""

    def found(command: list[str]) -> dict[tuple, Measurement]:
        done = subprocess.run([*command, "--output", str(tmp_path / "whole")], capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        return held(tmp_path / "whole")

    return found


@pytest.mark.parametrize("times", KILLS)
def test_killed_again_and_again_a_bench_ends_with_what_it_would_have_found(times: int, tmp_path: Path, whole) -> None:
    killer = Killer([*STRIPECTL, *BENCH], tmp_path, SEED)
    while killer.killed < times or killer.workers_killed < times:
        killer.once(longest_s=5.0)
    found, expected = killer.finish(), whole([*STRIPECTL, *BENCH])
    assert found.keys() == expected.keys() and len(found) == 8
    assert all(m.status == "ok" and len(m.samples_s) >= 3 and m.reason is None for m in found.values())
    check_clean(killer)


@pytest.mark.parametrize("times", TUNINGS)
def test_killed_again_and_again_a_search_of_tiles_knows_what_it_timed(times: int, tmp_path: Path, whole) -> None:
    killer = Killer([*STRIPECTL, *TUNE], tmp_path, SEED + 1, grows=True)
    while killer.killed < times or killer.workers_killed < times:
        killer.once(longest_s=12.0)
    found, expected = killer.finish(), whole([*STRIPECTL, *TUNE])
    assert found.keys() == expected.keys() and len(found) == 6
    assert all(m.status == "ok" and m.samples_s for m in found.values())
    check_clean(killer)
