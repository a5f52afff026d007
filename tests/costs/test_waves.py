"""Thread blocks in waves."""

from dataclasses import replace

import numpy as np
import pytest

from stripectl.core.layout import UNBOUNDED, MaskBlock, Tile
from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload
from stripectl.costs.source_order import cost_model
from stripectl.costs.waves import busiest_processor, makespan, transposed
from stripectl.hardware.placement import place_mesh
from stripectl.hardware.target import parse_target
from stripectl.results.tile_cost import Waves
from stripectl.simulate.simulation import simulate

BLOCK = Tile(128, 128)


def band(rows: int, cols: int, high: int = UNBOUNDED) -> MaskBlock:
    return MaskBlock(0, 0, rows, cols, -UNBOUNDED, high)


def test_eight_heads_of_256_queries_take_as_long_as_of_2048() -> None:
    """128 blocks fit 132 processors as 16 do (H200, profiles/published/attention.csv)."""
    few, many = (busiest_processor([band(rows, 2**17)], 8, Waves(BLOCK, 132))[0][0] for rows in (256, 2048))
    assert few == many == 1024
    assert busiest_processor([band(4096, 2**17)], 8, Waves(BLOCK, 132))[0][0] == 2048


@pytest.mark.parametrize("heads", [1, 3, 40])
def test_no_processor_waits_while_a_block_is_left(heads: int) -> None:
    blocks = tuple(range(1, 33))
    total, found = heads * sum(blocks), makespan(blocks, heads, Waves(BLOCK, 12))
    assert total / 12 <= found <= total / 12 + max(blocks)


def test_the_longest_blocks_first_leave_the_processors_most_even() -> None:
    """Three heads of 1 to 8 tiles on 4 processors: the blocks of the last head end late, unless short ones fill up."""
    blocks = tuple(range(1, 9))
    first, last = (makespan(blocks, 3, Waves(BLOCK, 4, longest_first=order)) for order in (True, False))
    assert first == 3 * sum(blocks) / 4 < last


@pytest.mark.parametrize("heads", [16, 33, 47])
def test_the_longest_blocks_first_are_shared_out_evenly(heads: int) -> None:
    """Blocks of a causal mask of 8192 tokens: the time of 9 and more a processor is the mean, within 1 %."""
    blocks, waves = tuple(range(1, 65)), Waves(BLOCK, 8 * heads - 1, 1.5, longest_first=True)
    few = makespan(blocks, heads, waves._replace(processors=8 * heads))
    assert makespan(blocks, heads, waves) == pytest.approx(few * 8 * heads / (8 * heads - 1), rel=0.01)


def test_each_live_block_has_a_start() -> None:
    assert makespan((4, 0, 4), 2, Waves(BLOCK, 2)) == 8
    assert makespan((4, 0, 4), 2, Waves(BLOCK, 2, start_tiles=1.5)) == 11
    assert makespan((4,) * 512, 64, Waves(BLOCK, 132, start_tiles=1.0)) == pytest.approx(5 * 512 * 64 / 132, rel=0.01)


def test_so_many_blocks_that_waves_no_longer_count_are_shared_out() -> None:
    assert makespan((4,) * 512, 64, Waves(BLOCK, 132)) == pytest.approx(4 * 512 * 64 / 132, rel=0.01)


def test_dead_blocks_run_nothing_and_a_dead_pair_makes_no_call() -> None:
    tiles, calls = busiest_processor([band(1024, 1024, -2048), band(1024, 1024, 0)], 1, Waves(BLOCK, 132))
    assert (tiles[0], calls[0]) == (8, 1)


def test_devices_are_counted_at_once() -> None:
    tiles, calls = busiest_processor(
        [band(1024, 1024)._replace(high=np.array([0, -2048, UNBOUNDED]))], 1, Waves(BLOCK, 4)
    )
    assert calls.tolist() == [1, 0, 1] and tiles[1] == 0 < tiles[0] < tiles[2] == 16


def test_a_backward_pass_goes_along_the_keys() -> None:
    """The first keys of a causal mask meet every query, the last one block of them."""
    square = transposed(band(1024, 1024, 0))
    assert (square.low, square.high) == (0, UNBOUNDED)
    assert (
        busiest_processor([square], 1, Waves(BLOCK, 1))[0][0]
        == 36
        == busiest_processor([band(1024, 1024, 0)], 1, Waves(BLOCK, 1))[0][0]
    )


@pytest.mark.parametrize("layout", ["contiguous", "striped", "zigzag"])
def test_a_ring_of_gpus_takes_its_waves(layout: str) -> None:
    work = Workload(seq_len=2**16, heads=8, kv_heads=8, head_dim=128, passes="forward-backward")
    plan, target = parse_plan(f"ring/{layout}/cudnn@ring=8,tile=128"), parse_target("h100:8")
    machine = cost_model(target.hardware, work, plan, place_mesh(target, plan.mesh or ()))
    assert machine.cost_source.source == "published"
    found = simulate(work, plan, machine)
    forward = [each for each in found.rounds if each.passes == "forward"]
    live = [each for each in forward if np.any(each.tiles.calls)]
    assert live and all(np.all(each.tiles.busiest[each.tiles.calls > 0] > 0) for each in live)
    assert found.seconds > work.flops / 8 / target.hardware.figures["matmul_flops_per_s_bfloat16"]


def test_a_short_window_takes_the_time_of_its_starts() -> None:
    """A window of 128 keys has 3 tiles per block, and starts take as long (GB300, cudnn-frontend gpt_oss)."""
    seconds = {}
    for mask in ("sliding:128", "sliding:1024"):
        work = Workload(seq_len=2**14, heads=128, kv_heads=128, head_dim=64, batch=2, mask=mask)
        plan = parse_plan("memory_efficient/contiguous/cudnn@tile=128x128")
        model = cost_model(parse_target("gb300:1").hardware, work, plan)
        free = replace(model, forward=replace(model.forward, start_s=0.0))
        (call,), (without,) = (simulate(work, plan, each).rounds for each in (model, free))
        seconds[mask] = [float((each.end_s - each.start_s).max()) for each in (call, without)]
    assert seconds["sliding:128"][0] > 2.5 * seconds["sliding:128"][1]
    assert seconds["sliding:1024"][0] < 1.7 * seconds["sliding:1024"][1]
