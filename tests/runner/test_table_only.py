"""Kernels that are table only: simulated where they are named, and refused by methods that run kernels."""

import json
from pathlib import Path

import pytest

from stripectl.core.kernel import kernels
from stripectl.core.method import Method
from stripectl.core.plan import parse_plan
from stripectl.core.reason import ReasonKind
from stripectl.core.scheme import schemes
from stripectl.core.workload import Workload
from stripectl.costs.sources.distilled_attention import LIBRARIES
from stripectl.hardware.target import parse_target
from stripectl.measure.local_target import LocalTarget
from stripectl.runner.cases import make_case
from stripectl.runner.plan_options import asked_kernels
from tests.support.command import run

WORK = Workload(seq_len=2**16, heads=32, kv_heads=8, head_dim=128, passes="forward")
PLAN = "ring/zigzag/fa3@ring=8"


def words(method: str, folder: Path) -> list[str]:
    work = ["--plan", PLAN, "--target", "h100:8", "--seqlen", "64k", "--heads", "32", "--head-dim", "128"]
    return [*work, "--pass", "forward", "--method", method, "--output", str(folder), "--quiet"]


@pytest.mark.parametrize("method", ["measured", "compiled"])
def test_methods_that_run_kernels_name_a_kernel_that_runs(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("bench", *words(method, tmp_path / "run")) == 2
    said = capsys.readouterr().err
    assert said.count("fa3 is table only: its time can be simulated, and nothing here runs it") == 1
    assert "Try --method simulated, or --kernel cudnn." in said


@pytest.mark.parametrize("method", ["simulated", "auto"])
def test_others_simulate_it(method: str, tmp_path: Path) -> None:
    assert run("bench", *words(method, tmp_path / "run")) == 0
    content = json.loads((tmp_path / "run" / "run.json").read_text())
    first = content["measurements"][0]
    assert (first["status"], first["method"]) == ("ok", "simulated") and first["median_s"] > 0
    assert first["cost_source"]["forward"]["longest_first"] is True


@pytest.mark.parametrize(("method", "ready"), [("simulated", True), ("measured", False)])
def test_no_tile_of_it_is_timed_where_devices_are_here(method: Method, ready: bool) -> None:
    place = LocalTarget(parse_target("h100:8"), 8)
    case = make_case(WORK, parse_plan(PLAN), {}, place, method)
    assert case.is_ready == ready
    assert ready or (case.reason and case.reason.kind == ReasonKind.UNSUPPORTED)


def test_all_means_the_kernels_that_run() -> None:
    every = asked_kernels("all", schemes["ring"])
    assert "cudnn" in every and not {*every} & LIBRARIES.keys()
    assert asked_kernels("fa3,cudnn", schemes["ring"]) == ["fa3", "cudnn"]


def test_only_gpus_and_bfloat16_have_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    why = kernels["trtllm"].why_unsupported
    assert str(why(WORK, None, "tpu", None)) == "trtllm runs on GPUs. Try --kernel xla."
    plain = Workload(seq_len=2**16, heads=32, kv_heads=8, head_dim=128, passes="forward", dtype="float32")
    assert "no time of trtllm with float32 is known" in str(why(plain, None, "gpu", None))


def test_list_says_table_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "kernels") == 0
    said = capsys.readouterr().out
    assert all(f"{name} is table only" in " ".join(said.split()) for name in LIBRARIES)
