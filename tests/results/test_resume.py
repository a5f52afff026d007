"""A run can be resumed from its beginning on, and only for what it was made for."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stripectl.cli.command_options import OutputOptions
from stripectl.cli.tune_tiles import parse_tuning
from stripectl.core.workload import Workload
from stripectl.results.run import Run
from stripectl.runner.options import RequestOptions
from stripectl.runner.request import Request
from tests.support.command import run

BENCH = ["bench", "--target", "v5e:8", "--method", "simulated", "--quiet", "--layout", "striped", "--pass", "forward"]
KILLED = """
import os, signal, sys
import stripectl.runner.bench
from stripectl.cli import main

def bench(*_):
    os.kill(os.getpid(), signal.SIGKILL)
    yield

stripectl.runner.bench.bench = bench
main(sys.argv[1:])
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def measured(folder: Path) -> list[tuple[int, str]]:
    return [(m.workload.seq_len, str(m.target)) for m in Run.load(folder).measurements]


def killed(*words: str) -> None:
    """Run a command that is killed before its first measurement."""
    done = subprocess.run([sys.executable, "-c", KILLED, *words], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def test_a_run_killed_before_its_first_measurement_is_the_one_that_is_resumed() -> None:
    assert run(*BENCH, "--seqlen", "8k", "--output", "stripectl-runs/older") == 0
    killed(*BENCH, "--seqlen", "16k")
    (begun,) = (each for each in Path("stripectl-runs").iterdir() if each.name != "older")
    assert Run.load(begun).measurements == []
    assert run(*BENCH, "--seqlen", "16k", "--resume") == 0
    assert measured(begun) == [(16384, "v5e:2x4"), (16384, "v5e:1")]
    assert measured(Path("stripectl-runs/older")) == [(8192, "v5e:2x4"), (8192, "v5e:1")]


def test_so_is_a_killed_run_in_a_named_folder() -> None:
    killed(*BENCH, "--seqlen", "8k", "--output", "run")
    assert run(*BENCH, "--seqlen", "8k", "--output", "run", "--resume") == 0
    assert measured(Path("run")) == [(8192, "v5e:2x4"), (8192, "v5e:1")]


@pytest.mark.parametrize(
    ("changed", "what"),
    [(["--target", "v5p:8"], "target"), (["--seqlen", "8k,16k"], "workload"), (["--heads", "8"], "workload")],
)
def test_another_target_or_workload_is_refused(changed: list[str], what: str, capsys) -> None:
    made = [*BENCH, "--seqlen", "8k", "--output", "run"]
    assert run(*made) == 0
    before = Path("run/run.json").read_bytes()
    capsys.readouterr()
    assert run(*made, *changed, "--resume") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"made for another {what}, by: " in line and "Try this command with --resume" in line
    assert Path("run/run.json").read_bytes() == before


def test_a_part_of_the_run_is_resumed() -> None:
    made = [*BENCH, "--output", "run"]
    assert run(*made, "--seqlen", "8k,16k") == 0
    assert run(*made, "--seqlen", "16k", "--layout", "zigzag", "--resume") == 0
    assert [seq_len for seq_len, _ in measured(Path("run"))] == [8192, 8192, 16384, 16384, 16384]


def test_a_run_that_cannot_begin_leaves_nothing() -> None:
    assert run(*BENCH, "--seqlen", "1001", "--output", "run") == 2
    assert run("bench", "--method", "measured", "--target", "v5e:8", "--quiet", "--output", "run") == 3
    assert not os.path.lexists("run")


def test_what_is_left_to_the_target_is_not_asked_for() -> None:
    work = Workload(seq_len=4096, heads=2, kv_heads=2, head_dim=16, documents=(1024, 3072))
    asked = Request(workloads=[work], plans=[], default_dtype=True)
    again = replace(asked, workloads=[replace(work, dtype="float32")])
    assert asked.asked == again.asked == json.loads(json.dumps(asked.asked))
    assert "dtype" not in json.dumps(asked.asked)
    small = replace(asked, default_size=True)
    assert small.asked == replace(small, workloads=[replace(work, seq_len=8192, heads=8, model="1b")]).asked
    assert asked.with_asked([each["workload"] for each in asked.asked]) == asked


def test_a_search_of_tiles_is_resumed_with_its_own_workload() -> None:
    assert run("tune-tiles", *BENCH[1:], "--seqlen", "8k", "--tile", "512", "--output", "run", "--no-cache") == 0
    assert run(*BENCH, "--seqlen", "16k") == 0  # of which a new search would take the workload
    lengths = {
        resume: [each.seq_len for each in tuning.request.workloads]
        for resume in (True, False)
        for tuning in [parse_tuning(RequestOptions(), "race", OutputOptions(output=Path("run"), resume=resume))]
    }
    assert lengths == {True: [8192], False: [16384]}


@pytest.mark.parametrize("asked", ["x", [1], [{"target": "v5e:8"}], {"target": "v5e:8"}])
def test_what_no_run_was_asked_for_is_one_line(asked: object, capsys) -> None:
    assert run(*BENCH, "--seqlen", "8k", "--output", "run") == 0
    content = json.loads(Path("run/run.json").read_text())
    Path("run/run.json").write_text(json.dumps({**content, "asked": asked}))
    capsys.readouterr()
    assert run("report", "run") == 2
    assert "what was asked is not a list of targets and workloads" in capsys.readouterr().err
