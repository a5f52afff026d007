"""What a machine with a GPU runs (`make check-gpu`): here, without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.check_gpu.__main__ import PARTS, Part, PartFile, run_part

ROOT = Path(__file__).parents[2]


def here(*folders: Path) -> dict[str, str]:
    """The environment of a check, with folders from which Python imports besides the checkout."""
    return {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *folders)))}


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "benchmarks.check_gpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=here(), cwd=ROOT)


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


def test_a_part_for_which_no_time_is_left_is_skipped_and_the_table_says_so(tmp_path: Path) -> None:
    done = run("--any-device", "--limit", "5", "--output", str(tmp_path))
    assert done.returncode == 1 and done.stderr == ""
    _, *table, last = done.stdout.splitlines()
    assert [line.split()[:2] for line in table] == [[part.name, "skipped"] for part in PARTS]
    for part, line in zip(PARTS, table, strict=True):
        assert f"it needs about {part.needs_s:.0f} s, and 0 s are left" in line
    assert last.startswith(f"written: {tmp_path}") and [path.name for path in tmp_path.iterdir()] == ["device.json"]


def test_a_part_that_takes_too_long_ends_and_leaves_its_reason(tmp_path: Path) -> None:
    file = PartFile(tmp_path / "ring_of_8.json")
    done = run_part(Part("ring_of_8", 0, 0.5), file, here(), 0.5)
    assert (done["status"], done["reason"], done["found"]) == ("failed", "it took longer than 0.5 s", [])
    assert file.read() == done


@pytest.mark.parametrize(
    ("ending", "reason"),
    [("raise RuntimeError('half')", "RuntimeError: half"), ("os.kill(os.getpid(), 9)", "it ended with -9")],
)
def test_a_part_that_ends_early_keeps_what_it_has_found(tmp_path: Path, ending: str, reason: str) -> None:
    part = tmp_path / "benchmarks" / "check_gpu" / "half.py"
    part.parent.mkdir(parents=True)
    part.write_text(f"import os\n\n\ndef found(*_):\n    yield {{'n': 1}}\n    yield {{'n': 2}}\n    {ending}\n")
    done = run_part(Part("half", 0, 60), PartFile(tmp_path / "half.json"), here(tmp_path), 60)
    assert (done["status"], done["reason"], done["found"]) == ("failed", reason, [{"n": 1}, {"n": 2}])
    assert json.loads((tmp_path / "half.json").read_text()) == done


@pytest.mark.exactness
@pytest.mark.parametrize(
    ("part", "rows"),
    [
        ("exactness", 9),
        ("verified", 12),
        ("recurrences", 20),
        ("block_pairs", 10),
        ("matrices", 18),
        ("tile_costs", 3),
        ("memory", 1),
    ],
)
def test_a_part_runs_on_small_sizes(tmp_path: Path, part: str, rows: int) -> None:
    done = run("--any-device", "--limit", "4800", "--output", str(tmp_path), part)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads((tmp_path / f"{part}.json").read_text())
    assert (content["status"], len(content["found"])) == ("ok", rows)


@pytest.mark.training
@pytest.mark.usefixtures("users_compiler")  # tiles are timed, for the prediction
def test_the_profile_of_a_step_adds_up_and_stands_beside_its_prediction(tmp_path: Path) -> None:
    done = run("--any-device", "--limit", "4800", "--output", str(tmp_path), "step_profile")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "step_profile.json").read_text())["found"]
    step = next(row["step"] for row in rows if "step" in row)
    predicted = next(row["predicted"] for row in rows if "predicted" in row)
    operations = [row for row in rows if "operation" in row]
    assert len({row["operation"] for row in operations}) == len(operations)
    seconds = sum(row["seconds"] for row in operations) + step["wait_s"] + step["gaps_s"]
    assert seconds == pytest.approx(step["seconds"], rel=1e-9)
    found = {(row["part"], row["kind"]) for row in operations}
    parts = ("attention", "projections", "feed_forward", "head")
    assert {(part, "matrices") for part in parts} <= found and {*parts} <= {*predicted["parts"]}
    assert {("projections", "norm"), ("projections", "rotary"), ("embedding", "gather and scatter")} <= found
    assert {part for part, _ in found} <= {*parts, "embedding", "optimizer", "other"}
    assert done.stdout.count("gaps between operations") == 1
