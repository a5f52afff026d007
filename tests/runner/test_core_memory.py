"""Tiles that do not fit into the memory of a TPU core are refused, with an advice that works."""

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from stripectl.core.kernel import kernels
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.reason import Reason
from stripectl.core.workload import Workload
from stripectl.costs.core_memory import VMEM_FLAG, compiler_limit_bytes, limit_bytes, why_tile_exceeds_core
from stripectl.hardware.profile import Hardware
from stripectl.hardware.target import parse_target
from stripectl.measure.local_target import LocalTarget
from stripectl.runner.cases import make_case
from stripectl.runner.max_length import max_length_cases
from stripectl.runner.request import Request

LONG = Workload(seq_len=2**17, heads=32, kv_heads=8, head_dim=128, passes="forward-backward")
MANY = replace(LONG, heads=128, head_dim=256)  # 16 query heads per key/value head
REFUSED = [  # machine, kernel, tile, workload
    ("v5e", "splash", "4096x4096", LONG),
    ("v5p", "splash", "2048x2048", LONG),
    ("v4", "pallas_tpu", "4096x4096", LONG),
    ("v5p", "pallas_bounded", "4096x4096", MANY),
    ("tpu7x", "tokamax", "2048x2048", replace(LONG, head_dim=256)),
]


def plan_of(kernel: str, tile: str) -> Plan:
    return parse_plan(f"ring/striped/{kernel}@ring=4,tile={tile}")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stripectl.kernels.tokamax.why_no_tokamax", lambda kernel: None)


@pytest.mark.parametrize(("machine", "kernel", "tile", "work"), REFUSED)
def test_each_advice_of_a_refusal_makes_the_plan_fit(machine: str, kernel: str, tile: str, work: Workload) -> None:
    hardware, plan, flags = Hardware.load(machine), plan_of(kernel, tile), dict[str, str]()
    for _ in range(4):  # the backward pass may be refused after the forward pass
        reason = why_tile_exceeds_core(plan, work, hardware, flags)
        if reason is None:
            break
        option = re.search(r"Try (tile|backward)=(\S+?)[ .]", reason.advice)
        assert option and kernel in reason.fact
        plan = replace(plan, **{option[1]: parse_plan(f"ring@tile={option[2]}").tile})
    assert why_tile_exceeds_core(plan, work, hardware, flags) is None
    reason = str(why_tile_exceeds_core(plan_of(kernel, tile), work, hardware, {}))
    for limit in re.findall(rf"{VMEM_FLAG}=(\d+)", reason):
        assert why_tile_exceeds_core(plan_of(kernel, tile), work, hardware, {VMEM_FLAG: limit}) is None
    for other in re.findall(r"--kernel (\w+)", reason):
        assert "forward tile" not in str(why_tile_exceeds_core(plan_of(other, tile), work, hardware, {}))


def test_a_flag_raises_the_limit_of_kernels_that_set_none_up_to_the_memory_of_a_core() -> None:
    tpu7x = Hardware.load("tpu7x")
    raised = {VMEM_FLAG: str(2**17)}
    assert limit_bytes(kernels["splash"], tpu7x, {}) == 32 * 2**20
    assert compiler_limit_bytes(tpu7x, raised) == 128 * 2**20
    assert limit_bytes(kernels["splash"], tpu7x, raised) == 64 * 2**20 == limit_bytes(kernels["pallas_tpu"], tpu7x, {})
    assert limit_bytes(kernels["pallas_tpu"], Hardware.load("v4"), raised) == 16 * 2**20
    assert limit_bytes(kernels["splash"], Hardware.load("h100"), {}) is None


def refusal(flags: Mapping[str, str], target: str = "tpu7x:2x2x1", head_dim: int = 128) -> Reason | None:
    """Why Google's own backward tile is not simulated."""
    work = Workload(seq_len=2**17, heads=64, kv_heads=8, head_dim=head_dim, passes="forward-backward")
    plan = parse_plan("ring/contiguous/tokamax@ring=8,tile=2048x2048")
    return make_case(work, plan, flags, LocalTarget(parse_target(target)), "simulated", describe=False).reason


def test_a_raised_limit_lets_a_larger_tile_be_simulated() -> None:
    reason = str(refusal({}))
    advised = re.search(rf"--xla-flag {VMEM_FLAG}=(\d+)", reason)
    assert advised and "the backward tile 2048x2048 of tokamax" in reason
    assert refusal({VMEM_FLAG: advised[1]}) is None
    assert refusal({VMEM_FLAG: str(int(advised[1]) - 2**10)}) is not None


def test_the_longest_sequence_is_searched_with_a_tile_that_fits() -> None:
    place, work = LocalTarget(parse_target("v5p:2x2x1")), replace(LONG, passes="forward")
    request = Request(workloads=[work], plans=[plan_of("splash", "2048x2048")], find_max_length=True)
    flags: list[dict[str, str]] = [{}, {VMEM_FLAG: "25600"}]
    refused, ready = max_length_cases(replace(request, flags=flags, method="simulated"), place)
    assert VMEM_FLAG in str(refused.reason) and ready.is_ready


def test_a_limit_above_the_memory_of_a_core_is_not_advised() -> None:
    reason = str(why_tile_exceeds_core(plan_of("splash", "4096x4096"), LONG, Hardware.load("v4"), {}))
    assert "splash takes" in reason and VMEM_FLAG not in reason
