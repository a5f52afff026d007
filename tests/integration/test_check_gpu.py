"""The script that a machine with a GPU runs: here, without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "check_gpu.py"


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    here = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(SCRIPT.parents[1])}
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, env=here)


def test_a_machine_without_a_gpu_gets_one_line_and_exit_code_3() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: cannot check a GPU because none is usable here: JAX ")
    assert "finds only cpu (cpu). Try nvidia-smi" in done.stderr and done.stderr.count("\n") == 1


def test_wheels_that_cannot_be_installed_get_one_line_and_exit_code_3(tmp_path: Path) -> None:
    (tmp_path / "no_wheel-1.0-py3-none-any.whl").write_text("no archive")
    done = run("--wheels", str(tmp_path))
    assert done.returncode == 3 and done.stderr.startswith(f"error: cannot install the wheels of {tmp_path}: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.exactness
@pytest.mark.parametrize(
    ("part", "rows"), [("exactness", 8), ("verified", 7), ("block_pairs", 8), ("tile_costs", 4), ("memory", 1)]
)
def test_a_part_runs_on_small_sizes(tmp_path: Path, part: str, rows: int) -> None:
    done = run("--small", "--part", part, "--output", str(tmp_path / "found.json"))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found) == rows and all(row.get("ok", True) for row in found)
