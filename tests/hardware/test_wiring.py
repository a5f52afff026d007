"""Where meshes lie on links: cycles, long ways home, networks, and what the simulator makes of them."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.slices import RECORDS
from stripectl.core.layout import Tile
from stripectl.core.mesh import AXES, parse_mesh
from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload
from stripectl.costs.source_order import cost_model
from stripectl.errors import BadInput
from stripectl.hardware.placement import HopPath, MeshPlacement, place_mesh
from stripectl.hardware.profile import Hardware, hardware_names
from stripectl.hardware.slice_places import closed_walk
from stripectl.hardware.target import Target, parse_target
from stripectl.models.model_files import load_model
from stripectl.results.cost_source import SlowestHop
from stripectl.results.tile_cost import TileCost
from stripectl.simulate.collective_times import all_reduce_time, all_to_all_time, gather_time
from stripectl.simulate.simulation import simulate
from stripectl.simulate.training_step import SimulatedStep
from stripectl.simulate.transfers import StepTransfer, seconds_sent, travel_s
from tests.support.machines import datasheet_machine
from tests.support.plans import reference_plan

WORK = Workload(seq_len=2**16, heads=8, kv_heads=8, head_dim=128, passes="forward")
TILE = Tile(512, 512)
TPUS = [name for name in hardware_names() if Hardware.load(name).kind == "tpu"]
SLICES = [
    target
    for name in TPUS
    for shape in Hardware.load(name).slices
    if 1 < (target := Target(Hardware.load(name), shape)).devices <= 256
]


def wired(target: str, mesh: str) -> MeshPlacement:
    return place_mesh(parse_target(target), parse_mesh(mesh))


def hops(target: str, mesh: str, axis: str = "ring") -> HopPath:
    return wired(target, mesh).forward[axis]


@pytest.mark.parametrize("target", SLICES, ids=str)
def test_a_ring_over_a_whole_slice_is_a_cycle_of_single_links(target: Target) -> None:
    placement = place_mesh(target, (("ring", target.devices),))
    for crossed in (placement.forward["ring"], placement.backward["ring"]):
        assert crossed.links.max() <= 1 and crossed.sharing.max() == 1 and not crossed.network.any()
    chips = {target.positions[k][:2] for k in placement.order}
    assert len(chips) == math.prod(target.shape) and sorted(placement.order) == list(range(target.devices))
    # a chip is left once: its cores are neighbours
    assert placement.forward["ring"].links.sum() in (len(chips), 0 if len(chips) == 1 else len(chips))


@pytest.mark.parametrize(
    "box", [(2, 2, 1), (4, 4, 1), (2, 3, 1), (3, 2, 5, 1), (2, 2, 2, 1), (1, 4, 3, 1), (6, 1, 7, 1)]
)
def test_even_boxes_have_a_cycle(box: tuple[int, ...]) -> None:
    places = closed_walk(box)
    assert len(set(places)) == len(places) == math.prod(box)
    for a, b in pairwise([*places, places[0]]):
        assert sum(abs(x - y) for x, y in zip(a, b, strict=True)) == 1


@pytest.mark.parametrize("box", [(3, 3, 1), (1, 8, 1), (3, 5, 7, 1), (1, 1, 2), (2, 3, 2)])
def test_other_boxes_have_a_path_and_cores_lie_together(box: tuple[int, ...]) -> None:
    places = closed_walk(box)
    assert len(set(places)) == len(places) == math.prod(box)
    for a, b in pairwise(places):
        assert sum(abs(x - y) for x, y in zip(a[:-1], b[:-1], strict=True)) == (0 if b[-1] else 1)


@given(
    target=st.sampled_from(
        ["cpu:8", "h100:8", "2*h100:8", "v5e:4x4", "v5e:1x8", "v5p:2x2x6", "v3:4x4", "2*tpu7x:2x2x2", "v5p:4x4x4"]
    ),
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    axes=st.permutations(AXES),
)
def test_any_mesh_that_fits_has_every_device_once(target: str, sizes: list[int], axes: list[str]) -> None:
    mesh = tuple((axis, size) for axis, size in sorted(zip(axes, sizes, strict=False), key=lambda x: AXES.index(x[0])))
    machine, devices = parse_target(target), math.prod(sizes)
    even = any(devices % s == 0 and devices // s <= machine.slice_devices for s in range(1, machine.slices + 1))
    if not even:
        with pytest.raises(BadInput, match="mesh"):
            place_mesh(machine, mesh)
        return
    placement = place_mesh(machine, mesh)
    assert len(set(placement.order)) == len(placement.order) == devices
    assert set(placement.order) <= set(range(machine.devices))
    for crossed in (*placement.forward.values(), *placement.backward.values()):
        assert (crossed.links >= 0).all() and (crossed.sharing >= 1).all()
        assert not (crossed.network & (crossed.links > 0)).any() or machine.slices > 1
    for axis, size in mesh:
        assert len(placement.forward[axis].links) == size


def test_a_line_without_wrap_around_has_one_long_hop_home() -> None:
    assert hops("v5e:1x8", "ring=8").links.tolist() == [1] * 7 + [7]
    assert wired("v5e:1x8", "ring=8").backward["ring"].links.tolist() == [7] + [1] * 7
    assert hops("v5e:1x8", "ring=8").sharing.max() == 1
    assert hops("v5e:1x16", "ring=16").links.tolist() == [1] * 16
    assert hops("v5e:1x16", "ring=16").wrapped.tolist() == [False] * 15 + [True]


@pytest.mark.parametrize(
    ("target", "mesh", "ring", "tensor"),
    [
        ("v5e:4x4", "ring=4,tensor=4", 1, 2),  # blocks of 2x2, which tensor repeats at strides of 2
        ("v5e:16x16", "ring=16,tensor=16", 1, 1),  # rows and columns, closed by their wrap-around links
        ("v4:4x4x4", "ring=16,tensor=4", 1, 1),
        ("v4:2x2x4", "ring=8,tensor=2", 1, 1),
    ],
)
def test_axes_lie_on_compact_boxes(target: str, mesh: str, ring: int, tensor: int) -> None:
    placement = wired(target, mesh)
    assert [placement.forward[axis].links.max() for axis in ("ring", "tensor")] == [ring, tensor]
    assert [placement.forward[axis].sharing.max() for axis in ("ring", "tensor")] == [ring, tensor]


def test_parallel_rings_of_cores_do_not_share_links() -> None:
    assert hops("v3:2x2", "ring=4,tensor=2").sharing.max() == 1
    assert hops("v3:2x2", "ring=8").links.tolist() == [0, 1] * 4


def test_the_outermost_axis_crosses_the_network() -> None:
    placement = wired("2*v5e:4x4", "data=2,ring=16")
    assert placement.forward["data"].network.all() and not placement.forward["ring"].network.any()
    assert hops("2*h100:8", "ring=16").network.tolist() == ([False] * 7 + [True]) * 2
    assert not hops("2*h100:8", "ring=8").network.any()
    assert hops("4*v5e:2x2", "data=2,ring=8", "data").network.all()
    assert hops("4*v5e:2x2", "data=2,ring=8").network.sum() == 2


def test_the_order_is_row_major_in_the_axes_of_the_mesh() -> None:
    placement = wired("v4:4x4x4", "ring=16,tensor=4")
    places = np.array([p.coords for p in placement.target.positions])[np.array(placement.order)].reshape(16, 4, 3)
    apart = np.abs(np.diff(places, axis=0)).sum(-1)
    assert (apart == 1).all()
    assert (np.ptp(places, axis=0).astype(bool).sum(-1) == 2).all()  # a ring stays in a plane


def test_one_device_is_a_mesh_of_its_own() -> None:
    for target in ("h100:8", "2*v5e:4x4", "tpu7x:2x2x1"):
        assert place_mesh(parse_target(target), ()).order == (0,)


def test_meshes_that_do_not_fit() -> None:
    with pytest.raises(BadInput, match="needs 32 devices and v5e:4x4 has 16"):
        wired("v5e:4x4", "ring=32")
    with pytest.raises(BadInput, match="does not divide evenly over the 2 slices"):
        wired("2*h100:8", "ring=9")
    with pytest.raises(BadInput, match="no network_bytes_per_s_one_way"):
        _ = wired("2*v3:2x2", "ring=16").hop_costs


def seconds(target: str, plan: str) -> float:
    machine, parsed = parse_target(target), reference_plan(f"{plan},tile={TILE}")
    costs = datasheet_machine(machine.hardware, WORK, TILE, place_mesh(machine, parsed.mesh or ()))
    return simulate(WORK, parsed, costs).seconds


@pytest.mark.parametrize("layout", ["contiguous", "striped"])
def test_a_long_hop_costs_its_latency_once(layout: str) -> None:
    """Each block crosses all hops but one, so the way home adds its six links to the longest way of a block."""
    plan = f"ring/{layout}@ring=8"
    latency_s = Hardware.load("v5e").figure("hop_latency_s")
    assert latency_s
    longer_s = seconds("v5e:1x8", plan) - seconds("v5e:2x4", plan)
    assert 0 <= longer_s <= 6 * latency_s * (1 + 1e-9)


def test_the_end_of_a_line_gathers_by_one_link_and_a_cycle_both_ways_round() -> None:
    v5e = Hardware.load("v5e")
    latency_s, link = v5e.figure("hop_latency_s"), v5e.figure("link_bytes_per_s_one_way")
    assert latency_s and link
    block = 2 * 8 * 128 * 2 * WORK.seq_len // 8
    line, cycle = 7 * block / link + (7 + 6) * latency_s, 7 / 2 * block / link + 4 * latency_s
    gather_s = seconds("v5e:1x8", "all_gather/striped@ring=8") - seconds("v5e:2x4", "all_gather/striped@ring=8")
    assert gather_s == pytest.approx(line - cycle)


def test_two_nodes_are_limited_by_their_network() -> None:
    h100 = Hardware.load("h100")
    network, link = h100.figure("network_bytes_per_s_one_way"), h100.figure("link_bytes_per_s_one_way")
    assert network and link
    block = 2 * 8 * 128 * 2 * WORK.seq_len // 16
    assert seconds("2*h100:8", "ring/striped@ring=16") >= 15 * block / network
    assert seconds("h100:8", "ring/striped@ring=8") < 7 * 2 * block / network
    rates = wired("2*h100:8", "ring=16").hop_costs["ring"].bytes_per_s
    assert sorted(set(rates.reshape(-1))) == [network, link]


def test_a_gather_between_nodes_goes_through_the_network_of_all_their_devices() -> None:
    h100 = Hardware.load("h100")
    network, link = h100.figure("network_bytes_per_s_one_way"), h100.figure("link_bytes_per_s_one_way")
    assert network and link and 8 * network < link
    costs = datasheet_machine(h100, WORK, TILE, wired("2*h100:8", "ring=16"))
    assert costs.received_bytes_per_s("all-gather", {"ring": 16}) == 8 * network
    apart = datasheet_machine(h100, WORK, TILE, wired("2*h100:8", "data=2,ring=8"))
    over = {"data": {"data": 2}, "ring": {"ring": 8}, "both": {"data": 2, "ring": 8}}
    rates = {name: apart.received_bytes_per_s("all-gather", axes) for name, axes in over.items()}
    assert rates == {"data": network, "ring": link, "both": 8 * network}
    block = 2 * 8 * 128 * 2 * WORK.seq_len // 16
    free = replace(costs, forward=TileCost(0.0, 0.0), memory_bytes_per_s=math.inf)
    plan = reference_plan(f"all_gather/striped@ring=16,tile={TILE}")
    assert simulate(WORK, plan, free).seconds == pytest.approx(15 * block / (8 * network))
    exchanged = reference_plan(f"ulysses@ulysses=8,tile={TILE}")
    wide = datasheet_machine(h100, WORK, TILE, wired("2*h100:4", "ulysses=8"))
    moved = 4 * 8 * 128 * 2 * WORK.seq_len // 8 // 8  # of q, k, v and the output, what a device sends another
    seconds = simulate(WORK, exchanged, replace(wide, forward=TileCost(0.0, 0.0), memory_bytes_per_s=math.inf)).seconds
    assert seconds == pytest.approx(moved * max(4 / network, 3 / link))


@pytest.mark.parametrize(("mesh", "axes"), [("fsdp=512", {"fsdp": 512}), ("data=2,fsdp=256", {"data": 2, "fsdp": 256})])
def test_a_gather_over_slices_takes_the_time_of_its_parts(mesh: str, axes: dict[str, int]) -> None:
    """Of an array of 512 parts in 2 slices of 16 x 16 chips, a device receives one part through its network, and 255 of
    256 pairs of parts through the links of its slice."""
    v6e = Hardware.load("v6e")
    network = v6e.figure("network_bytes_per_s_one_way")
    assert network
    costs = datasheet_machine(v6e, WORK, TILE, wired("2*v6e:16x16", mesh))
    slice = datasheet_machine(v6e, WORK, TILE, wired("v6e:16x16", "fsdp=256"))
    for opcode in ("all-gather", "reduce-scatter", "all-reduce"):
        in_slice_s = 255 / 256 / slice.received_bytes_per_s(opcode, {"fsdp": 256})
        expected_s = 1 / 512 / network + in_slice_s
        assert 511 / 512 / costs.received_bytes_per_s(opcode, axes) == pytest.approx(expected_s)


def test_gradients_over_slices_are_summed_whole() -> None:
    """As compiled: summed in each slice, which takes twice the bytes, then over the slices, and gathered."""
    v6e, gb = Hardware.load("v6e"), 10**9
    network, latency_s = v6e.figure("network_bytes_per_s_one_way"), v6e.figure("network_latency_s")
    hop_s, collective_s = v6e.figure("hop_latency_s"), v6e.figure("collective_latency_s")
    assert network and latency_s and hop_s and collective_s
    plan = reference_plan(f"ring/striped@fsdp=512,tile={TILE}")
    costs = datasheet_machine(v6e, WORK, TILE, wired("2*v6e:16x16", "fsdp=512"))
    sent = StepTransfer("reduce-scatter", ("fsdp",), 511 / 512 * gb, 1, gradients=True)
    in_slice = costs.link_bytes_per_s_one_way * 2  # a gather round one ring, in both directions
    whole_s = 2 * gb / 512 / network + 255 / 256 * gb * (2 / (2 * in_slice) + 1 / in_slice)
    beside_s = collective_s + 2 * 128 * hop_s + latency_s
    assert seconds_sent(sent, plan, costs) == pytest.approx(whole_s + beside_s)
    scattered_s = gb / 512 / network + 255 / 256 * gb * 2 / (2 * in_slice)
    alone_s = seconds_sent(sent._replace(gradients=False), plan, costs)
    assert alone_s == pytest.approx(scattered_s + collective_s + 128 * hop_s + latency_s)
    gpus = datasheet_machine(parse_target("2*h100:8").hardware, WORK, TILE, wired("2*h100:8", "fsdp=16"))
    eight = reference_plan(f"ring/striped@fsdp=16,tile={TILE}")
    assert seconds_sent(sent, eight, gpus) == seconds_sent(sent._replace(gradients=False), eight, gpus)


@pytest.mark.parametrize(("opcode", "rounds"), [("all-gather", 1), ("reduce-scatter", 1), ("all-reduce", 2)])
def test_a_collective_over_slices_goes_through_the_network_once(opcode: str, rounds: int) -> None:
    """Half the chips of a slice, there and back for a sum, and one exchange between the slices."""
    v6e = Hardware.load("v6e")
    costs = datasheet_machine(v6e, WORK, TILE, wired("2*v6e:16x16", "data=2,fsdp=256"))
    hop_s, network_s = v6e.figure("hop_latency_s"), v6e.figure("network_latency_s")
    assert hop_s and network_s and network_s > 1000 * hop_s
    assert travel_s(opcode, {"data": 2, "fsdp": 256}, costs) == pytest.approx(rounds * 128 * hop_s + network_s)
    assert travel_s(opcode, {"data": 2}, costs) == pytest.approx(network_s)
    assert travel_s(opcode, {"fsdp": 256}, costs) == pytest.approx(rounds * 128 * hop_s)
    for time in (
        gather_time(costs, "all-gather", "data", 2, 0),
        all_reduce_time(costs, "data", 2, 0),
        all_to_all_time(costs, "data", 2, 0),
    ):
        assert time.busy_s + time.latency_s == pytest.approx(network_s)


def test_two_hops_of_a_ring_over_two_slices_wait_for_the_network() -> None:
    v6e = Hardware.load("v6e")
    latency_s = wired("2*v6e:4x4", "ring=32").hop_costs["ring"].latency_s
    hop_s, network_s = v6e.figure("hop_latency_s"), v6e.figure("network_latency_s")
    assert latency_s[0].tolist() == 2 * [*15 * [hop_s], network_s]


def test_a_step_of_8b_takes_longer_on_two_slices_than_on_one() -> None:
    """MaxText's steps of Gemma 3 12B, published for 1, 2 and 4 slices of v6e, grow by 6 and 15 %."""
    one, over = step_seconds("v6e:16x16", "fsdp=256"), step_seconds("2*v6e:16x16", "fsdp=512")
    assert 1.03 < over / one < 1.20
    assert one < step_seconds("2*v6e:16x16", "data=2,fsdp=256") < over, "gradients alone cross the network"


def test_the_latency_of_the_network_passes_once_per_pass_of_a_layer_and_opcode() -> None:
    step = step_of_8b("2*v6e:16x16", "fsdp=512")
    first = [each for each in step.run().sent if each.times == step.workload.sizes.layers and not each.follows]
    assert [each.opcode for each in first] == ["all-gather", "all-gather", "reduce-scatter"]
    assert all(seconds_sent(each, step.plan, step.machines[0]) > 32 * 2.3e-3 for each in first)


def step_seconds(target: str, mesh: str) -> float:
    return step_of_8b(target, mesh).seconds()


def step_of_8b(target: str, mesh: str) -> SimulatedStep:
    """A step of llama3-8b with 4 sequences of 8k tokens per chip."""
    machine, plan = parse_target(target), parse_plan(f"ring/zigzag/splash@{mesh},tile=1024")
    work = Workload(
        seq_len=8192, batch=4 * machine.devices, passes="step", model="llama3-8b", **load_model("llama3-8b").step_sizes
    )
    costs = cost_model(machine.hardware, work, plan, place_mesh(machine, plan.mesh or ()))
    return SimulatedStep(work, plan, machine.hardware, [costs])


def test_an_exchange_over_slices_is_limited_by_the_busier_of_links_and_network() -> None:
    v6e = Hardware.load("v6e")
    network = v6e.figure("network_bytes_per_s_one_way")
    assert network
    costs = datasheet_machine(v6e, WORK, TILE, wired("2*v6e:2x4", "ulysses=16"))
    assert all_to_all_time(costs, "ulysses", 16, 10**9).busy_s == pytest.approx(8 * 10**9 / network)


@pytest.mark.parametrize("target", ["2*v6e:2x4", "2*h100:8"])
@pytest.mark.parametrize("opcode", ["collective-permute", "all-to-all"])
def test_a_permutation_over_slices_sends_through_the_network_of_each_device(target: str, opcode: str) -> None:
    hardware = parse_target(target).hardware
    costs = datasheet_machine(hardware, WORK, TILE, wired(target, "ring=16"))
    sent = StepTransfer(opcode, ("ring",), 10**9, times=3)
    seconds = seconds_sent(sent, reference_plan(f"ring/striped@ring=16,tile={TILE}"), costs)
    network, latency_s = hardware.figure("network_bytes_per_s_one_way"), hardware.figure("network_latency_s") or 0.0
    assert network and seconds == pytest.approx(3 * (10**9 / network + latency_s), rel=1e-3), "links' latency is small"


def test_the_datasheet_says_in_a_sentence_what_it_leaves_out() -> None:
    target = parse_target("2*h100:8")
    made = datasheet_machine(target.hardware, WORK, TILE, place_mesh(target, (("ring", 16),)))
    source = made.cost_source
    assert source.left_out == "kernel inefficiency at small blocks; network latency (not published)"
    assert {"hbm_bytes_per_s", "link_bytes_per_s_one_way"} <= {*(source.sources or {})}


def test_the_datasheet_says_which_hops_are_slower() -> None:
    target = parse_target("v5e:1x8")
    made = datasheet_machine(target.hardware, WORK, TILE, place_mesh(target, (("ring", 8),)))
    (ring,) = (made.cost_source.links.slower_hops or {}).items()
    assert ring == ("ring", SlowestHop(longest_latency_s=ring[1].longest_latency_s))
    assert ring[1].longest_latency_s == pytest.approx(7e-6)
    target = parse_target("v5e:2x4")
    made = datasheet_machine(target.hardware, WORK, TILE, place_mesh(target, (("ring", 8),)))
    assert made.cost_source.links.slower_hops is None


@pytest.mark.parametrize("row", json.loads(RECORDS.read_text()), ids=lambda row: f"{row['target']}-{row['name']}")
def test_compilers_divide_a_collective_over_slices_into_these_parts(row: dict) -> None:
    """What `received_bytes_per_s` and `seconds_sent` count; a scatter in a slice may be a sum (`all_reduce_for`)."""
    scatter = ("all-reduce", "reduce-scatter")
    parts = ["scatter" if part in scatter else part for part in row["parts"]]
    divided = {
        "gather": ["ALL_GATHER", "all-gather"],
        "scatter": ["scatter", "REDUCE_SCATTER"],
        "sum": ["scatter", "ALL_REDUCE", "all-gather"],
        "exchange": ["ALL_TO_ALL"],
        "data": 2 * ["ALL_REDUCE", "all-gather", "scatter"],
        "fsdp": 2 * ["ALL_REDUCE", "ALL_GATHER", "all-gather", "scatter", "all-gather"],
    }
    assert sorted(parts) == sorted(divided[row["name"]])
    assert set(row["hidden"]) == ({"ALL_REDUCE"} if row["name"] in ("data", "fsdp") else set())
