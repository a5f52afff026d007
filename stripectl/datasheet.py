"""A machine as its datasheet has it: nothing is timed."""

from typing import Any

from stripectl import BadInput
from stripectl.hardware import Hardware
from stripectl.layout import Tile
from stripectl.machine import Hops, Machine, TileCost
from stripectl.simulate import ACCUMULATOR_BYTES
from stripectl.wiring import Wiring
from stripectl.workload import DTYPE_BYTES, Workload

LEFT_OUT = "kernel inefficiency at small blocks; the copies of a loop, rolled or unrolled"


def datasheet_machine(hardware: Hardware, workload: Workload, tile: Tile, wiring: Wiring | None = None) -> Machine:
    """A machine from its datasheet: a tile takes its matmuls at the peak rate or its K/V at the memory's, whichever is
    longer. A hop takes what it crosses where the wiring of the plan's mesh is given, else one link.

    Raises:
        BadInput: the profile lacks a figure that this needs.
    """
    achievable = hardware.figure(f"achievable_flops_per_s_{workload.dtype}")
    needed = {name: hardware.figure(name) for name in ("hbm_bytes_per_s", "link_bytes_per_s_one_way")}
    needed[f"matmul_flops_per_s_{workload.dtype}"] = achievable or hardware.flops_per_s(workload.dtype)
    if lacking := [name for name, value in needed.items() if value is None]:
        raise BadInput(
            f"the profile of {hardware.name} has no {' and no '.join(lacking)}, so it cannot be simulated from its "
            f"datasheet. Try another --dtype, or --hardware with a profile that stripectl topology --measure wrote."
        )
    memory, link, rate = (value or 0.0 for value in needed.values())
    latency, hops = hardware.figure("hop_latency_s"), wiring.hops() if wiring else {}
    detail: dict[str, Any] = {
        "flops_per_s": rate,
        "rate_is": "achievable" if achievable else "peak",
        "hop": {"latency_s": latency, "bytes_per_s_one_way": link},
        "sources": {name: hardware.sources[name] for name in needed if name in hardware.sources},
        "left_out": LEFT_OUT + ("" if latency else "; hop latency (not published)"),
    }
    if slower := {axis: said for axis, hop in hops.items() if (said := slower_hops(hop, link, latency or 0.0))}:
        detail["slower_hops"] = slower
    if wiring and any(crossed.network.any() for crossed in wiring.onward.values()):
        detail["left_out"] += "; network latency (not published)"
    costs = roofline(workload, tile, rate, memory)
    return Machine(*costs, latency or 0.0, link, hardware.overlaps, "datasheet", detail, hops=hops)


def roofline(
    workload: Workload, tile: Tile, flops_per_s: float, memory_bytes_per_s: float
) -> tuple[TileCost, TileCost]:
    """Tiles of the forward and the backward pass (Williams et al. 2009, roofline); each row of tiles reads and writes
    its float32 accumulators once a call."""
    element, pairs = DTYPE_BYTES[workload.dtype], tile.block_q * tile.block_kv

    def cost(matmuls: int, rows_moved: int, column_bytes: int) -> TileCost:
        """`column_bytes` an element of K/V (read; backward also dK/dV, read and written in float32)."""
        moved = 2 * tile.block_kv * workload.head_dim * column_bytes
        whole = max(2 * matmuls * pairs * workload.head_dim / flops_per_s, moved / memory_bytes_per_s)
        row = rows_moved * tile.block_q * workload.head_dim * ACCUMULATOR_BYTES / memory_bytes_per_s
        return TileCost(whole_s=whole, boundary_s=whole, row_s=row)

    return cost(2, 2, element), cost(5, 4, element + 2 * ACCUMULATOR_BYTES)


def slower_hops(hops: Hops, link_bytes_per_s: float, latency_s: float) -> dict[str, float]:
    """The worst of an axis whose hops are not all single links of their own."""
    slowest, longest = float(hops.bytes_per_s.min()), float(hops.latency_s.max())
    said = {"slowest_bytes_per_s": slowest} if slowest < link_bytes_per_s else {}
    return said | ({"longest_latency_s": longest} if longest > latency_s else {})
