"""XLA's flag for determinism, beside NVIDIA's times of cuDNN's backward pass."""

from dataclasses import replace

import pytest

import stripectl
from stripectl.core.kernel import kernels
from stripectl.core.plan import Plan
from stripectl.core.workload import Workload
from stripectl.costs.determinism import DETERMINISM_FLAG, backward_factor, with_determinism
from stripectl.costs.source_order import cost_model
from stripectl.errors import BadInput
from stripectl.hardware.profile import Hardware
from stripectl.util.files import table_rows

PLAN = Plan("memory_efficient", "contiguous", "cudnn", mesh=())
ON = {DETERMINISM_FLAG: "true"}


def work(head_dim: int = 128, v_head_dim: int = 128, passes: str = "forward-backward") -> Workload:
    return Workload(
        seq_len=2**13, heads=32, kv_heads=32, head_dim=head_dim, v_head_dim=v_head_dim, mask="causal", passes=passes
    )


def factor(gpu: str, head_dim: int = 128, v_head_dim: int = 128, plan: Plan = PLAN) -> float:
    return backward_factor(Hardware.load(gpu), work(head_dim, v_head_dim), plan)


def test_a_factor_is_the_mean_of_its_rows() -> None:
    """Rows with heads of 128 are 1.09 to 1.29 at any length; with heads of 192 and 128 determinism takes no time."""
    rows = table_rows("published/deterministic")
    assert len(rows) == 80
    for row in rows:
        own = factor(row["hardware"], int(row["head_dim"]), int(row["v_dim"]))
        assert float(row["deterministic_ms"]) / float(row["ms"]) == pytest.approx(own, rel=0.11)
    assert 1.15 < factor("gb300") < factor("gb200") < 1.2 and 0.95 < factor("gb200", 192) < 1.0


def test_a_gpu_without_rows_takes_those_of_its_architecture() -> None:
    assert factor("b200") == factor("gb200") != factor("gb300")


@pytest.mark.parametrize(
    ("gpu", "head_dim", "kernel"), [("h100", 128, "cudnn"), ("gb200", 64, "cudnn"), ("gb200", 128, "xla")]
)
def test_nothing_is_simulated_without_rows(gpu: str, head_dim: int, kernel: str) -> None:
    plan = Plan("memory_efficient", "contiguous", kernel, mesh=())
    with pytest.raises(BadInput, match=rf"{DETERMINISM_FLAG} for {kernel} with heads of {head_dim} on {gpu}"):
        factor(gpu, head_dim, head_dim, plan)


def test_only_a_backward_pass_takes_longer() -> None:
    hardware, plan = Hardware.load("gb200"), replace(PLAN, tile=kernels["cudnn"].counting_tile)
    machine = cost_model(hardware, work(), plan)
    found = with_determinism(machine, hardware, work(), plan, ON)
    assert found.forward == machine.forward
    assert found.backward.whole_s == pytest.approx(machine.backward.whole_s * factor("gb200"))
    assert found.cost_source.deterministic_backward == factor("gb200")
    forward = work(passes="forward")
    assert with_determinism(machine, hardware, forward, plan, ON) is machine
    assert with_determinism(machine, hardware, work(), plan, {DETERMINISM_FLAG: "false"}) is machine


def test_bench_compares_both_values_of_the_flag() -> None:
    run = stripectl.bench(
        scheme="ring",
        layout="zigzag",
        kernel="cudnn",
        heads=32,
        head_dim=128,
        pass_="forward-backward",
        seqlen="64k",
        target="gb200:8",
        method="simulated",
        xla_flag=[f"{DETERMINISM_FLAG}=false,true"],
        progress=False,
    )
    times = {((m.flags or {})[DETERMINISM_FLAG], m.devices): m.median_s or 0.0 for m in run.measurements}
    alone, ring = (times["true", devices] / times["false", devices] for devices in (1, 8))
    assert 1.05 < ring < alone < factor("gb200")  # a ring also waits for its hops
