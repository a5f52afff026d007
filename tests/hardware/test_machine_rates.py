"""Rates that are measured on a machine's devices, and the profile that holds them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stripectl.errors import Missing
from stripectl.hardware.profile import Hardware
from stripectl.hardware.target import parse_target
from stripectl.measure.local_target import LocalTarget
from stripectl.measure.local_workers import LocalWorkers
from stripectl.measure.machine_rates import measure_rates, save_profile
from stripectl.measure.machine_timings import MachineTimings
from stripectl.util.progress import quiet
from tests.support.command import run


def test_measured_figures_replace_the_published_figures_of_a_profile(tmp_path: Path) -> None:
    base = Hardware.load("v5e")
    known = save_profile(base, {"link_bytes_per_s_one_way": 1e9}, tmp_path / "mine.yaml")
    assert known.figures == {**base.figures, "link_bytes_per_s_one_way": 1e9}
    assert known.sources["link_bytes_per_s_one_way"].startswith("measured on ")
    assert known.sources["hbm_bytes"] == base.sources["hbm_bytes"]
    assert replace(known, figures=base.figures, sources=base.sources) == base


def test_rates_of_a_machine_that_is_not_here_cannot_be_measured() -> None:
    with LocalWorkers(quiet) as workers, pytest.raises(Missing, match="cannot measure v5e:2x2 because it is not"):
        measure_rates(LocalTarget(parse_target("v5e:2x2")), MachineTimings(workers))


@pytest.mark.hosts
def test_topology_measures_two_processes_and_a_simulation_uses_their_link(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("topology", "--target", "cpu:2", "--measure", "--save", "mine.yaml", "--json", "--quiet") == 0
    assert json.loads(capsys.readouterr().out)["devices"] == 2
    figures = Hardware.load("mine.yaml").figures
    assert {"matmul_flops_per_s_float32", "matmul_flops_per_s_bfloat16", "link_bytes_per_s_one_way"} <= set(figures)
    assert all(value > 0 for value in figures.values())
    assert run("topology", "--target", "cpu:64", "--hardware", "mine.yaml", "--quiet") == 0
    printed = capsys.readouterr().out
    assert "measured on " in printed and "smallest block whose hop hides at n/a" not in printed
