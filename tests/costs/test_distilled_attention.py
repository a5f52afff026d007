"""Kernels that only a table knows: constants fitted to calls that others measured, and calls that set none."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stripectl.core.kernel import kernels
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import CostModel
from stripectl.costs.shape import Heads
from stripectl.costs.source_order import cost_model
from stripectl.costs.sources.distilled_attention import (
    BLOCK,
    LIBRARIES,
    MAX_ERROR,
    TimedCall,
    backward_calls,
    blocks_of_call,
    fit_calls,
    forward_calls,
    library_of,
)
from stripectl.costs.waves import makespan
from stripectl.errors import BadInput
from stripectl.hardware.profile import Hardware
from stripectl.hardware.target import parse_target
from stripectl.results.tile_cost import TileCost
from stripectl.simulate.simulation import simulate

ARCHITECTURES = ("a100", "h100", "b200", "l40s")
WORK = Workload(seq_len=2**16, heads=32, kv_heads=8, head_dim=128, passes="forward")


def processors(name: str) -> int:
    return int(Hardware.load(name).compiler["core_count"])


def seconds(cost: TileCost, calls: list[TimedCall], passes: str = "forward") -> np.ndarray:
    tiles = [makespan(blocks_of_call(call, passes), call.heads, cost.waves) for call in calls]
    return np.array(tiles) * cost.whole_s + cost.call_s


def errors(cost: TileCost, calls: list[TimedCall], passes: str = "forward") -> np.ndarray:
    return np.abs(seconds(cost, calls, passes) / [call.seconds for call in calls] - 1)


def costs(kernel: str, target: str = "h100:8", **changes: Any) -> CostModel:
    work = replace(WORK, **changes)
    return cost_model(parse_target(target).hardware, work, plan_of(kernel))


def plan_of(kernel: str) -> Plan:
    return parse_plan(f"ring/zigzag/{kernel}@ring=8,tile=128")


def test_the_kernels_are_the_kernels_that_nothing_here_runs() -> None:
    assert {name for name in kernels.names() if kernels[name].table_only} == LIBRARIES.keys()
    for name in LIBRARIES:
        with pytest.raises(BadInput, match=f"{name} is table only.*--kernel cudnn"):
            kernels[name].load()


def test_a_fit_finds_the_constants_of_a_mechanism_among_outliers() -> None:
    """Times of 24 calls of which two are twice as long."""
    made = TileCost(2e-6, 2e-6, call_s=2e-5, processors=132, block=BLOCK, start_s=6e-6)
    shapes = [(tokens, heads) for tokens in (1024, 2048, 4096, 8192) for heads in (4, 8, 16, 32, 64, 96)]
    calls = [TimedCall(tokens, heads, "causal", 0, 0.0) for tokens, heads in shapes]
    times = seconds(made, calls).tolist()
    times[3], times[13] = 2 * times[3], 2 * times[13]
    found = fit_calls(tuple(c._replace(seconds=s) for c, s in zip(calls, times, strict=True)), 132).cost
    assert (found.waves.start_tiles, found.longest_first) == (pytest.approx(3), False)
    assert found.whole_s == pytest.approx(2e-6, rel=0.02) and found.call_s == pytest.approx(2e-5, rel=0.1)


@pytest.mark.parametrize(
    ("key", "median"),
    [
        (("h100", "fa3", Heads(128, 128), 0), 0.06),
        (("h200", "fa3", Heads(64, 64), 0), 0.05),
        (("b200", "fa4", Heads(64, 64), 0), 0.08),
        (("gb300", "flashinfer", Heads(128, 128), 0), 0.08),
        (("h200", "trtllm", Heads(128, 128), 0), 0.05),
        (("gb200", "trtllm", Heads(64, 64), 0), 0.08),
    ],
    ids=str,
)
def test_calls_that_are_left_out_of_a_fit_are_predicted(key: tuple[str, str, Heads, int], median: float) -> None:
    """Every third call is predicted from the others."""
    calls = forward_calls()[key][library_of(*key) or ""]
    off = list[float]()
    for held in range(3):
        fitted = [call for at, call in enumerate(calls) if at % 3 != held]
        off += errors(fit_calls(tuple(fitted), processors(key[0])).cost, calls[held::3]).tolist()
    assert len(off) == len(calls) and np.median(off) < median


@pytest.mark.parametrize(("heads", "median"), [(64, 0.07), (128, 0.07), (192, 0.09)])
def test_another_library_calls_the_same_kernel(heads: int, median: float) -> None:
    """vLLM's calls of FlashAttention-3 set the constants; SGLang's set none."""
    libraries = forward_calls()["h100", "fa3", Heads(heads, heads), 0]
    cost = fit_calls(tuple(libraries["vllm"]), 132).cost
    assert np.median(errors(cost, libraries["sglang"])) < median


def test_fits_are_near_their_calls() -> None:
    """Of a machine of each architecture. TensorRT-LLM's kernel for short windows on the L40S follows no such law."""
    medians = dict[tuple[str, str, Heads, int], float]()
    for (machine, kernel, heads, window), libraries in forward_calls().items():
        if machine in ARCHITECTURES and (library := library_of(machine, kernel, heads, window)):
            found = fit_calls(tuple(libraries[library]), processors(machine))
            medians[machine, kernel, heads, window] = found.median_error
    unknown = {key for key, median in medians.items() if median > MAX_ERROR}
    assert unknown == {("l40s", "trtllm", Heads(64, 64), 128), ("l40s", "trtllm", Heads(192, 192), 128)}
    assert len(medians) > 40 and np.median(list(medians.values())) < 0.04


def test_published_backward_calls_tell_the_backward_pass() -> None:
    ((key, calls),) = backward_calls().items()
    assert key == ("h100", "fa3", Heads(128, 128)) and len(calls) == 8
    held = fit_calls(tuple(call for call in calls if call.mask == "full"), 132, "backward").cost
    causal = [call for call in calls if call.mask == "causal"]
    assert errors(held, causal, "backward").max() < 0.15


@pytest.mark.parametrize(("kernel", "target"), [("fa3", "h100:8"), ("flashinfer", "b200:8"), ("trtllm", "gb300:8")])
def test_a_ring_takes_the_fitted_tiles(kernel: str, target: str) -> None:
    machine = costs(kernel, target)
    assert (machine.cost_source.source, machine.forward.block) == ("published", (128, 128, None))
    assert machine.cost_source.entry.table == "profiles/distilled/attention.csv"
    assert "median error" in (machine.cost_source.entry.made_by or "")
    found = simulate(WORK, plan_of(kernel), machine)
    peak = parse_target(target).hardware.figures["matmul_flops_per_s_bfloat16"]
    assert 1 < found.seconds / (WORK.flops / 8 / peak) < 4


def test_a_machine_with_the_same_processors_has_its_costs() -> None:
    own, other = costs("fa3"), costs("fa3", "h800:8")
    assert other.forward == own.forward and not own.cost_source.entry.interpolated_from
    assert "h100" in (other.cost_source.entry.interpolated_from or "")
    both = costs("fa3", "h200:8", passes="forward-backward")
    assert "h100" in ((both.cost_source.backward_costs and both.cost_source.backward_costs.interpolated_from) or "")


@pytest.mark.parametrize(
    ("kernel", "target", "changes", "said"),
    [
        ("fa3", "b200:8", {}, "the forward pass of fa3 on b200 with heads of 128 because .* Try --kernel cudnn.$"),
        ("fa3", "h100:8", {"head_dim": 96}, "with heads of 96 .* Try --kernel cudnn.$"),
        ("fa4", "gb300:4", {}, "fa4 on gb300 with heads of 128"),
        (
            "trtllm",
            "h100:8",
            {"passes": "forward-backward"},
            "the backward pass .* --kernel cudnn, or --pass forward.$",
        ),
        ("fa3", "h100:8", {"passes": "forward-backward", "head_dim": 64}, "the backward pass of fa3 on h100"),
        ("fa3", "h100:8", {"mask": "sliding:1k"}, "heads of 128 and such a window .* Try --kernel xla.$"),
        ("trtllm", "l40s:8", {"mask": "sliding:127", "head_dim": 64}, "such a window"),
    ],
)
def test_what_no_call_tells_is_refused(kernel: str, target: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=f"^cannot simulate .*{said}"):
        costs(kernel, target, **{"kv_heads": 32} | changes)


def test_a_window_takes_the_costs_of_a_window_of_about_its_length() -> None:
    exact, near = (costs("fa3", mask=f"sliding:{left}").cost_source.entry for left in (8192, 5000))
    assert not exact.interpolated_from and near.interpolated_from == "a window of 8192"
