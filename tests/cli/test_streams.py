"""stdout that is closed, full, or left by its reader: one line at most, the right exit code, and all files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import BENCH

CLOSED = "error: cannot write to stdout because it is closed. Try another place for it."
FULL = "error: cannot write to stdout because No space left on device. Try another place for it."
ENDS = {  # (redirections, exit code, lines on stderr)
    "| true": (141, []),
    ">&-": (2, [CLOSED]),
    ">/dev/full": (2, [FULL]),
    ">/dev/full 2>/dev/full": (2, []),
    ">&- 2>&- <&-": (2, []),
    "2>&-": (0, []),
}


def ended(words: str, to: str, folder: Path) -> tuple[int, list[str]]:
    script = f"{sys.executable} -P -m stripectl {words} {to}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr.splitlines()


@pytest.mark.faults
@pytest.mark.parametrize("json", ["", " --json"])
@pytest.mark.parametrize("to", ENDS)
def test_run_report_and_history_are_written_all_the_same(to: str, json: str, tmp_path: Path) -> None:
    code, said = ended(f"{BENCH}{json} --output run --history kept", to, tmp_path)
    assert (code, [line for line in said if line.startswith(("error", "Traceback"))]) == ENDS[to]
    assert sorted(os.listdir(tmp_path / "run")) == ["report.html", "run.json"]
    assert os.listdir(tmp_path / "kept") == ["history.sqlite"]


@pytest.mark.parametrize("to", ["| true", ">&-", ">/dev/full"])
def test_a_command_without_files_ends_so_too(to: str, tmp_path: Path) -> None:
    assert ended("--help", to, tmp_path) == ENDS[to]


@pytest.mark.faults
@pytest.mark.parametrize(
    "words", ["list", "accuracy --json", "doctor --json", "report RUN --format md", "compare RUN RUN"]
)
def test_so_does_every_other(words: str, tmp_path: Path) -> None:
    run = str(Path(__file__).parents[2] / "examples/runs/tpu.json.gz")
    for to in (">/dev/full", ">&-"):
        assert ended(words.replace("RUN", run), to, tmp_path) == ENDS[to]
