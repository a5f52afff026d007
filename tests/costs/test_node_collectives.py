"""Collectives in a node of GPUs take the times that others measured."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from stripectl.core.workload import Workload
from stripectl.costs.cost_model import CostModel
from stripectl.costs.node_collectives import LARGE_HOP, node_collectives
from stripectl.hardware.placement import place_mesh
from stripectl.hardware.profile import Hardware
from stripectl.hardware.target import parse_target
from stripectl.results.tile_cost import TileCost
from stripectl.simulate.collective_times import all_reduce_time, all_to_all_time, gather_time
from stripectl.simulate.simulation import simulate
from stripectl.simulate.transfers import StepTransfer, seconds_sent
from tests.support.machines import datasheet_machine
from tests.support.plans import reference_plan

MIB = 2**20
WORK = Workload(seq_len=2**15, heads=16, kv_heads=8, head_dim=128, mask="causal", dtype="bfloat16")


def machine(target: str, plan: str) -> CostModel:
    """The links of a target, on which tiles and memory take no time."""
    at, named = parse_target(target), reference_plan(plan)
    assert named.tile
    made = datasheet_machine(at.hardware, WORK, named.tile, place_mesh(at, named.mesh))
    return replace(made, forward=TileCost(0.0, 0.0), memory_bytes_per_s=math.inf)


def test_rows_come_back_and_sizes_between_them_lie_between() -> None:
    measured = node_collectives(Hardware.load("h200"))
    assert measured
    rows = {("all-gather", 8, 512 * MIB): 1390, ("all-to-all", 8, 8 * MIB): 41.4, ("all-reduce", 8, 512): 16}
    for (opcode, devices, nbytes), us in rows.items():
        assert sum(measured.collective(opcode, devices, nbytes)) == pytest.approx(us * 1e-6)
    ends = [sum(measured.collective("all-gather", 8, size * MIB)) for size in (16, 20, 32)]
    assert ends == sorted(ends)
    twice = measured.collective("all-gather", 8, 1024 * MIB)
    assert sum(twice) == pytest.approx(2 * 1390e-6), "the rate of the largest size"


def test_a_hop_takes_as_long_as_two_devices_that_gather_each_others_half() -> None:
    measured = node_collectives(Hardware.load("h200"))
    assert measured
    assert measured.hop(MIB) == measured.collective("all-gather", 2, 2 * MIB)
    whole, hop = machine("h200:8", "ring/striped@ring=8,tile=1024"), 2 * 8 * 128 * 2 * WORK.seq_len // 8
    seconds = simulate(WORK, reference_plan("ring/striped@ring=8,tile=1024"), whole).seconds
    assert seconds >= 7 * measured.hop(hop // 2).busy_s


def test_collectives_of_a_plan_in_a_node_take_the_measured_time() -> None:
    measured, at = node_collectives(Hardware.load("h200")), machine("h200:8", "all_gather/striped@ring=8,tile=1024")
    assert measured
    for found, expected in (
        (gather_time(at, "reduce-scatter", "ring", 8, MIB), measured.collective("reduce-scatter", 8, 8 * MIB)),
        (all_to_all_time(at, "ring", 8, MIB), measured.collective("all-to-all", 8, 8 * MIB)),
        (all_reduce_time(at, "ring", 8, MIB), measured.collective("all-reduce", 8, MIB)),
    ):
        assert found[:2] == expected


@pytest.mark.parametrize(("opcode", "sent"), [("all-gather", 7 / 8), ("reduce-scatter", 7 / 8), ("all-reduce", 7 / 4)])
def test_the_transfers_of_a_step_are_told_by_the_bytes_that_a_device_sends(opcode: str, sent: float) -> None:
    plan = reference_plan("memory_efficient@fsdp=8,tile=1024")
    measured, at = node_collectives(Hardware.load("h200")), machine("h200:8", "memory_efficient@fsdp=8,tile=1024")
    assert measured
    seconds = seconds_sent(StepTransfer(opcode, ("fsdp",), sent * 64 * MIB, 3), plan, at)
    assert seconds == pytest.approx(3 * sum(measured.collective(opcode, 8, 64 * MIB)))


def test_between_nodes_and_on_tpus_rates_of_links_count() -> None:
    across = machine("2*h200:8", "ring/striped@ring=16,tile=1024")
    assert across.measured_collective("all-gather", {"ring": 16}, MIB) is None
    assert node_collectives(Hardware.load("v5p")) is None


def test_faster_links_and_shorter_calls_are_told_apart() -> None:
    at = machine("h200:8", "all_gather/striped@ring=8,tile=1024")
    busy_s, latency_s = at.measured_collective("all-gather", {"ring": 8}, 64 * MIB) or (0.0, 0.0)
    assert busy_s > latency_s > 0
    for part, halves in (("communication", (2, 1)), ("latency", (1, 2)), ("compute", (1, 1))):
        faster = at.with_part_sped_up(part).measured_collective("all-gather", {"ring": 8}, 64 * MIB)
        assert faster == pytest.approx((busy_s / halves[0], latency_s / halves[1]))


def test_a_cost_source_names_the_measurements() -> None:
    source = machine("h200:8", "ring/striped@ring=8,tile=1024").cost_source
    assert source.sources and "nccl-tests" in source.sources["collectives"]
    assert "hop latency" not in (source.left_out or "")
    link = Hardware.load("h200").figure("link_bytes_per_s_one_way")
    assert source.links.hop and link and 0.4 * link < source.links.hop.bytes_per_s_one_way < link


def test_a_profile_with_half_the_rate_of_links_sends_bytes_in_twice_the_time(tmp_path: Path) -> None:
    base = Hardware.load("h200")
    half = base.figures["link_bytes_per_s_one_way"] / 2
    written = tmp_path / "mine.yaml"
    written.write_text(f"based_on: h200\nfigures:\n  link_bytes_per_s_one_way: {{value: {half}, source: M}}\n")
    mine, theirs = node_collectives(Hardware.load(str(written))), node_collectives(base)
    assert mine and theirs
    slow, fast = mine.hop(MIB), theirs.hop(MIB)
    assert (slow.busy_s, slow.latency_s) == pytest.approx((2 * fast.busy_s, fast.latency_s))
    measured = written.read_text() + "  hop_latency_s: {value: 1.0e-5, source: M}\n"
    written.write_text(measured)
    assert node_collectives(Hardware.load(str(written))) is None, "the profile was measured"


def test_hops_of_devices_that_share_pcie_take_a_round_of_the_ring_that_gathers() -> None:
    """Among two L40S a hop has 20 GB/s, among eight 1.2; through NVSwitch it does not depend on their number."""
    shared, switched = (node_collectives(Hardware.load(name)) for name in ("l40s", "h200"))
    assert shared and switched
    gathered = shared.collective("all-gather", 8, 8 * 64 * MIB)
    assert shared.hop(64 * MIB, 8).busy_s == pytest.approx(gathered.busy_s / 7)
    assert shared.hop(64 * MIB, 8).busy_s > 10 * shared.hop(64 * MIB, 2).busy_s
    assert switched.hop(64 * MIB, 8) == switched.hop(64 * MIB, 2)
    for plan, devices in (("ring/striped@ring=8,tile=1024", 8), ("ring/striped@ring=2,tile=1024", 2)):
        source = machine(f"l40s:{devices}", plan).cost_source
        assert source.links.hop and source.links.hop.bytes_per_s_one_way == pytest.approx(
            LARGE_HOP / shared.hop(LARGE_HOP, devices).busy_s
        )
    sent = 2 * 8 * 128 * 2 * WORK.seq_len // 8  # keys and values of a shard
    at = machine("l40s:8", "ring/striped@ring=8,tile=1024")
    seconds = simulate(WORK, reference_plan("ring/striped@ring=8,tile=1024"), at).seconds
    assert seconds >= 7 * shared.hop(sent // 2, 8).busy_s


def test_a_machine_may_have_the_links_of_another() -> None:
    h20, h100 = (node_collectives(Hardware.load(name)) for name in ("h20", "h100"))
    assert h20 and h100 and h20.hop(MIB) == h100.hop(MIB)
    h800 = node_collectives(Hardware.load("h800"))
    assert h800 and h800.hop(MIB).busy_s == pytest.approx(h100.hop(MIB).busy_s * 450 / 200)


@pytest.mark.parametrize(
    ("devices", "nbytes", "measured_ms"),
    [(4, 16, 0.280), (4, 64, 0.804), (4, 1024, 10.850), (8, 16, 0.335), (8, 64, 0.921), (8, 1024, 12.369)],
)
def test_collectives_at_the_ratio_of_links_are_those_of_a_gpu_with_slower_links(
    devices: int, nbytes: int, measured_ms: float
) -> None:
    """Of A800s, whose NVLink has two thirds of an A100's rate, as others measured them (benchmarks/README.md)."""
    a800 = node_collectives(Hardware.load("a800"))
    assert a800
    assert sum(a800.collective("all-reduce", devices, nbytes * MIB)) == pytest.approx(measured_ms * 1e-3, rel=0.08)
