"""Limits and scaling on clocks, where the machine is so simple that both are known beforehand."""

from dataclasses import replace

import numpy as np
import pytest

from stripectl.core.lengths import MAX_SEQ_LEN
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import PARTS, CostModel
from stripectl.hardware.links import Hops
from stripectl.hardware.target import read_target
from stripectl.results.backend import Final, finals
from stripectl.results.cost_source import FROM_DATASHEET
from stripectl.results.measurement import Measurement, TimeAtLength
from stripectl.results.tile_cost import TileCost
from stripectl.simulate.sensitivity import (
    bottleneck_shares,
    other_lengths,
    scaling,
    with_estimated_sensitivity,
    with_sensitivity,
)
from stripectl.simulate.simulation import simulate

SHARDS, ROWS = 8, 512
WORK = Workload(seq_len=SHARDS * ROWS, heads=2, kv_heads=1, head_dim=4)
NONE = TileCost(0.0, 0.0)


def plan(layout: str = "striped", tile: int = 128) -> Plan:
    return parse_plan(f"ring/{layout}/xla@ring={SHARDS},tile={tile}")


def machine(cost: TileCost, rate: float = 1e18, latency: float = 0.0) -> CostModel:
    return CostModel(cost, cost, FROM_DATASHEET, latency, rate)


BOUND_BY = {
    "compute": machine(TileCost(1.0, 1.0)),
    "memory": machine(TileCost(0.0, 0.0, row_s=1.0)),
    "latency": machine(TileCost(0.0, 0.0, call_s=1.0), latency=1.0),
    "communication": machine(NONE, rate=1.0),
}


def limits_of(work: Workload, each: CostModel) -> dict[str, float]:
    seconds = simulate(work, plan(), each).seconds
    return bottleneck_shares(seconds, lambda part: simulate(work, plan(), each.with_part_sped_up(part)).seconds)


def scaling_of(of: Plan, each: CostModel, seconds: float) -> tuple[TimeAtLength, ...]:
    def longer(other: Workload) -> float:
        return simulate(other, of, each.scaled_to_length(other.seq_len / WORK.seq_len)).seconds

    return scaling(WORK, of, seconds, "cpu", longer)


@pytest.mark.parametrize("passes", ["forward", "forward-backward"])
@pytest.mark.parametrize("part", PARTS)
def test_the_only_part_that_takes_time_limits_by_half(part: str, passes: str) -> None:
    work = replace(WORK, passes=passes)
    found = limits_of(work, BOUND_BY[part])
    assert found == {each: pytest.approx(0.5 if each == part else 0.0, abs=1e-9) for each in PARTS}


def test_hops_that_are_not_alike_get_faster_too() -> None:
    hops = {"ring": Hops(np.full((2, SHARDS), 1.0), np.full((2, SHARDS), 3.0), np.zeros((2, SHARDS), bool))}
    slow = replace(machine(NONE), hops=hops)
    assert slow.with_part_sped_up("communication").hops["ring"].bytes_per_s.max() == 2
    assert slow.with_part_sped_up("latency").hops["ring"].latency_s.max() == 1.5
    assert slow.with_part_sped_up("memory").hops["ring"].bytes_per_s.max() == 1


def test_what_hides_limits_nothing_until_what_hides_it_is_faster() -> None:
    """Balanced rounds of 20 s of compute (10 tiles of 2 heads), hops of 15 s behind all but the last round: with tiles
    twice as fast, seven hops of 15 s and a round of 10 s are left of 160 s."""
    nbytes = 2 * ROWS * WORK.head_dim * 2
    uneven = machine(TileCost(1.0, 1.0), rate=nbytes / 15)
    found = limits_of(WORK, uneven)
    assert found["communication"] == 0
    assert found["compute"] == pytest.approx(1 - (7 * 15 + 10) / 160)


def test_scaling_is_the_time_at_lengths_that_the_plan_allows() -> None:
    """A shard has T tiles a side, T = 1 to 64; striped computes T(T+1)/2 of them a round. Tiles of 128 fill no shard of
    less than 1k tokens."""
    sides = [2**k for k in range(7)]
    taken = [WORK.heads * SHARDS * side * (side + 1) / 2 for side in sides]
    found = scaling_of(plan(), machine(TileCost(1.0, 1.0)), 160.0)
    assert [(each.seq_len, each.median_s) for each in found] == [
        (2**10 * side, time_s) for side, time_s in zip(sides, taken, strict=True)
    ]


def test_copies_of_a_compiled_program_are_memory_and_grow_with_the_length() -> None:
    copies = machine(TileCost(0.0, 0.0, call_s=1.0, call_grows=True))
    seconds = simulate(WORK, plan(), copies).seconds
    assert seconds == SHARDS
    assert limits_of(WORK, copies) == {"memory": 0.5} | dict.fromkeys(("compute", "communication", "latency"), 0)
    found = {each.seq_len: each.median_s for each in scaling_of(plan(), copies, seconds)}
    assert (found[WORK.seq_len // 2], found[WORK.seq_len * 2]) == (SHARDS / 2, SHARDS * 2)


def test_zigzag_needs_pieces_that_hold_a_tile() -> None:
    found = scaling_of(plan("zigzag"), BOUND_BY["compute"], 160.0)
    assert min(each.seq_len for each in found) == 2**11


def test_long_rings_are_simulated_at_fewer_lengths() -> None:
    assert len(other_lengths(2**20, 128)) == 8
    assert other_lengths(2**20, 256) == [2**19, 2**21]
    assert other_lengths(2**20, 1024) == []
    assert max(other_lengths(MAX_SEQ_LEN, 8)) == MAX_SEQ_LEN // 2
    assert other_lengths(1000, 2) == [2000, 4000, 8000, 16000]


def test_what_is_measured_has_the_reasons_of_its_simulation() -> None:
    case = Measurement(workload=WORK, plan=plan(), target=read_target("cpu:8"), method="simulated")
    seconds = simulate(WORK, plan(), BOUND_BY["compute"]).seconds
    clocked = with_sensitivity(replace(case, median_s=seconds), [BOUND_BY["compute"]], "cpu")
    other = replace(case, plan=plan("contiguous"))
    given, untouched = finals(with_estimated_sensitivity(map(Final, [case, other]), [clocked]))
    assert (given.bottleneck_shares, given.scaling) == (clocked.bottleneck_shares, clocked.scaling)
    assert given.bottleneck_shares and given.bottleneck_shares["compute"] == pytest.approx(0.5)
    assert untouched == other
