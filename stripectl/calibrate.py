"""Where the simulator's costs come from: tiles timed on this machine, the compiler of another, or its datasheet.

A calibration times one key/value group on blocks of whole, causal and dead scores, fits one cost a kind of tile, and
is judged on a block that was not in the fit.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stripectl import BadInput
from stripectl.hardware import Hardware
from stripectl.hlo import ITEM_BYTES
from stripectl.layout import UNBOUNDED, Rectangle, Tile, TileCount, count_pairs, count_tiles, layouts
from stripectl.machine import Hops, Machine, TileCost
from stripectl.plan import BATCH_AXES, HEAD_AXES, Plan
from stripectl.simulate import ACCUMULATOR_BYTES
from stripectl.wiring import Wiring
from stripectl.workload import DTYPE_BYTES, Workload

BLOCKS = (4096, 8192)
HELD_OUT = 6144
BANDS = {"whole": (-UNBOUNDED, UNBOUNDED), "causal": (-UNBOUNDED, 0), "dead": (-UNBOUNDED, -UNBOUNDED)}
LEFT_OUT = "kernel inefficiency at small blocks; the copies of a loop, rolled or unrolled"
ESTIMATES_LEFT_OUT = (
    "the compiler's cost model is no run: waits for memory between its fusions, and whatever it estimates wrongly"
)
COSTS = ("whole_s", "boundary_s", "dead_s", "row_s", "call_s")
HOP_BYTES = (2**16, 2**20, 2**24)


@dataclass(frozen=True)
class Block:
    """A square block of scores to time: `rows` queries and keys under one band."""

    rows: int
    band: str

    @property
    def rectangle(self) -> Rectangle:
        return Rectangle(0, 0, self.rows, self.rows, *BANDS[self.band])


def blocks_for(tile: Tile) -> tuple[list[Block], Block]:
    """(blocks to fit, the block held out): 4k and 8k, or what holds four tiles where tiles are larger."""
    scale = max(1, -(-4 * max(tile) // BLOCKS[1]))
    fitted = [Block(rows * scale, band) for rows in BLOCKS for band in BANDS]
    return fitted, Block(HELD_OUT * scale, "causal")


def tiles_of(block: Block, tile: Tile) -> TileCount:
    return count_tiles([block.rectangle], tile)


def fit_tiles(blocks: Sequence[Block], seconds: Sequence[float], tile: Tile, heads: int) -> TileCost:
    """Non-negative costs of a whole, boundary and dead tile of one head, and of a call, that explain the times best
    (least squares of relative errors)."""
    from scipy.optimize import nnls

    counts = [tiles_of(block, tile) for block in blocks]
    rows = [[heads * float(kind) for kind in (c.whole, c.boundary, c.dead)] + [1.0] for c in counts]
    weights = 1 / np.asarray(seconds)
    costs, _ = nnls(np.asarray(rows) * weights[:, None], np.ones(len(rows)))
    whole, boundary, dead, call = (float(cost) for cost in costs)
    return TileCost(whole_s=whole, boundary_s=boundary, dead_s=dead, call_s=call)


def fit_hop(nbytes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """(latency in seconds, bytes/s one way) of a hop, from hops of several sizes."""
    from scipy.optimize import nnls

    weights = 1 / np.asarray(seconds)
    rows = np.stack([np.ones(len(nbytes)), np.asarray(nbytes, float)], 1)
    (latency, per_byte), _ = nnls(rows * weights[:, None], np.ones(len(nbytes)))
    return float(latency), 1 / max(float(per_byte), 1e-18)


def measured_machine(
    times: Mapping[str, Mapping[Block, float]], tile: Tile, heads: int, hop: tuple[float, float] | None, overlaps: bool
) -> Machine:
    """A machine whose tiles were timed: `times[pass][block]` in seconds, the held-out block among them."""
    fitted, held_out = blocks_for(tile)
    costs: dict[str, TileCost] = {}
    detail: dict[str, Any] = {"blocks": [f"{block.rows} {block.band}" for block in fitted], "tile": str(tile)}
    for name in ("forward", "backward"):
        costs[name] = fit_tiles(fitted, [times[name][block] for block in fitted], tile, heads)
        predicted, taken = float(costs[name].seconds(tiles_of(held_out, tile), heads)), times[name][held_out]
        detail[name] = {
            **{kind: getattr(costs[name], kind) for kind in ("whole_s", "boundary_s", "dead_s", "call_s")},
            "held_out": {
                "block": f"{held_out.rows} {held_out.band}",
                "measured_s": taken,
                "error": predicted / taken - 1,
            },
        }
    latency, rate = hop or (0.0, float("inf"))
    detail["hop"] = {"latency_s": latency, "bytes_per_s_one_way": rate} if hop else None
    return Machine(costs["forward"], costs["backward"], latency, rate, overlaps, "measured_tile", detail)


def datasheet_machine(hardware: Hardware, workload: Workload, tile: Tile, wiring: Wiring | None = None) -> Machine:
    """A machine from its datasheet: a tile takes its matmuls at the peak rate or its K/V at the memory's, whichever is
    longer (Williams et al. 2009, roofline); each row of tiles reads and writes its float32 accumulators once a call. A
    hop takes what it crosses where the wiring of the plan's mesh is given, else one link.

    Raises:
        BadInput: the profile lacks a figure that this needs.
    """
    names = ("hbm_bytes_per_s", "link_bytes_per_s_one_way")
    memory, link = (hardware.figure(name) for name in names)
    achievable = hardware.figure(f"achievable_flops_per_s_{workload.dtype}")
    rate = achievable or hardware.flops_per_s(workload.dtype)
    needed = dict(zip((*names, f"matmul_flops_per_s_{workload.dtype}"), (memory, link, rate), strict=True))
    if lacking := [name for name, value in needed.items() if value is None]:
        raise BadInput(
            f"the profile of {hardware.name} has no {' and no '.join(lacking)}, so it cannot be simulated from its "
            f"datasheet. Try another --dtype, or --hardware with a profile that stripectl topology --measure wrote."
        )
    assert memory and link and rate
    element, pairs = DTYPE_BYTES[workload.dtype], tile.block_q * tile.block_kv

    def cost(matmuls: int, rows_moved: int, column_bytes: int) -> TileCost:
        """`column_bytes` an element of K/V (read; backward also dK/dV, read and written in float32)."""
        moved = 2 * tile.block_kv * workload.head_dim * column_bytes
        whole = max(2 * matmuls * pairs * workload.head_dim / rate, moved / memory)
        row = rows_moved * tile.block_q * workload.head_dim * ACCUMULATOR_BYTES / memory
        return TileCost(whole_s=whole, boundary_s=whole, row_s=row)

    latency = hardware.figure("hop_latency_s")
    used = {name: hardware.sources[name] for name in needed if name in hardware.sources}
    detail = {
        "flops_per_s": rate,
        "rate_is": "achievable" if achievable else "peak",
        "hop": {"latency_s": latency, "bytes_per_s_one_way": link},
        "sources": used,
        "left_out": LEFT_OUT + ("" if latency else "; hop latency (not published)"),
    }
    hops = wiring.hops() if wiring else {}
    if slower := {axis: said for axis, hop in hops.items() if (said := slower_hops(hop, link, latency or 0.0))}:
        detail["slower_hops"] = slower
    if wiring and any(crossed.network.any() for crossed in wiring.onward.values()):
        detail["left_out"] += "; network latency (not published)"
    costs = cost(2, 2, element), cost(5, 4, element + 2 * ACCUMULATOR_BYTES)
    return Machine(*costs, latency or 0.0, link, hardware.overlaps, "datasheet", detail, hops=hops)


def slower_hops(hops: Hops, link_bytes_per_s: float, latency_s: float) -> dict[str, float]:
    """The worst of an axis whose hops are not all single links of their own."""
    slowest, longest = float(hops.bytes_per_s.min()), float(hops.latency_s.max())
    said = {"slowest_bytes_per_s": slowest} if slowest < link_bytes_per_s else {}
    return said | ({"longest_latency_s": longest} if longest > latency_s else {})


def compiled_machine(
    hardware: Hardware, workload: Workload, plan: Plan, facts: Mapping[str, Any], wiring: Wiring
) -> Machine:
    """A machine whose tiles take what the compiler estimates and whose collectives hide where its schedule computes
    tiles beside them; links, and tiles without an estimate, are the datasheet's.

    Raises:
        BadInput: the profile lacks a figure that this needs.
    """
    assert plan.tile
    machine = datasheet_machine(hardware, workload, plan.tile, wiring)
    exposed = exposed_transfers(facts["collectives"])
    clock, cycles, bundles = hardware.figure("clock_hz"), facts["cycles"] or {}, facts["bundles"]
    shown = {"exposed": {" ".join(map(str, key)): share for key, share in sorted(exposed.items())}}
    estimated = bool(clock) and all(each["whole"] for each in cycles.values())
    if not clock or not cycles or not (estimated or bundles):
        missing = "cycles: the compiler estimates none, so tiles are the datasheet's; " + machine.detail["left_out"]
        return replace(machine, exposed=exposed, detail=machine.detail | shown | {"left_out": missing})
    live = live_rectangles(workload, plan)
    costs = {passes: cycle_cost(each, clock, plan.shards, live) for passes, each in cycles.items()}
    if not estimated:
        peak = hardware.flops_per_s(workload.dtype)
        costs = {
            passes: bundle_cost(bundles, passes, cost, clock, peak, workload, plan) for passes, cost in costs.items()
        }
    detail = {
        "clock_hz": clock,
        **{passes: {name: getattr(cost, name) for name in COSTS} for passes, cost in costs.items()},
        **{name: machine.detail[name] for name in ("hop", "slower_hops") if name in machine.detail},
        "sources": {name: hardware.sources[name] for name in ("clock_hz", "link_bytes_per_s_one_way")},
        "left_out": ESTIMATES_LEFT_OUT,
        **shown,
    }
    return replace(
        machine,
        forward=costs["forward"],
        backward=costs.get("backward", machine.backward),
        source="estimated_cycles" if estimated else "bundles",
        exposed=exposed,
        detail=detail,
    )


def cycle_cost(cycles: Mapping[str, float], clock_hz: float, calls: int, live: float) -> TileCost:
    """Seconds from cycles; what is no tile is spread over the calls of the kernel, branches as far as they are live."""
    whole, boundary, row = (cycles[name] / clock_hz for name in ("whole", "boundary", "row"))
    rest = (cycles["other"] + live * cycles["branch"]) / clock_hz
    return TileCost(whole_s=whole, boundary_s=boundary, row_s=row, call_s=rest / calls)


def live_rectangles(workload: Workload, plan: Plan) -> float:
    """The share of rectangles, over all rounds, that hold a live score, on the device with the most."""
    layout, shards = layouts[plan.layout], plan.shards
    me, rows = np.arange(shards), workload.seq_len // shards
    rounds = (layout.bands(me, (me - hop) % shards, shards, rows, workload.window) for hop in range(shards))
    live = [np.broadcast_to(count_pairs([band]) > 0, shards) for bands in rounds for band in bands]
    return float(np.mean(live, axis=0).max())


KERNELS = {"forward": ("_fwd_",), "backward": ("_dq_", "_dkv_")}  # a pass is these of splash's kernels
MATMULS = {"_fwd_": 2, "_dq_": 3, "_dkv_": 4}  # of a tile


def bundle_cost(
    bundles: Sequence[Mapping[str, Any]],
    passes: str,
    other: TileCost,
    clock_hz: float,
    peak_flops_per_s: float | None,
    workload: Workload,
    plan: Plan,
) -> TileCost:
    """Seconds of a Pallas kernel's tiles from bundles, or what their matmuls take at the peak rate where that is
    longer; `other` is what the compiler estimates of the rest. Kernels whose grid both cores of a device share run part
    of its steps, so a tile of the device takes that part of the time."""
    assert plan.tile
    piece = workload.seq_len // plan.shards // layouts[plan.layout].pieces
    heads = workload.heads * workload.batch // plan.product((*HEAD_AXES, *BATCH_AXES))
    grid = heads * (piece // plan.tile.block_q) * (piece // plan.tile.block_kv)
    whole = masked = dead = row = 0.0
    for part in KERNELS[passes]:
        least = 2 * MATMULS[part] * plan.tile.block_q * plan.tile.block_kv * workload.head_dim
        alike = [each for each in bundles if part in each["name"]]

        def mean(which: Callable[[Mapping[str, Any]], float], masks: bool, alike: Any = alike) -> float:
            """Seconds of the kernels of this part that mask, or of those that do not; of the others where none do."""
            chosen = [each for each in alike if each["masked"] == masks] or alike
            return float(np.mean([which(each) * each["steps"] / grid for each in chosen])) / clock_hz

        peak_s = least / peak_flops_per_s if peak_flops_per_s else 0.0
        whole += max(peak_s, mean(lambda each: each["tile"] + each["step"], False))
        masked += max(peak_s, mean(lambda each: each["tile"] + each["step"], True))
        dead += mean(lambda each: each["step"], True)
        row += mean(lambda each: each["row"], True)
    return replace(other, whole_s=whole, boundary_s=masked, dead_s=dead, row_s=row, masks_all=True)


def exposed_transfers(collectives: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, int], float]:
    """The share of transfers, by (pass, opcode, itemsize), that the schedule puts no tiles beside: none, half or all,
    whichever is nearest, so that a last hop, which has nothing to hide behind, does not count against the loop's."""
    sent: Counter[tuple[str, str, int]] = Counter()
    alone: Counter[tuple[str, str, int]] = Counter()
    for each in collectives:
        key = each["pass"], each["opcode"], ITEM_BYTES[each["dtype"]]
        sent[key] += each["sent_bytes"] * each["times"]
        alone[key] += 0 if each["beside_tiles"] else each["sent_bytes"] * each["times"]
    shares = {key: round(2 * alone[key] / nbytes) / 2 for key, nbytes in sent.items()}
    return {key: share for key, share in shares.items() if share}
