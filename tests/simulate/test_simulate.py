"""The simulator against arithmetic done by hand."""

from dataclasses import replace

import numpy as np
import pytest

from stripectl.core.defaults import with_mesh
from stripectl.core.layout import Tile
from stripectl.core.plan import schemes
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import CostModel
from stripectl.costs.sources.timed_tiles import (
    CalibrationBlock,
    block_tile_count,
    blocks_for,
    fit_hop,
    fit_tiles,
    timed_cost_model,
)
from stripectl.hardware.profile import Hardware
from stripectl.results.cost_source import FROM_DATASHEET
from stripectl.results.tile_cost import TileCost
from stripectl.simulate.simulation import simulate
from tests.support.machines import datasheet_machine
from tests.support.plans import mask_of, with_tile
from tests.support.plans import reference_plan as parse_plan

ROWS, SHARDS = 64, 8
WORK = Workload(seq_len=ROWS * SHARDS, heads=2, kv_heads=1, head_dim=4)
HOP_BYTES = 2 * ROWS * 4 * 2  # keys and values of one head in bfloat16


def machine(tile_s: float = 1.0, rate: float = 1e12, latency: float = 0.0, overlaps: bool = True) -> CostModel:
    costs = TileCost(tile_s, tile_s), TileCost(3 * tile_s, 3 * tile_s)
    return CostModel(*costs, FROM_DATASHEET, latency, rate, overlaps)


def seconds(plan: str, machine: CostModel, passes: str = "forward") -> float:
    work = Workload(**{**WORK.__dict__, "passes": passes})
    return simulate(work, parse_plan(f"{plan}@ring={SHARDS},tile={ROWS // 4}"), machine).seconds


def test_fast_links_leave_the_critical_path() -> None:
    whole, diagonal = 16, 10  # tiles of a pair of shards, four a side
    assert seconds("ring/contiguous/xla", machine()) == pytest.approx(2 * (diagonal + 7 * whole), rel=1e-6)
    assert seconds("ring/striped/xla", machine()) == pytest.approx(2 * 8 * diagonal, rel=1e-6)
    assert seconds("all_gather/striped", machine()) == pytest.approx(2 * 8 * diagonal, rel=1e-6)


def test_slow_links_take_the_time() -> None:
    rate = 1e-2
    assert seconds("ring/striped/xla", machine(1e-9, rate)) == pytest.approx(7 * HOP_BYTES / rate, rel=1e-6)


@pytest.mark.parametrize("scheme", schemes.names())
@pytest.mark.parametrize("passes", ["forward", "forward-backward"])
def test_nothing_ends_before_its_bytes_can_leave(scheme: str, passes: str) -> None:
    work, link = replace(WORK, passes=passes, mask=mask_of(scheme)), machine(1e-12, 1e3)
    plan = with_tile(with_mesh(parse_plan(scheme), SHARDS), work, "cpu")
    result, links = simulate(work, plan, link), 2 * max(1, len(plan.axes))  # both ways, of every axis
    counted = 2 if scheme == "dist_flash" else 1  # keys and queries, of which a device sends one
    assert result.seconds >= sum(result.sent.values()) / link.link_bytes_per_s_one_way / links / counted


def test_a_hop_that_cannot_overlap_adds_to_the_round() -> None:
    rate, latency = 64.0, 0.25
    together = seconds("ring/striped/xla", machine(1.0, rate, latency, overlaps=False))
    hops = 7 * (HOP_BYTES / rate + 2 * latency)
    assert together == pytest.approx(2 * 8 * 10 + hops, rel=1e-6)


def test_half_hidden_hops_cost_their_excess() -> None:
    """Balanced rounds of 20 s, hops of 30 s: each but the last round waits 10 s for the next block."""
    assert seconds("ring/striped/xla", machine(1.0, HOP_BYTES / 30)) == pytest.approx(7 * 30 + 20, rel=1e-6)


def test_backward_adds_its_own_critical_path() -> None:
    for scheme in ("ring", "all_gather"):
        assert seconds(f"{scheme}/striped/xla", machine(), "forward-backward") == pytest.approx(
            4 * 2 * 8 * 10, rel=1e-6
        )


def test_other_axes_divide_the_work() -> None:
    alone = simulate(WORK, parse_plan("ring/striped/xla@ring=4,tile=16"), machine())
    wide = Workload(**{**WORK.__dict__, "kv_heads": 2})
    divided = simulate(wide, parse_plan("ring/striped/xla@ring=4,tensor=2,tile=16"), machine())
    assert divided.seconds == pytest.approx(alone.seconds / 2, rel=1e-6)
    assert divided.sent == alone.sent


def test_a_million_tokens_on_many_devices() -> None:
    work = Workload(seq_len=2**20, heads=16, kv_heads=16, head_dim=128)
    result = simulate(work, parse_plan("ring/zigzag/xla@ring=64,tile=1024"), machine())
    assert len(result.rounds) == 64
    assert result.sent == {"collective-permute": 63 * 2 * 2**14 * 16 * 128 * 2}


def test_the_fit_finds_the_costs_that_made_the_times() -> None:
    tile, cost = Tile(512, 512), TileCost(1e-3, 1.5e-3, 1e-7, 0.0, 2e-4)
    fitted, held_out = blocks_for(tile)
    times = {block: float(cost.seconds(block_tile_count(block, tile, "xla"), 2)) for block in [*fitted, held_out]}
    found = fit_tiles(fitted, [times[block] for block in fitted], tile, 2, "xla")
    assert (found.whole_s, found.boundary_s, found.call_s) == pytest.approx((1e-3, 1.5e-3, 2e-4), rel=1e-3)
    made = timed_cost_model({"forward": times}, {"forward": tile}, 2, "xla", (1e-5, 1e9), Hardware.load("v5p"))
    timed = made.cost_source.forward
    assert timed and timed.held_out and abs(timed.held_out.error) < 1e-3


def test_a_backward_tile_of_its_own_has_its_own_costs() -> None:
    tiles = {"forward": Tile(512, 512), "backward": Tile(256, 1024)}
    costs = {"forward": TileCost(1e-3, 1.5e-3, call_s=1e-5), "backward": TileCost(2e-3, 3e-3, call_s=1e-5)}
    times = {
        passes: {
            block: float(costs[passes].seconds(block_tile_count(block, tile, "xla"), 1))
            for block in [*blocks_for(tile)[0], blocks_for(tile)[1]]
        }
        for passes, tile in tiles.items()
    }
    made = timed_cost_model(times, tiles, 1, "xla", None, Hardware.load("v5p"))
    assert (made.forward.whole_s, made.backward.whole_s) == pytest.approx((1e-3, 2e-3), rel=1e-3)
    assert (made.cost_source.timings.tile, made.cost_source.timings.backward_tile) == ("512x512", "256x1024")
    work = Workload(**{**WORK.__dict__, "passes": "forward-backward"})
    found = simulate(work, parse_plan("ring/striped/xla@ring=8,tile=16,backward=4"), machine())
    counted = {passes: sum(r.tiles.computed.sum() for r in found.rounds if r.passes == passes) for passes in tiles}
    assert counted["backward"] > 8 * counted["forward"]


def test_the_fit_of_a_hop() -> None:
    sizes = (2**16, 2**20, 2**24)
    latency, rate = fit_hop(sizes, [5e-5 + size / 2e9 for size in sizes])
    assert (latency, rate) == pytest.approx((5e-5, 2e9), rel=1e-6)


def test_blocks_hold_four_of_the_largest_tiles() -> None:
    fitted, held_out = blocks_for(Tile(4096, 8192))
    assert max(block.rows for block in fitted) == 4 * 8192
    assert held_out == CalibrationBlock(6144 * 4, "causal")


def test_the_datasheet_bounds_a_tile_by_matmuls_or_memory() -> None:
    hardware, work = Hardware.load("v5p"), Workload(seq_len=2**16, heads=1, kv_heads=1, head_dim=128)
    large, small = (datasheet_machine(hardware, work, Tile(side, side)) for side in (2048, 16))
    assert large.forward.whole_s == pytest.approx(4 * 2048**2 * 128 / 459e12)
    assert small.forward.whole_s == pytest.approx(2 * 16 * 128 * 2 / 2765e9)
    assert np.isclose(large.backward.whole_s / large.forward.whole_s, 2.5)
