"""A machine as its compiler describes it: tile costs from tables, and hidden transfers from the schedule."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from stripectl.core.kernel import kernels
from stripectl.core.mask_tiles import count_pairs
from stripectl.core.plan import Plan
from stripectl.core.scopes import ATTENTION
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import COUNTING, CostModel
from stripectl.costs.shape import shapes_of
from stripectl.costs.source_order import Source, cost_model
from stripectl.costs.sources.entries import effective_clock_hz, on_device
from stripectl.costs.sources.small_programs import entries_of
from stripectl.hardware.placement import MeshPlacement
from stripectl.hardware.profile import Hardware
from stripectl.hlo.module import ITEM_BYTES
from stripectl.results.compiled_program import CompiledProgram, ScheduledCollective
from stripectl.results.cost_source import CostDisagreement, CostOrigin, CostSource, Rates
from stripectl.results.tile_cost import TileCost
from stripectl.simulate.simulation import simulate

LEFT_OUT = (
    "the compiler's cost model is not a run: it omits waits for memory between fusions, and its estimates may be wrong"
)
DISAGREEMENT = 0.1  # of a cost: a larger difference between a plan's program and the table is reported
PASS_BY_NAME = {"forward": "forward", "backward": "forward-backward"}  # the shortest pass that contains it


def compiled_cost_model(
    hardware: Hardware,
    workload: Workload,
    plan: Plan,
    program: CompiledProgram,
    placement: MeshPlacement,
    small_programs: Source | None = None,
) -> CostModel:
    """The cost model of a plan with the facts of its program: its collectives hide where its schedule computes tiles
    at the same time, and its tiles are compared with other sources.

    Raises:
        BadInput: the profile lacks a figure that this needs.
    """
    estimated = partial(estimated_costs, program)
    machine = cost_model(hardware, workload, plan, placement, small_programs=small_programs, own_program=estimated)
    workspace = f"the workspace of {plan.kernel}'s library" if kernels[plan.kernel].costs.hides_workspace else None
    source = replace(machine.cost_source, memory_left_out=workspace)
    if source.source == CostOrigin.DATASHEET:
        missing = f"cycles of tiles: the compiler estimates none; {source.left_out}"
        source = replace(source, left_out=missing + (f"; in memory, {workspace}" if workspace else ""))
    elif source.entry.made_by:
        source = replace(source, disagrees=tuple(disagreements(hardware, workload, plan, program, machine)))
    exposed = exposed_transfers([each for each in program.collectives if each.section in (None, ATTENTION)])
    return replace(machine, cost_source=source).with_schedule(exposed)


def disagreements(
    hardware: Hardware, workload: Workload, plan: Plan, program: CompiledProgram, machine: CostModel
) -> Iterator[CostDisagreement]:
    """Tiles whose cost in the plan's own program differs from the machine's, with both costs in cycles."""
    for passes, shape in shapes_of(workload, plan).items():
        own = entries_of(program, shape, hardware).get(passes)
        table = machine.forward if passes == "forward" else machine.backward
        if not own or table.processors:
            continue
        here, waits = (
            on_device(cost, shape, hardware)
            for cost in (own.cost(effective_clock_hz(hardware, workload.dtype)), TileCost())
        )
        for kind in ("whole", "boundary"):
            mine, theirs, wait = (getattr(cost, f"{kind}_s") for cost in (here, table, waits))
            ratio = (theirs - wait) / (mine - wait) if mine > wait else 1.0
            if theirs > wait and abs(1 / ratio - 1) > DISAGREEMENT:
                cycles = getattr(own, kind)
                yield CostDisagreement(passes=passes, tile=kind, program_cycles=cycles, table_cycles=cycles * ratio)


def estimated_costs(program: CompiledProgram, hardware: Hardware, workload: Workload, plan: Plan) -> CostModel | None:
    """A machine, without links, whose tiles have the costs that the compiler estimates for the plan's program; None
    where it estimates no tiles."""
    clock, cycles = hardware.figure("clock_hz"), program.cycles
    if not clock or not cycles or kernels[plan.kernel].costs.bundles:
        return None
    live = live_rectangles(workload, plan)
    calls = calls_of(workload, plan, list(cycles))
    costs = {passes: cycle_cost(each, clock, calls[passes], live) for passes, each in cycles.items()}
    source = CostSource(
        source=CostOrigin.ESTIMATED_CYCLES,
        rates=Rates(clock_hz=clock),
        forward=costs.get("forward"),
        backward=costs.get("backward"),
        sources={"clock_hz": hardware.sources["clock_hz"]},
        left_out=LEFT_OUT,
    )
    return CostModel(costs.get("forward", TileCost()), costs.get("backward", TileCost()), source)


def calls_of(workload: Workload, plan: Plan, passes: Sequence[str]) -> dict[str, float]:
    """How often a device calls the kernel in each of these passes; partial calls count by their share of the work."""
    found = {}
    for each in (each for each in PASS_BY_NAME if each in passes):
        rounds = simulate(replace(workload, passes=PASS_BY_NAME[each]), plan, COUNTING).rounds
        found[each] = math.fsum(one.part * one.share for one in rounds) - sum(found.values())
    return found


def cycle_cost(cycles: Mapping[str, float], clock_hz: float, calls: float, live: float) -> TileCost:
    """Seconds from cycles. Cycles outside of tiles (copies and merges of a shard's rows) are spread over the calls of
    the kernel, and branches are weighted by how often they are live."""
    whole, boundary, row = (cycles[name] / clock_hz for name in ("whole", "boundary", "row"))
    rest = (cycles["other"] + live * cycles["branch"]) / clock_hz
    return TileCost(whole_s=whole, boundary_s=boundary, row_s=row, call_s=rest / calls, call_grows=True)


def live_rectangles(workload: Workload, plan: Plan) -> float:
    """The share of rectangles with a live score, over all rounds, on the device with the most."""
    shards, sharding = plan.shards, sequence_sharding(workload, plan)
    me = np.arange(shards)
    rounds = (sharding.bands(me, (me - hop) % shards) for hop in range(shards))
    live = [np.broadcast_to(count_pairs([band]) > 0, shards) for bands in rounds for band in bands]
    return float(np.mean(live, axis=0).max())


def exposed_transfers(collectives: Sequence[ScheduledCollective]) -> dict[tuple[str, str, int], float]:
    """The share of transfers, by (pass, opcode, itemsize), that the schedule exposes: none, half or all, whichever is
    nearest, so that a last hop, which has nothing to hide behind, does not count against the loop's hops."""
    sent: Counter[tuple[str, str, int]] = Counter()
    alone: Counter[tuple[str, str, int]] = Counter()
    for each in collectives:
        key = each.passes, each.opcode, ITEM_BYTES[each.dtype]
        sent[key] += each.sent_bytes * each.times
        alone[key] += 0 if each.beside_tiles else each.sent_bytes * each.times
    shares = {key: round(2 * alone[key] / nbytes) / 2 for key, nbytes in sent.items()}
    return {key: share for key, share in shares.items() if share}
