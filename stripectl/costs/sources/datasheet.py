"""A machine whose tiles take the times that its published figures allow: nothing is timed."""

import math

from stripectl.core.kernel import Kernel, kernels
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan
from stripectl.core.workload import DTYPE_BYTES, Workload
from stripectl.costs.cost_model import CostModel
from stripectl.costs.padding import ACCUMULATOR_BYTES
from stripectl.costs.sources.gated_chunks import chunk_work, chunk_work_in_stages, gated_chunk_costs
from stripectl.hardware.profile import Hardware, needed_figures
from stripectl.results.cost_source import CostOrigin, CostSource, Rates
from stripectl.results.tile_cost import TileCost

LEFT_OUT = "kernel inefficiency at small blocks"


def datasheet_costs(hardware: Hardware, workload: Workload, plan: Plan, memory_share: float = 1.0) -> CostModel:
    """A machine, without links, whose tiles take their matmuls at the peak rate or their K/V at a share of the memory's
    rate, whichever is longer, and what else the plan's kernel reads and writes in memory.

    Raises:
        BadInput: the profile lacks a figure that this needs.
    """
    achievable, kernel = (
        hardware.figure(f"achievable_flops_per_s_{workload.dtype}"),
        kernels[plan.kernel] if plan.kernel else None,
    )
    needed = {"hbm_bytes_per_s": hardware.figure("hbm_bytes_per_s")}
    needed[f"matmul_flops_per_s_{workload.dtype}"] = achievable or hardware.flops_per_s(workload.dtype)
    memory, rate = needed_figures(hardware, needed)
    source = CostSource(
        source=CostOrigin.DATASHEET,
        rates=Rates(flops_per_s=rate, rate_is="achievable" if achievable else "peak"),
        sources={name: hardware.sources[name] for name in needed if name in hardware.sources},
        left_out=LEFT_OUT,
    )
    forward, backward = (
        roofline(workload, plan.tiles[passes], rate, memory_share * memory, kernel)[passes == "backward"]
        for passes in ("forward", "backward")
    )
    return CostModel(forward, backward, source, overlaps=hardware.overlaps)


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
    touches, sharing = (kernel.costs.score_touches, kernel.costs.rows_per_fetch) if kernel else ({}, 1)
    if workload.gated:
        work = chunk_work_in_stages if kernel and kernel.costs.in_stages else chunk_work
        return gated_chunk_costs(work(workload, tile.block_kv), flops_per_s, memory_bytes_per_s)
    if workload.attention == "linear":
        at_once = kernel is not None and bool(kernel.costs.bundles)
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
