"""A machine as its compiler describes it: tile costs from tables, and hidden transfers from the schedule."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from stripectl.core.kernel import kernels
from stripectl.core.mask_tiles import count_pairs
from stripectl.core.plan import Plan
from stripectl.core.scopes import ATTENTION
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.workload import Workload
from stripectl.costs.cost_entries import CostEntry, entries_of, shapes_of
from stripectl.costs.cost_model import COUNTING, CostModel, TileCost
from stripectl.costs.cost_tables import PassCosts, exposed_shares, table_cost_model, tile_seconds
from stripectl.costs.datasheet import datasheet_cost_model, with_links
from stripectl.hardware.placement import MeshPlacement
from stripectl.hardware.profile import Hardware
from stripectl.hlo.module import ITEM_BYTES
from stripectl.results.compiled_program import CompiledProgram, ScheduledCollective
from stripectl.results.cost_source import CostDisagreement, CostOrigin, CostSource
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
    known: Mapping[str, PassCosts] | None,
) -> CostModel:
    """A machine whose tiles have the costs in `known`, or else the compiler's estimates (for linear attention and for
    kernels that keep all scores), and whose collectives hide where its schedule computes tiles at the same time. Links,
    and tiles without an estimate, come from the datasheet.

    Raises:
        BadInput: the profile lacks a figure that this needs.
    """
    workspace = f"the workspace of {plan.kernel}'s library" if kernels[plan.kernel].hides_workspace else None
    if known:
        machine = table_cost_model(hardware, workload, plan, known, placement)
        differs = tuple(disagreements(hardware, workload, plan, program, known))
        source = replace(machine.cost_source, disagrees=differs)
    elif (costs := estimated_costs(hardware, workload, plan, program)) is not None:
        machine = estimated_cost_model(hardware, costs, placement)
        source = machine.cost_source
    else:
        assert plan.tile
        machine = datasheet_cost_model(hardware, workload, plan.tile, placement, plan.backward, kernels[plan.kernel])
        missing = f"cycles of tiles: the compiler estimates none; {machine.cost_source.left_out}"
        missing += f"; in memory, {workspace}" if workspace else ""
        source = replace(machine.cost_source, left_out=missing)
    exposed = exposed_transfers([each for each in program.collectives if each.section in (None, ATTENTION)])
    return with_program_schedule(replace(machine, cost_source=replace(source, memory_left_out=workspace)), exposed)


def estimated_cost_model(hardware: Hardware, costs: Mapping[str, TileCost], placement: MeshPlacement) -> CostModel:
    """A machine whose tiles have the costs, by pass, that a compiler estimates."""
    source = CostSource(
        source=CostOrigin.ESTIMATED_CYCLES,
        clock_hz=hardware.figure("clock_hz"),
        forward=tile_seconds(costs["forward"]) if "forward" in costs else None,
        backward=tile_seconds(costs["backward"]) if "backward" in costs else None,
        sources={"clock_hz": hardware.sources["clock_hz"]},
        left_out=LEFT_OUT,
    )
    none = TileCost(0.0, 0.0)
    both = costs.get("forward", none), costs.get("backward", none)
    made = with_links(hardware, CostModel(*both, 0.0, 0.0, True, source), placement)
    return replace(made, memory_bytes_per_s=math.inf)  # the compiler's estimates include traffic outside of tiles


def with_program_schedule(machine: CostModel, exposed: Mapping[tuple[str, str, int], float]) -> CostModel:
    """The machine with the transfers that a plan's own program exposes, in place of the tables' for its scheme."""
    source = replace(machine.cost_source, exposed=exposed_shares(exposed))
    return replace(machine, exposed=exposed, blocking=(), cost_source=source)


def disagreements(
    hardware: Hardware, workload: Workload, plan: Plan, program: CompiledProgram, known: Mapping[str, PassCosts]
) -> Iterator[CostDisagreement]:
    """Tiles whose cost in the plan's own program differs from the table, with both costs in cycles."""
    shapes = shapes_of(workload, plan)
    for passes, shape in shapes.items():
        table, own = known[passes].by_pass[passes], entries_of(program, shape, hardware).get(passes)
        if not own or not isinstance(table, CostEntry):
            continue
        for kind in ("whole", "boundary"):
            here, there = getattr(own, kind), getattr(table, kind)
            if here and there and abs(here / there - 1) > DISAGREEMENT:
                yield CostDisagreement(passes=passes, tile=kind, program_cycles=here, table_cycles=there)


def estimated_costs(
    hardware: Hardware, workload: Workload, plan: Plan, program: CompiledProgram
) -> dict[str, TileCost] | None:
    """Costs by pass, as the compiler estimates them for this program; None where it estimates no tiles."""
    clock, cycles = hardware.figure("clock_hz"), program.cycles
    if not clock or not cycles or kernels[plan.kernel].bundles:
        return None
    live = live_rectangles(workload, plan)
    calls = calls_of(workload, plan, list(cycles))
    return {passes: cycle_cost(each, clock, calls[passes], live) for passes, each in cycles.items()}


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
