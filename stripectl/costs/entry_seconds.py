"""The seconds of a tile from its entry in a table (`cost_tables`).

On a GPU they are the seconds of the table, times the ratio of the clock rates where the table is another GPU's. On a
TPU seconds are cycles at the clock rate, or, where measured matmuls are published, at the fraction of the rate that
they reach. A step of a Pallas kernel also waits for the blocks that it loads or stores, which no cycle of its entry
shows; a machine has this wait where published times show it.
"""

import math

from stripectl.core.kernel import Kernel
from stripectl.costs.cost_entries import CostEntry
from stripectl.costs.cost_model import TileCost
from stripectl.costs.waves import Wave
from stripectl.hardware.profile import Hardware


def cost_of(
    entry: CostEntry | Wave, kernel: Kernel, passes: str, hardware: Hardware, dtype: str, kv_heads: int, group: int
) -> TileCost:
    """Seconds of an entry of a pass on a device with `kv_heads` key/value heads, each shared by `group` query heads."""
    if isinstance(entry, Wave):
        cores, tile_s = int(hardware.compiler["core_count"]), entry.tile_s * clock_ratio(hardware)
        return TileCost(tile_s, tile_s, call_s=entry.call_s, processors=cores, block=entry.block)
    gpu = hardware.kind == "gpu"
    unit_s = 1e-6 * clock_ratio(hardware) if gpu else 1 / effective_clock_hz(hardware, dtype)
    idle = cores_idle(kernel, hardware, kv_heads)
    scale, wait_s = idle * unit_s, idle * step_wait_s(kernel, passes, hardware)
    return TileCost(
        whole_s=entry.whole * scale + wait_s,
        boundary_s=entry.boundary * scale + wait_s,
        dead_s=entry.dead * scale,
        row_s=(entry.row + entry.column / group) * scale,
        masks_all=kernel.masks_all,
    )


def step_wait_s(kernel: Kernel, passes: str, hardware: Hardware) -> float:
    """Seconds that the steps of a live tile wait for their blocks, which no bundle shows, with all cores busy."""
    parts = kernel.bundles[passes] if kernel.bundles else ()
    blocks = sum(part.blocks / (hardware.cores if part.shared else 1) for part in parts)
    return blocks * (hardware.figure("block_wait_s") or 0.0)


def cores_idle(kernel: Kernel, hardware: Hardware, kv_heads: int) -> float:
    """How much longer a device takes than with all cores busy. Kernels whose grids list live tiles distribute key/value
    heads over the cores; kernels that send hops distribute them evenly or not at all."""
    if not kernel.bundles or kernel.masks_all:
        return 1.0
    cores = math.gcd(kv_heads, hardware.cores) if kernel.makes_hops else hardware.cores
    return -(-kv_heads // cores) * hardware.cores / kv_heads


def clock_ratio(hardware: Hardware) -> float:
    """The clock rate of the GPU whose table is read, over this GPU's; 1 where one of them is unknown."""
    name = "clock_rate_ghz"
    own, table = hardware.compiler.get(name), Hardware.load(hardware.tables_of).compiler.get(name)
    return float(table) / float(own) if own and table else 1.0


def effective_clock_hz(hardware: Hardware, dtype: str) -> float:
    """The clock rate at which cycles count: the profile's rate, times the fraction of the peak that published matmuls
    reach."""
    peak, reached = hardware.flops_per_s(dtype), hardware.figure(f"achievable_flops_per_s_{dtype}")
    return hardware.figures["clock_hz"] * (reached / peak if peak and reached else 1.0)
