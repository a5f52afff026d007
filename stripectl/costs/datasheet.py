"""The cost model of a machine from its datasheet: nothing is timed."""

import math
from collections.abc import Mapping
from dataclasses import replace

from stripectl.core.kernel import Kernel
from stripectl.core.layout import Tile
from stripectl.core.workload import DTYPE_BYTES, Workload
from stripectl.costs.cost_model import CostModel, TileCost
from stripectl.costs.gated_costs import chunk_work, chunk_work_in_stages, gated_chunk_costs
from stripectl.costs.node_collectives import LARGE_HOP, SOURCE, node_collectives
from stripectl.costs.padding import ACCUMULATOR_BYTES
from stripectl.errors import BadInput
from stripectl.hardware.links import Hops
from stripectl.hardware.placement import MeshPlacement
from stripectl.hardware.profile import Hardware
from stripectl.results.cost_source import CostOrigin, CostSource, HopCost, SlowestHop

LINK = "link_bytes_per_s_one_way"
LEFT_OUT = "kernel inefficiency at small blocks"


def datasheet_cost_model(
    hardware: Hardware,
    workload: Workload,
    tile: Tile,
    placement: MeshPlacement | None = None,
    backward: Tile | None = None,
    kernel: Kernel | None = None,
) -> CostModel:
    """A machine from its datasheet: a tile takes its matmuls at the peak rate or its K/V at the memory's rate,
    whichever is longer. `backward` is the tile of the backward pass where it differs; `kernel` says what else the
    kernel reads and writes in memory. A hop takes the time of the links that it crosses where the placement of the
    plan's mesh is given, otherwise of one link.

    Raises:
        BadInput: the profile lacks a figure that this needs.
    """
    achievable = hardware.figure(f"achievable_flops_per_s_{workload.dtype}")
    needed = {"hbm_bytes_per_s": hardware.figure("hbm_bytes_per_s")}
    needed[f"matmul_flops_per_s_{workload.dtype}"] = achievable or hardware.flops_per_s(workload.dtype)
    memory, rate = figures(hardware, needed)
    source = CostSource(
        source=CostOrigin.DATASHEET,
        flops_per_s=rate,
        rate_is="achievable" if achievable else "peak",
        sources={name: hardware.sources[name] for name in needed if name in hardware.sources},
        left_out=LEFT_OUT,
    )
    forward, _ = roofline(workload, tile, rate, memory, kernel)
    _, back = roofline(workload, backward or tile, rate, memory, kernel)
    return with_links(hardware, CostModel(forward, back, 0.0, 0.0, hardware.overlaps, source), placement)


def with_links(hardware: Hardware, machine: CostModel, placement: MeshPlacement | None) -> CostModel:
    """The machine with hops from the datasheet; its cost source adds their cost, the source, and what is not included.

    Raises:
        BadInput: the profile lacks the rate of its links.
    """
    (link,) = figures(hardware, {LINK: hardware.figure(LINK)})
    latency, hops = hardware.figure("hop_latency_s"), placement.hop_costs if placement else {}
    across = placement is not None and any(crossed.network.any() for crossed in placement.forward.values())
    node = node_collectives(hardware)
    hop, sources = HopCost(latency_s=latency, bytes_per_s_one_way=link), {LINK: hardware.sources[LINK]}
    if node:
        large = node.hop(LARGE_HOP)
        hop = HopCost(latency_s=large.latency_s, bytes_per_s_one_way=LARGE_HOP / large.busy_s)
        sources["collectives"] = SOURCE
    unknown = ["hop latency (not published)"] * (not hop.latency_s) + ["network latency (not published)"] * across
    known, slower = machine.cost_source, {axis: slowest_hop(hop, link, latency or 0.0) for axis, hop in hops.items()}
    source = replace(
        known,
        hop=hop,
        sources={**(known.sources or {}), **sources},
        left_out="; ".join(filter(None, [known.left_out, *unknown])),
        slower_hops={axis: hop for axis, hop in slower.items() if hop} or None,
    )
    spreads = placement.collective_spreads if placement else {}
    sums = ("+".join(sorted(axes)) for axes, each in spreads.items() if each.gather_ways is None)
    source = replace(source, gathers_by_all_reduce=tuple(sums))
    memory = hardware.figure("achievable_hbm_bytes_per_s") or hardware.figure("hbm_bytes_per_s") or math.inf
    return replace(
        machine,
        hop_latency_s=latency or 0.0,
        link_bytes_per_s_one_way=link,
        node=node,
        torus=bool(hardware.torus_dims),
        memory_bytes_per_s=memory,
        fill_bytes_per_s=hardware.figure("fill_bytes_per_s") or memory,
        collective_latency_s=hardware.figure("collective_latency_s") or 0.0,
        hops=hops,
        collective_spreads=spreads,
        all_reduce_for=hardware.all_reduce_for,
        cost_source=source,
    )


def figures(hardware: Hardware, needed: Mapping[str, float | None]) -> list[float]:
    """The figures that a time needs.

    Raises:
        BadInput: the profile lacks one of them.
    """
    if lacking := [name for name, value in needed.items() if value is None]:
        raise BadInput(
            f"the profile of {hardware.name} has no {' and no '.join(lacking)}, so its datasheet gives no time. Try "
            f"another --dtype, or --hardware with a profile that stripectl topology --measure wrote."
        )
    return [value for value in needed.values() if value is not None]


def roofline(
    workload: Workload,
    tile: Tile,
    flops_per_s: float,
    memory_bytes_per_s: float,
    kernel: Kernel | None = None,
) -> tuple[TileCost, TileCost]:
    """Tiles of the forward and the backward pass (Williams et al. 2009, roofline); each row of tiles reads and writes
    its float32 accumulators once per call."""
    element, pairs = DTYPE_BYTES[workload.dtype], tile.scores
    touches, sharing = (kernel.score_touches, kernel.rows_per_fetch) if kernel else ({}, 1)
    if workload.gated:
        work = chunk_work_in_stages if kernel and kernel.in_stages else chunk_work
        return gated_chunk_costs(work(workload, tile.block_kv), flops_per_s, memory_bytes_per_s)
    if workload.attention == "linear":
        at_once = kernel is not None and bool(kernel.bundles)
        return chunk_costs(workload, tile, flops_per_s, memory_bytes_per_s, at_once)

    keys, values = workload.head_dim, workload.value_dim

    def cost(passes: str, row_elements: int, column_bytes: int) -> TileCost:
        """`row_elements` per query are read or written; `column_bytes` are the bytes per element of K/V (read; backward
        also dK/dV, read and written in float32)."""
        fetched = tile.block_kv * (keys + values) * column_bytes / sharing
        moved = fetched + pairs * touches.get(passes, 0) * ACCUMULATOR_BYTES
        whole = max(2 * pairs * matmul_elements(workload, passes) / flops_per_s, moved / memory_bytes_per_s)
        row = row_elements * tile.block_q * ACCUMULATOR_BYTES / memory_bytes_per_s
        return TileCost(whole_s=whole, boundary_s=whole, row_s=row)

    backward = cost("backward", 3 * keys + values, element + 2 * ACCUMULATOR_BYTES)
    return cost("forward", 2 * values, element), backward


def matmul_elements(workload: Workload, passes: str) -> int:
    """Multiplications of a query with a key in a pass. The forward pass has scores, and weights times values; the
    backward pass has scores, dq and dk with the size of a head of keys, and dv and the gradient of weights with the
    size of a head of values."""
    keys, values = workload.head_dim, workload.value_dim
    return keys + values if passes == "forward" else 3 * keys + 2 * values


def intensity(workload: Workload, tile: Tile, backward: Tile, kernel: Kernel | None = None) -> float:
    """FLOPs per byte of the tiles of a workload's passes: FLOPs divided by the seconds of a machine whose memory moves
    a byte per second and whose matmuls take no time."""
    passes = [("forward", roofline(workload, tile, math.inf, 1.0, kernel)[0], tile)]
    if workload.passes != "forward":
        passes.append(("backward", roofline(workload, backward, math.inf, 1.0, kernel)[1], backward))
    done = sum(2 * matmul_elements(workload, each) for each, _, _ in passes)
    return done / sum(cost.whole_s / each.scores for _, cost, each in passes)


def chunk_costs(
    workload: Workload, tile: Tile, flops_per_s: float, memory_bytes_per_s: float, at_once: bool = False
) -> tuple[TileCost, TileCost]:
    """The costs of linear attention: a tile of keys is added to a state, a row of tiles reads a state, and boundary
    tiles have scores; with `at_once` a boundary tile also reads the state and adds its keys. A backward pass costs as
    much as three forward passes."""
    size, element = workload.head_dim, DTYPE_BYTES[workload.dtype]
    keys = 2 * tile.block_kv * size * element / memory_bytes_per_s
    state = max(2 * tile.block_kv * size**2 / flops_per_s, keys)
    accumulators = 2 * tile.block_q * size * ACCUMULATOR_BYTES / memory_bytes_per_s
    row = 2 * tile.block_q * size**2 / flops_per_s + accumulators
    scores = max(4 * tile.scores * size / flops_per_s, keys)
    if at_once:
        flops = 4 * tile.scores * size + 2 * (tile.block_q + tile.block_kv) * size**2
        scores = max(flops / flops_per_s, keys + accumulators)
    return TileCost(state, scores, row_s=row), TileCost(3 * state, 3 * scores, row_s=3 * row)


def slowest_hop(hops: Hops, link_bytes_per_s: float, latency_s: float) -> SlowestHop | None:
    """The slowest hop of an axis whose hops are not all separate single links; None where they are."""
    slowest, longest = float(hops.bytes_per_s.min()), float(hops.latency_s.max())
    if slowest >= link_bytes_per_s and longest <= latency_s:
        return None
    return SlowestHop(
        slowest_bytes_per_s=slowest if slowest < link_bytes_per_s else None,
        longest_latency_s=longest if longest > latency_s else None,
    )
