"""A machine as its compiler has it: tiles by estimated cycles or by bundles, hidden what the schedule hides."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stripectl.arithmetic import COUNTING
from stripectl.datasheet import datasheet_machine, linked
from stripectl.hardware import Hardware
from stripectl.hlo import ITEM_BYTES
from stripectl.kernels import PallasKernel, kernels
from stripectl.layout import count_pairs, layouts
from stripectl.machine import Machine, TileCost
from stripectl.pairing import pairing_of
from stripectl.plan import BATCH_AXES, HEAD_AXES, Plan
from stripectl.schedule import ATTENTION
from stripectl.simulate import simulate
from stripectl.wiring import Wiring
from stripectl.workload import Workload

LEFT_OUT = (
    "the compiler's cost model is no run: waits for memory between its fusions, and whatever it estimates wrongly"
)
PASS_BY_NAME = {"forward": "forward", "backward": "forward-backward"}  # the shortest that holds it
COSTS = ("whole_s", "boundary_s", "dead_s", "row_s", "call_s")


def compiled_machine(
    hardware: Hardware, workload: Workload, plan: Plan, facts: Mapping[str, Any], wiring: Wiring
) -> Machine:
    """A machine whose tiles take what the compiler estimates and whose collectives hide where its schedule computes
    tiles beside them; links, and tiles without an estimate, are the datasheet's.

    Raises:
        BadInput: the profile lacks a figure that this needs.
    """
    assert plan.tile
    exposed = exposed_transfers([each for each in facts["collectives"] if each["section"] in (None, ATTENTION)])
    shown: dict[str, Any] = {"exposed": {" ".join(map(str, key)): share for key, share in sorted(exposed.items())}}
    found = estimated_costs(hardware, workload, plan, facts)
    if found is None:
        kernel = kernels[plan.kernel]
        machine = datasheet_machine(hardware, workload, plan.tile, wiring, plan.backward, kernel)
        missing = f"cycles of tiles: the compiler estimates none; {machine.detail['left_out']}"
        if kernel.counted:
            shown["memory_left_out"] = f"the workspace of {kernel.name}'s library"
            missing += f"; in memory, {shown['memory_left_out']}"
        return replace(machine, exposed=exposed, detail=machine.detail | shown | {"left_out": missing})
    source, costs = found
    none = TileCost(0.0, 0.0)
    detail = {
        "clock_hz": hardware.figure("clock_hz"),
        **{passes: {name: getattr(cost, name) for name in COSTS} for passes, cost in costs.items()},
        "sources": {"clock_hz": hardware.sources["clock_hz"]},
        "left_out": LEFT_OUT,
        **shown,
    }
    forward, backward = costs.get("forward", none), costs.get("backward", none)
    return linked(hardware, Machine(forward, backward, 0.0, 0.0, True, source, detail, exposed), wiring)


def estimated_costs(
    hardware: Hardware, workload: Workload, plan: Plan, facts: Mapping[str, Any]
) -> tuple[str, dict[str, TileCost]] | None:
    """(where they are from, costs by pass); None where the compiler estimates no tiles."""
    clock, cycles, bundles = hardware.figure("clock_hz"), facts["cycles"], facts["bundles"]
    if not clock or not cycles:
        return None
    live = live_rectangles(workload, plan)
    calls = calls_of(workload, plan, list(cycles))
    costs = {passes: cycle_cost(each, clock, calls[passes], live) for passes, each in cycles.items()}
    pallas = kernels[plan.kernel].bundles
    if not pallas:
        return "estimated_cycles", costs
    parts = [part for passes in costs for part in pallas[passes]]
    if not all(any(part.name in each["name"] for each in bundles or ()) for part in parts):
        return None
    return "bundles", {
        passes: bundle_cost(bundles, pallas[passes], cost, hardware, workload, plan, passes)
        for passes, cost in costs.items()
    }


def calls_of(workload: Workload, plan: Plan, passes: Sequence[str]) -> dict[str, float]:
    """How often a device calls the kernel in each of such passes, parts of calls in proportion to their work."""
    found = {}
    for each in (each for each in PASS_BY_NAME if each in passes):
        rounds = simulate(replace(workload, passes=PASS_BY_NAME[each]), plan, COUNTING).rounds
        found[each] = math.fsum(one.part * one.share for one in rounds) - sum(found.values())
    return found


def cycle_cost(cycles: Mapping[str, float], clock_hz: float, calls: float, live: float) -> TileCost:
    """Seconds from cycles; what is no tile, copies and merges of a shard's rows, is spread over the calls of the
    kernel, branches as far as they are live."""
    whole, boundary, row = (cycles[name] / clock_hz for name in ("whole", "boundary", "row"))
    rest = (cycles["other"] + live * cycles["branch"]) / clock_hz
    return TileCost(whole_s=whole, boundary_s=boundary, row_s=row, call_s=rest / calls, call_grows=True)


def live_rectangles(workload: Workload, plan: Plan) -> float:
    """The share of rectangles, over all rounds, that hold a live score, on the device with the most."""
    shards, pairing = plan.shards, pairing_of(workload, plan)
    me = np.arange(shards)
    rounds = (pairing.bands(me, (me - hop) % shards) for hop in range(shards))
    live = [np.broadcast_to(count_pairs([band]) > 0, shards) for bands in rounds for band in bands]
    return float(np.mean(live, axis=0).max())


def bundle_cost(
    bundles: Sequence[Mapping[str, Any]],
    parts: Sequence[PallasKernel],
    other: TileCost,
    hardware: Hardware,
    workload: Workload,
    plan: Plan,
    passes: str,
) -> TileCost:
    """Seconds of the tiles of a pass, which is made of `parts`, from bundles, or what their matmuls take at the peak
    rate where that is longer; `other` is what the compiler estimates of the rest. Kernels whose grid both cores of a
    device share run part of its steps, so a tile of the device takes that part of the time."""
    tile, clock_hz, peak = plan.tiles[passes], hardware.figures["clock_hz"], hardware.flops_per_s(workload.dtype)
    piece = workload.seq_len // plan.shards // layouts[plan.layout].pieces
    dealt = plan.product((*HEAD_AXES, *BATCH_AXES, "ulysses"))
    heads, kv_heads = (max(1, each * workload.batch // dealt) for each in (workload.heads, workload.kv_heads))
    grid = heads * (piece // tile.block_q) * (piece // tile.block_kv)
    whole = boundary = dead = row = 0.0
    for part in parts:
        least = 2 * part.matmuls * tile.block_q * tile.block_kv * workload.head_dim
        alike = [each for each in bundles if part.name in each["name"]]

        def mean(name: str, masks: bool, part: Any = part, alike: Any = alike) -> float:
            """Seconds of the kernels of this part that mask, or of those that do not; of the others where none do."""
            chosen = [each for each in alike if each["masked"] == masks] or alike
            cores = math.gcd(kv_heads, hardware.cores) if kernels[plan.kernel].hops else hardware.cores
            share = -(-kv_heads // cores) / kv_heads  # of a grid of live tiles, whose cores share the heads
            shares = [share if part.only_live else each["steps"] / grid for each in chosen]
            found = [each[name] * share for each, share in zip(chosen, shares, strict=True)]
            return float(np.mean(found)) / clock_hz

        peak_s = least / peak if peak else 0.0
        whole += max(peak_s, mean("tile", part.only_live) + mean("step", part.only_live))
        boundary += max(peak_s, mean("boundary", True) + mean("step", True))
        dead += 0.0 if part.only_live else mean("step", True)
        row += mean("row", True) * (workload.kv_heads / workload.heads if part.per_kv_head else 1)
    masks_all = not any(part.only_live for part in parts)
    return replace(other, whole_s=whole, boundary_s=boundary, dead_s=dead, row_s=row, masks_all=masks_all)


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
