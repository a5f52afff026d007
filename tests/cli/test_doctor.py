"""`stripectl doctor`: it says what works because it tries it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from click.testing import CliRunner

from stripectl.cli.doctor import ComponentFinding, combination, command, compiler, failure_of, jax_findings
from stripectl.compat import PROBES, TESTED
from stripectl.compile.toolchain import TOOLCHAINS, cuda_root
from stripectl.core.kernel import kernels
from stripectl.results.environment import version

TPU, GPU = TOOLCHAINS["tpu"], TOOLCHAINS["gpu"]


def needs(kind: str) -> pytest.MarkDecorator:
    missing = TOOLCHAINS[kind].missing
    return pytest.mark.skipif(missing is not None, reason=str(missing))


def test_all_that_the_tests_need_works_here() -> None:
    done = subprocess.run([sys.executable, "-m", "stripectl", "doctor", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {each["name"]: each for each in json.loads(done.stdout)["components"]}
    assert found["jax"]["found"].startswith(f"{version('jax')}, ")
    assert found["devices"]["found"] == f"{jax.device_count()} {jax.devices()[0].device_kind}"
    private = {name: each for name, each in found.items() if "(private)" in name}
    assert len(private) == len(PROBES) == 6
    for name, each in private.items():
        kind, part = name.split()[:2]
        missing = kernels[part].why_missing() if kind == "kernel" else None
        assert each == {
            "name": name,
            "found": None if missing else "as expected",
            "mend": str(missing) if missing else None,
        }


def test_a_long_name_stays_apart_from_what_was_found(monkeypatch) -> None:
    found = [ComponentFinding("jax", "0.12.0", None), ComponentFinding("x" * 40, "as expected", None)]
    monkeypatch.setattr("stripectl.cli.doctor.component_findings", lambda say: found)
    said = CliRunner().invoke(command, [], standalone_mode=False).output
    assert "x" * 40 + "  as expected" in said and "jax" + " " * 39 + "0.12.0" in said


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=needs(kind)) for kind in TOOLCHAINS])
def test_a_compiler_is_tried(without_toolkit, kind: str) -> None:
    found = compiler(TOOLCHAINS[kind])
    assert found.mend is None and found.found and "compiles for" in found.found


@needs("gpu")
def test_the_gpu_compiler_is_given_the_wheels(without_toolkit) -> None:
    assert Path(GPU.environment["CUDA_ROOT"]).parts[-2:] == ("nvidia", "cu13")


@needs("gpu")
def test_a_folder_of_the_users_goes_first(tmp_path: Path, monkeypatch) -> None:
    for file in GPU.files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.setenv("CUDA_ROOT", str(tmp_path))
    assert cuda_root(GPU.files) == tmp_path


@needs("gpu")
def test_a_compiler_that_does_not_compile_says_why_and_what_to_run(tmp_path: Path, monkeypatch) -> None:
    """It finds its files, and they are empty."""
    test_a_folder_of_the_users_goes_first(tmp_path, monkeypatch)
    said = failure_of(GPU)
    assert said and said.startswith("it does not compile one line for h100:1: ") and "Run: pip install 'jax[" in said


def test_files_that_no_folder_has_are_named_with_their_wheels() -> None:
    lacking = replace(GPU, packages=(), files=("bin/no_such_program",)).missing
    assert lacking and lacking.startswith(
        "CUDA's no_such_program are not installed. Run: pip install 'nvidia-cuda-nvcc"
    )


def test_a_jax_that_cannot_be_used_is_said(monkeypatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")
    (found,) = jax_findings()
    assert found.mend and "JAX cannot be used: XLA (jaxlib" in found.mend


def test_an_old_jax_is_said_with_the_command_that_mends_it(monkeypatch) -> None:
    monkeypatch.setattr("stripectl.cli.doctor.version", lambda package: "0.4.38")
    (found,) = jax_findings()
    assert found.found == "0.4.38" and found.mend == "pip install 'jax<0.13,>=0.10.2'"


def test_a_combination_that_was_not_tested_is_said(monkeypatch) -> None:
    python, jax, libtpu = TESTED[0]
    monkeypatch.setattr("stripectl.cli.doctor.platform.python_version", lambda: f"{python}.9")
    monkeypatch.setattr("stripectl.cli.doctor.version", lambda package: libtpu)
    assert combination(jax) == f"tested with this Python and libtpu {libtpu}"
    monkeypatch.setattr("stripectl.cli.doctor.version", lambda package: "0.0.51")
    said = combination(jax)
    assert said.startswith(f"not tested with Python {python} and libtpu 0.0.51 (tested: {jax} with Python {python}")
