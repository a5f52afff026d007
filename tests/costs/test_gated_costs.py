"""The cost of a chunk of a recurrence: the arrays of its stages, and what measured kernels reach with them on GPUs."""

from dataclasses import replace

import pytest

from stripectl.core.layout import Tile
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.recurrence import recurrences
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import CostModel
from stripectl.costs.source_order import cost_model
from stripectl.costs.sources.datasheet import datasheet_costs
from stripectl.costs.sources.gated_chunks import chunk_work, chunk_work_in_stages
from stripectl.costs.sources.measured_stages import measured_calls, measured_stages
from stripectl.hardware.profile import Hardware
from stripectl.results.cost_source import CostOrigin

ROWS, LENGTH = 64, 2**15


def layer(heads: int, key_heads: int, recurrence: str = "gdn") -> Workload:
    return Workload(
        seq_len=LENGTH,
        heads=heads,
        kv_heads=heads,
        key_heads=key_heads,
        head_dim=128,
        attention="linear",
        recurrence=recurrence,
        passes="forward-backward",
    )


@pytest.mark.parametrize("name", recurrences.names())
def test_stages_move_more_bytes_and_compute_as_much(name: str) -> None:
    fused, staged = (work(layer(32, 32, name), ROWS) for work in (chunk_work, chunk_work_in_stages))
    for part, work in staged.items():
        assert work.flops == fused[part].flops and work.nbytes >= fused[part].nbytes


def test_the_forward_stages_of_gated_delta_net_exchange_these_arrays() -> None:
    """In keys or values of a chunk, whose 64 x 64 scores in bfloat16 are a half, and states 2. The scores read keys and
    write 1 (float32), the inverse reads 1 and writes 1/2, W and U read 2 1/2 and write 2, states read 3 and write 3,
    outputs read 5 and write 2 (float32)."""
    array, gates = ROWS * 128 * 2, ROWS * 2 * 4
    staged = chunk_work_in_stages(layer(32, 32), ROWS)
    assert staged["outputs"].nbytes == (2 + 1.5 + 4.5 + 6 + 7) * array + 4 * gates
    assert staged["map"].nbytes == (2 + 1.5 + 4.5 + 3) * array + 3 * gates


ONE = Plan("lasp2", "contiguous", "gated", mesh=(), tile=Tile(ROWS, ROWS))


def costs(gpu: str, workload: Workload, plan: Plan = ONE) -> CostModel:
    found = measured_stages(Hardware.load(gpu), workload, plan)
    assert found
    return found


@pytest.mark.parametrize(("recurrence", "library"), [("gdn", "trtllm"), ("kda", "sglang")])
def test_a_call_takes_the_time_of_the_rows_that_set_its_figures(recurrence: str, library: str) -> None:
    calls = measured_calls()["h200", recurrence, library]
    for heads, tokens in ((512, 2**13), (8, 2**15), (8, 512)):
        work = replace(layer(heads, heads // 2 if recurrence == "gdn" else heads, recurrence), seq_len=tokens)
        cost = costs("h200", work).forward
        chunks = tokens // ROWS * heads * cost.boundary_s
        both = chunks + cost.call_s if tokens == 512 else chunks
        assert both == pytest.approx(calls[heads, tokens], rel=0.06)


def test_few_heads_leave_a_gpu_idle() -> None:
    """A device's head after all-to-alls waits for a step per chunk; 64 heads share it. A chunk with gradients has
    two steps, for the states and for their gradients."""
    many = costs("h100", layer(64, 32))
    few = costs("h100", layer(64, 32), parse_plan("ulysses/contiguous/gated@ulysses=64,tile=64x64"))
    step_s, known = many.cost_source.stages.step_s, many.cost_source.stages
    assert step_s and known.measured_on == "h100" and known.measured_kernel == "gdn of TensorRT-LLM"
    assert few.forward.boundary_s - many.forward.boundary_s == pytest.approx(step_s * (1 - 1 / 64))
    assert few.backward.boundary_s - many.backward.boundary_s == pytest.approx(2 * step_s * (1 - 1 / 64))
    assert few.backward.whole_s - many.backward.whole_s == pytest.approx(step_s * (1 - 1 / 64))


def test_a_backward_pass_reaches_the_share_of_the_forward_pass() -> None:
    machine, work = costs("h200", layer(64, 32)), chunk_work_in_stages(layer(64, 32), ROWS)
    stages, rate = machine.cost_source.stages, Hardware.load("h200").figures["hbm_bytes_per_s"]
    assert stages.memory_share and stages.step_s and 0.5 < stages.memory_share < 0.7
    taken = {"outputs": machine.forward.boundary_s, "gradients": machine.backward.boundary_s - stages.step_s / 64}
    for name, seconds in taken.items():
        assert seconds - stages.step_s / 64 == pytest.approx(work[name].nbytes / rate / stages.memory_share)


@pytest.mark.parametrize(
    ("gpu", "measured_on"), [("h20", "h100"), ("h800", "h100"), ("rtx4090", "l40s"), ("gb300", "gb300")]
)
def test_a_gpu_without_rows_takes_those_of_its_architecture(gpu: str, measured_on: str) -> None:
    machine = cost_model(Hardware.load(gpu), layer(64, 64, "kda"), ONE)
    assert machine.cost_source.source == CostOrigin.MEASURED_STAGES
    assert machine.cost_source.stages.measured_on == measured_on


def test_fewer_processors_compute_a_chunk_more_slowly() -> None:
    """An H20 has more memory rate than an H100, and 78 of its 132 processors."""
    h20, h100 = (costs(name, layer(64, 32)).forward.boundary_s for name in ("h20", "h100"))
    assert 1.4 < h20 / h100 < 132 / 78


@pytest.mark.parametrize(
    ("gpu", "recurrence"), [("a100", "gdn"), ("rtx5090", "kda"), ("h100", "mamba2"), ("h100", "gla")]
)
def test_other_chunks_take_the_datasheets_rate(gpu: str, recurrence: str) -> None:
    """No GPU of the architecture has rows, or nobody measured the recurrence."""
    hardware, work = Hardware.load(gpu), layer(64, 64, recurrence)
    assert measured_stages(hardware, work, ONE) is None
    assert cost_model(hardware, work, ONE).forward == datasheet_costs(hardware, work, ONE).forward


def test_deltanet_takes_the_rows_of_gated_deltanet() -> None:
    """Its stages are the same, without gates."""
    own, gated = (costs("h100", layer(64, 64, name)) for name in ("deltanet", "gdn"))
    assert own.cost_source.stages == gated.cost_source.stages
    assert own.forward.boundary_s < gated.forward.boundary_s
