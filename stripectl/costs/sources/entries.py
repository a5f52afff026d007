"""A machine whose tiles have entries: costs with all cores of a device busy, from a table or from small programs.

On a TPU seconds are cycles at the clock rate, or, where measured matmuls are published, at the fraction of the rate
that they reach. A step of a Pallas kernel also waits for the blocks that it loads or stores, which no cycle of its
entry shows; a machine has this wait where published times show it.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from stripectl.core.kernel import Kernel, kernels
from stripectl.core.plan import Plan
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import CostModel
from stripectl.costs.power_limit import SHARE, without_pauses
from stripectl.costs.shape import TileShape, shapes_of
from stripectl.hardware.profile import Hardware
from stripectl.results.cost_source import CostOrigin, CostSource, Rates, TableSource
from stripectl.results.tile_cost import TileCost

LEFT_OUT = "waits for memory inside of kernels"


class Entry(NamedTuple):
    """The cost of a tile with all cores of a device busy, its origin, and the table or the program that has it."""

    cost: TileCost
    origin: CostOrigin
    table: TableSource

    @property
    def is_exact(self) -> bool:
        """Whether the table has the shape itself."""
        return self.table.interpolated_from is None


def entry_cost_model(hardware: Hardware, workload: Workload, plan: Plan, known: Mapping[str, Entry]) -> CostModel:
    """The machine with the entries of each pass, without links."""
    costs = {
        passes: without_pauses(on_device(known[passes].cost, shape, hardware), hardware, workload.dtype)
        for passes, shape in shapes_of(workload, plan).items()
    }
    forward, backward = known["forward"], known.get("backward")
    clock_hz, sources = None, dict[str, str]()
    if published_hz := hardware.figure("clock_hz"):
        clock_hz = effective_clock_hz(hardware, workload.dtype)
        sources["clock_hz"] = hardware.sources["clock_hz"]
        reached = f"achievable_flops_per_s_{workload.dtype}"
        if clock_hz != published_hz:
            sources[reached] = hardware.sources[reached]
    if (share := f"{SHARE}{workload.dtype}") in hardware.figures:
        sources[share] = hardware.sources[share]
    if waits := any(step_wait_s(kernels[plan.kernel], passes, hardware) for passes in known):
        sources["block_wait_s"] = hardware.sources["block_wait_s"]
    source = CostSource(
        source=forward.origin,
        entry=forward.table,
        backward_costs=backward.table if backward and backward.table != forward.table else None,
        rates=Rates(clock_hz=clock_hz),
        sources=sources,
        left_out=None if waits else LEFT_OUT,
        forward=costs["forward"],
        backward=costs.get("backward"),
    )
    return CostModel(
        costs["forward"], costs.get("backward", TileCost()), overlaps=hardware.overlaps, cost_source=source
    )


def on_device(cost: TileCost, shape: TileShape, hardware: Hardware) -> TileCost:
    """The cost on a device, whose heads may leave cores idle, with the waits of its kernel; columns are shared by the
    query heads of a key/value head."""
    kernel = kernels[shape.kernel]
    if cost.processors:
        return cost
    idle = cores_idle(kernel, hardware, shape.kv_heads)
    wait_s = idle * step_wait_s(kernel, shape.passes, hardware)
    return TileCost(
        whole_s=cost.whole_s * idle + wait_s,
        boundary_s=cost.boundary_s * idle + wait_s,
        dead_s=cost.dead_s * idle,
        row_s=(cost.row_s + cost.column_s / shape.group) * idle,
        masks_all=kernel.costs.masks_all,
    )


def step_wait_s(kernel: Kernel, passes: str, hardware: Hardware) -> float:
    """Seconds that the steps of a live tile wait for their blocks, which no bundle shows, with all cores busy."""
    parts = kernel.costs.bundles[passes] if kernel.costs.bundles else ()
    blocks = sum(part.blocks / (hardware.cores if part.shared else 1) for part in parts)
    return blocks * (hardware.figure("block_wait_s") or 0.0)


def cores_idle(kernel: Kernel, hardware: Hardware, kv_heads: int) -> float:
    """How much longer a device takes than with all cores busy. Kernels whose grids list live tiles distribute key/value
    heads over the cores; kernels that send hops distribute them evenly or not at all."""
    if not kernel.costs.bundles or kernel.costs.masks_all:
        return 1.0
    cores = math.gcd(kv_heads, hardware.cores) if kernel.makes_hops else hardware.cores
    return -(-kv_heads // cores) * hardware.cores / kv_heads


def effective_clock_hz(hardware: Hardware, dtype: str) -> float:
    """The clock rate at which cycles count: the profile's rate, times the fraction of the peak that published matmuls
    reach."""
    peak, reached = hardware.flops_per_s(dtype), hardware.figure(f"achievable_flops_per_s_{dtype}")
    return hardware.figures["clock_hz"] * (reached / peak if peak and reached else 1.0)
