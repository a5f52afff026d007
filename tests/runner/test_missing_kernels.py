"""Kernels whose library is not installed: simulated for a machine that is not here, and refused by methods that run
them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stripectl.cli.list import listed_rows
from stripectl.compile.compiler import CompilerPool
from stripectl.core.capabilities import capabilities
from stripectl.core.kernel import kernels
from stripectl.core.method import MethodChoice
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.reason import Reason, ReasonKind
from stripectl.core.scheme import schemes
from stripectl.core.workload import Workload
from stripectl.costs.sources.table import machine_table
from stripectl.errors import Missing
from stripectl.hardware.target import parse_target
from stripectl.measure.local_target import LocalTarget
from stripectl.results.backend import finals
from stripectl.runner.backends import Compiled
from stripectl.runner.bench import make_cases
from stripectl.runner.cases import bench_cases, case_of, make_case
from stripectl.runner.max_length import max_length_cases
from stripectl.runner.options import RequestOptions
from stripectl.runner.request import Request
from stripectl.runner.tuning.candidates import TileSearch, forward_cases
from stripectl.util.progress import quiet
from tests.support.command import run
from tests.support.fake_backend import FakeBackend

KERNELS = {"tokamax": ("v5p:2x2x4", 16), "tokamax_gpu": ("h200:8", 8)}  # each with a target, and its devices
WHY = Reason(
    ReasonKind.NOT_INSTALLED,
    "tokamax is not installed here, as this test claims",
    "Try pip install 'stripectl[tokamax]'.",
)
REASON = str(WHY)
WORK = Workload(seq_len=2**17, heads=32, kv_heads=8, head_dim=128)
RUNNING: list[MethodChoice] = ["measured", "compiled"]


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def missing(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_missing(kernel, WHY, monkeypatch)


def set_missing(kernel: str, reason: Reason | None, monkeypatch: pytest.MonkeyPatch) -> None:
    why = (reason.fact, reason.advice) if reason else None
    monkeypatch.setattr(f"stripectl.kernels.{kernel}.why_no_tokamax", lambda other: why)


def plan_of(kernel: str) -> Plan:
    return parse_plan(f"ring/zigzag/{kernel}@ring={KERNELS[kernel][1]}")


def place_of(kernel: str, here: int = 0) -> LocalTarget:
    return LocalTarget(parse_target(KERNELS[kernel][0]), here)


def test_each_kernel_of_a_library_is_among_these() -> None:
    assert {name for name in kernels.names() if name.startswith("tokamax")} == KERNELS.keys()


def test_a_simulation_is_the_same_without_the_library(
    kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "--plan",
        str(plan_of(kernel)),
        "--target",
        KERNELS[kernel][0],
        "--method",
        "simulated",
        "--seqlen",
        "128k",
    ]
    found = []
    for name, reason in (("with", None), ("without", WHY)):
        set_missing(kernel, reason, monkeypatch)
        assert run("bench", *words, "--method", "simulated", "--output", str(tmp_path / name)) == 0
        content = json.loads((tmp_path / name / "run.json").read_text())
        found.append([(m["plan"], m["status"], m["method"], m["median_s"]) for m in content["measurements"]])
    assert found[0] == found[1] and machine_table(place_of(kernel).target.hardware, kernels[kernel])
    assert all(m[1:3] == ("ok", "simulated") and m[3] for m in found[1])


@pytest.mark.parametrize("method", RUNNING)
def test_methods_that_run_kernels_name_the_package(missing: None, kernel: str, method: MethodChoice) -> None:
    """A plan alone has the exit code of missing components; in a grid it is refused."""
    request = Request(workloads=[WORK], plans=[plan_of(kernel)], method=method)
    with pytest.raises(Missing, match="pip install 'stripectl") as error:
        make_cases(request, place_of(kernel), quiet)
    assert str(error.value).endswith(REASON)
    other = {"tokamax": "pallas_tpu", "tokamax_gpu": "cudnn"}[kernel]
    both = [plan_of(kernel), replace(plan_of(kernel), kernel=other)]
    cases = bench_cases(replace(request, plans=both), place_of(kernel))
    assert [(case.status, case.reason) for case in cases] == [("refused", WHY), ("ready", None)]


def test_the_command_ends_with_the_exit_code_of_missing_components(
    missing: None, kernel: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--target", KERNELS[kernel][0], "--method", "measured", "--output", str(tmp_path / "run"), "--quiet"]
    assert run("bench", "--plan", str(plan_of(kernel)), *where) == 3
    assert capsys.readouterr().err.count(REASON) == 1


@pytest.mark.parametrize("here", [0, 8])
def test_a_simulation_where_devices_are_here_needs_the_library(missing: None, kernel: str, here: int) -> None:
    """It times tiles on them."""
    assert make_case(WORK, plan_of(kernel), {}, place_of(kernel, here), "simulated").is_ready == (here == 0)


def test_auto_simulates_in_the_place_of_a_compiler(missing: None, kernel: str) -> None:
    place = place_of(kernel)
    cases = bench_cases(Request(workloads=[WORK], plans=[plan_of(kernel)]), place)
    with CompilerPool(quiet) as compilers:
        (found,) = finals(Compiled(place.target, compilers, FakeBackend("simulated")).run(cases))
        assert not compilers.sets
    assert (found.status, found.method) == ("ok", "simulated")


@pytest.mark.parametrize(("method", "ready"), [("auto", True), ("simulated", True), ("compiled", False)])
def test_searches_ask_as_well(missing: None, kernel: str, method: MethodChoice, ready: bool) -> None:
    place = place_of(kernel)
    request = Request(workloads=[WORK], plans=[plan_of(kernel)], method=method)
    assert [case.is_ready for case in max_length_cases(request, place)] == [ready]
    options = RequestOptions(plan=str(plan_of(kernel)), target=KERNELS[kernel][0], seqlen="128k", method=method)
    asked = case_of(WORK, plan_of(kernel), {}, place, request.case_method)
    tiles = forward_cases(TileSearch.of(options, "race"), asked, place)
    assert any(case.is_ready for case in tiles) == ready
    assert ready or [case.reason for case in tiles] == [WHY]


def test_lists_say_that_it_is_missing_and_its_capabilities(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for reason in (None, WHY):
        set_missing(kernel, reason, monkeypatch)
        found.append(capabilities(schemes["ring"]))
        assert (("", REASON) in listed_rows("kernels")) == (reason is not None)
    assert found[0] == found[1] and kernel in found[1]["kernels"]
