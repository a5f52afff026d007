"""A disk that fills up, turns read-only or loses the run's folder while plans are measured.

The disk is a small tmpfs in a mount namespace of the command's own, where the test's steps come between its plans.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from stripectl.results.run import Run

DRIVER = """
import json, os, shutil, subprocess, sys, tempfile
from pathlib import Path
tempfile.tempdir = os.environ["TMPDIR"]  # and no other, where that cannot be written
sys.path.insert(0, sys.argv[1])
steps, arguments = json.loads(sys.argv[2]), sys.argv[3:]
disk, ballast, folder = Path("disk"), Path("disk/ballast"), Path("disk/run")
disk.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", "disk"], check=True)

from tests.support.journals import nth_ring
import stripectl.runner.bench
from stripectl.cli import main
from stripectl.results.backend import Final


def fill(but: int = 0) -> None:
    with ballast.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            os.truncate(ballast, file.tell() - but)


def turn_read_only() -> None:
    # in its place, since Linux does not take from an open file
    subprocess.run(["mount", "--bind", "disk", "disk"], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", "disk"], check=True)


DOES = {
    "fill": fill,
    "fill but for a little": lambda: fill(24 * 1024),
    "free": ballast.unlink,
    "read-only": turn_read_only,
    "writable": lambda: subprocess.run(["umount", "disk"], check=True),
    "vanish": lambda: shutil.rmtree(folder),
}


def bench(request, say, cluster=None, tell=None):
    for at, step in enumerate(steps):
        if step in DOES:
            DOES[step]()
        else:
            print("measured", at, file=sys.stderr)
            yield Final(nth_ring(at, 1.0))


stripectl.runner.bench.bench = bench
import math
import stripectl.results.writer
# however long this machine takes to write
slow_s = 0.0 if arguments.pop(0) == "slow" else math.inf
stripectl.results.writer.SLOW_S, stripectl.results.writer.SHARE = slow_s, 1e-9
while steps and steps[0] == "at first":
    DOES[steps.pop(1)]()
    steps.pop(0)
try:
    main(["bench", "--target", "cpu:2", "--method", "measured", "--seqlen", "4k", "--output", "disk/run", *arguments])
finally:
    if folder.exists():
        shutil.copytree(folder, "after")
"""


def namespaces() -> bool:
    mounts = ["unshare", "-Urm", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    return bool(shutil.which("unshare")) and subprocess.run(mounts, capture_output=True).returncode == 0


pytestmark = [pytest.mark.faults, pytest.mark.skipif(not namespaces(), reason="mount namespaces cannot be made here")]


@dataclass
class Ended:
    """How a command ended, what it said, and the run that its disk holds."""

    code: int
    shown: str
    said: list[str]
    files: list[str]
    plans: list[str]


@pytest.fixture
def bench(tmp_path: Path):
    (tmp_path / "tmp").mkdir()

    def ended(steps: list[str], *arguments: str, slow: bool = False, temporary: str = "tmp") -> Ended:
        around = os.environ | {"TMPDIR": str(tmp_path / temporary)}
        command = [sys.executable, "-c", DRIVER, str(Path(__file__).parents[2]), json.dumps(steps)]
        done = subprocess.run(
            ["unshare", "-Urm", *command, "slow" if slow else "quick", *arguments],
            cwd=tmp_path,
            env=around,
            capture_output=True,
            text=True,
        )
        assert "Traceback" not in done.stderr, done.stderr
        after = tmp_path / "after"
        files = sorted(path.name for path in after.iterdir()) if after.exists() else []
        plans = numbers(Run.load(after)) if "run.json" in files else []
        return Ended(done.returncode, done.stdout, done.stderr.splitlines(), files, plans)

    return ended


def numbers(run: Run) -> list[str]:
    """Of the steps that measured."""
    return [str(m.plan.unroll - 1) for m in run.measurements]


def measured(said: list[str]) -> list[str]:
    return [line.split()[1] for line in said if line.startswith("measured")]


SEVERAL = ["measure"] * 8  # more than a page of lines
FAULTS = {
    "fill": "No space left on device",
    "read-only": "Read-only file system",
}


@pytest.mark.parametrize("slow", [False, True], ids=["written whole", "appended to"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_disk_that_fails_costs_nothing_that_was_measured(bench, tmp_path: Path, fault: str, slow: bool) -> None:
    ended = bench(["measure", "measure", fault, *SEVERAL], slow=slow)
    every = ["0", "1", *(str(3 + at) for at in range(len(SEVERAL)))]
    assert ended.code == 2
    assert measured(ended.said) == every
    assert ended.plans[:2] == ["0", "1"] and "report.html" not in ended.files
    assert not [name for name in ended.files if name.startswith(".run.json")]
    warnings, errors = ([line for line in ended.said if line.startswith(word)] for word in ("warning: ", "error: "))
    assert len(warnings) == len(errors) == 1
    assert "cannot write disk/run/run.json" in warnings[0] and FAULTS[fault] in warnings[0]
    assert "cannot write disk/run/run.json: " in errors[0] and FAULTS[fault] in errors[0]
    assert "The run continues" in warnings[0]
    (rescued,) = (tmp_path / "tmp").glob("stripectl-run-*")
    assert f"The run is in {rescued} instead. To continue it, use --resume --output {rescued}" in errors[0]
    assert numbers(Run.load(rescued)) == every and (rescued / "report.html").exists()
    assert all(f"unroll={int(at) + 1} " in ended.shown for at in every[1:]) and str(rescued) in ended.shown


@pytest.mark.parametrize("slow", [False, True], ids=["written whole", "appended to"])
@pytest.mark.parametrize(("fault", "mended"), [("fill", "free"), ("read-only", "writable")])
def test_what_could_not_be_written_is_written_later(bench, tmp_path: Path, fault: str, mended: str, slow: bool) -> None:
    ended = bench(["measure", fault, *SEVERAL, mended, "measure"], slow=slow)
    assert ended.code == 0
    assert ended.plans == measured(ended.said) and len(ended.plans) == len(SEVERAL) + 2
    assert ended.files == ["report.html", "run.json"]
    assert sum(FAULTS[fault] in line for line in ended.said) == 1
    assert slow or any("disk/run can be written again" in line for line in ended.said)
    assert not list((tmp_path / "tmp").glob("stripectl-run-*"))


@pytest.mark.parametrize("rest", [["measure"], []], ids=["and more is measured", "in the end"])
def test_a_folder_that_vanishes_is_made_again(bench, rest: list[str]) -> None:
    ended = bench(["measure", "vanish", *rest])
    assert ended.code == 0 and ended.plans == measured(ended.said)
    assert ended.files == ["report.html", "run.json"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_disk_that_holds_nothing_is_said_before_anything_runs(bench, fault: str) -> None:
    ended = bench(["at first", fault, "measure"])
    assert (ended.code, ended.shown, ended.files) == (2, "", [])
    (line,) = ended.said
    assert line.startswith("error: cannot write in disk/run: ") and FAULTS[fault] in line and "Try --output" in line


def test_where_nothing_can_be_written_all_is_shown(bench) -> None:
    ended = bench(["measure", "fill", "measure"], temporary="disk")
    assert ended.code == 2 and ended.plans == ["0"]
    assert "tile=128x128 " in ended.shown and "unroll=3" in ended.shown
    assert "Results since the last successful save are not on disk." in ended.said[-1]


def test_json_is_whole_without_a_disk(bench) -> None:
    ended = bench(["measure", "read-only", "measure"], "--json", "--quiet")
    assert ended.code == 2
    assert len(json.loads(ended.shown)["measurements"]) == 2


def test_a_report_that_does_not_fit_leaves_the_run(bench) -> None:
    ended = bench(["measure", "measure", "fill but for a little"])
    assert (ended.code, ended.plans, ended.files) == (2, ["0", "1"], ["run.json"])
    assert "cannot write disk/run/report.html: No space left on device" in ended.said[-1]
    assert "report  not written" in ended.shown and "run     disk/run/run.json" in ended.shown
