"""The environment of a worker."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stripectl.compile.toolchain import TOOLCHAINS
from stripectl.workers.process import worker_environment


def flags(monkeypatch: pytest.MonkeyPatch, own: str) -> dict[str, str]:
    monkeypatch.setenv("XLA_FLAGS", own)
    found = worker_environment({}, pinned=True)["XLA_FLAGS"].split()
    return dict(each.split("=") for each in found)


def test_a_pinned_worker_has_one_thread_and_one_device_whatever_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    own = "--xla_force_host_platform_device_count=8 --xla_cpu_multi_thread_eigen=true"
    assert flags(monkeypatch, own) == {
        "--xla_cpu_prefer_vector_width": "512",
        "--xla_cpu_multi_thread_eigen": "false",
    }


def test_the_users_own_vector_width_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flags(monkeypatch, "--xla_cpu_prefer_vector_width=256")["--xla_cpu_prefer_vector_width"] == "256"


def test_a_worker_that_is_not_pinned_has_the_users_flags_and_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=here")
    found = worker_environment({"LIBTPU_INIT_ARGS": "--a=b"}, pinned=False)
    assert (found["XLA_FLAGS"], found["LIBTPU_INIT_ARGS"]) == ("--xla_dump_to=here", "--a=b")


@pytest.mark.parametrize("variable", ["XLA_FLAGS", "LIBTPU_INIT_ARGS"])
def test_a_flag_that_xla_does_not_know_ends_a_command_with_one_line(tmp_path: Path, variable: str) -> None:
    if variable == "LIBTPU_INIT_ARGS" and TOOLCHAINS["tpu"].missing:
        pytest.skip("libtpu is not installed")
    target = [] if variable == "XLA_FLAGS" else ["--target", "v5e:2x2", "--method", "compiled"]
    command = [sys.executable, "-m", "stripectl", "bench", "--seqlen", "1k", "--heads", "1", *target, "--quiet"]
    given = {**os.environ, variable: "--xla_no_such_flag=1"}
    done = subprocess.run([*command, "--output", str(tmp_path / "run")], capture_output=True, text=True, env=given)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert re.fullmatch(rf"error: XLA \(.*\) does not know --xla_no_such_flag.* variable {variable}, .*\n", done.stderr)


def test_a_flag_that_xla_does_not_know_ends_the_tests_with_one_line() -> None:
    command = [sys.executable, "-m", "pytest", "-q", str(Path(__file__).parents[1] / "util" / "test_units.py")]
    given = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    given["XLA_FLAGS"] = "--xla_no_such_flag=1"
    done = subprocess.run(command, capture_output=True, text=True, env=given)
    assert done.returncode == 2 and "1 passed" not in done.stdout
    assert re.fullmatch(r"Exit: XLA \(.*\) does not know --xla_no_such_flag=1\. .*\n", done.stderr)
