"""Machines that no compiler can be told about are simulated, and compiled never."""

from pathlib import Path

import pytest

import stripectl
from stripectl.cli.doctor import compiler
from stripectl.compile.toolchain import TOOLCHAINS, topology_arguments, why_not_described
from stripectl.errors import BadInput
from stripectl.hardware.profile import Hardware, hardware_names
from stripectl.hardware.target import parse_target

NO_SECTION = """
kind: gpu
devices_per_host: 8
figures:
  matmul_flops_per_s_bfloat16: {value: 1.0e+15, source: assumed}
  hbm_bytes: {value: 1.0e+11, source: assumed}
  hbm_bytes_per_s: {value: 5.0e+12, source: assumed}
  link_bytes_per_s_one_way: {value: 4.0e+11, source: assumed}
"""


def test_compilers_know_all_machines_that_ship_but_two() -> None:
    found = {each for each in map(Hardware.load, hardware_names()) if why_not_described(each)}
    assert {each.name for each in found} == {"tpu8t", "tpu8i"}


@pytest.mark.parametrize("target", ["tpu8t:2x2x2", "tpu8i:2x2", "own:8"])
def test_they_are_simulated_unless_compiling_is_asked_for(target: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(NO_SECTION)
    hardware = Hardware.load(str(tmp_path / "own.yaml")) if target.startswith("own") else None
    why = why_not_described(parse_target(target, hardware).hardware)
    assert why
    given = {"hardware": hardware and str(tmp_path / "own.yaml"), "seqlen": "32k", "progress": False}
    made = stripectl.bench(target=target, scheme="ring", layout="zigzag", **given).measurements
    assert made and {(m.method, m.status) for m in made} == {("simulated", "ok")}
    assert all(m.cost_source and m.cost_source.not_compiled == why for m in made)
    with pytest.raises(BadInput, match=f"cannot compile for {target} because {why}. Try method='simulated'"):
        stripectl.bench(target=target, method="compiled", **given)
    with pytest.raises(BadInput, match=why):
        topology_arguments(parse_target(target, hardware))


def test_the_doctor_does_not_count_them() -> None:
    said = str(compiler(TOOLCHAINS["tpu"]))
    assert "tpu7x" in said and "tpu8" not in said
