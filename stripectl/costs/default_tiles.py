"""The tile of each pass where a plan names none: the fastest that the plan can run, by the machine's table.

The device with the last shard, which has the most work under any mask, computes its pairs of shards one after another;
communication does not depend on the tile. A kernel without a table on the machine has the tile that was timed on it, or
else the tile of its description, in a size that fits the shard.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from stripectl.core.defaults import usual_tile
from stripectl.core.kernel import Kernel, kernels
from stripectl.core.layer_groups import by_layer_group
from stripectl.core.layout import Tile
from stripectl.core.mask_tiles import TileCount, tile_ends
from stripectl.core.plan import Plan
from stripectl.core.sequence_sharding import SequenceSharding, calls_once, document_lookup, sequence_sharding
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import DTYPE_BYTES, Workload
from stripectl.costs.core_memory import why_tile_exceeds_core
from stripectl.costs.keys_at_once import third_sides
from stripectl.costs.padding import ACCUMULATOR_BYTES, padding_traffic
from stripectl.costs.shape import TileShape
from stripectl.costs.sources.entries import on_device
from stripectl.costs.sources.table import machine_table
from stripectl.hardware.profile import Hardware
from stripectl.results.tile_cost import TileCost

NO_FLAGS: Mapping[str, str] = {}
# The tile of a pass by timings on the machine, of a plan of equal layers that names the tile of its kernel's
# description; None where that stays.
TimedTile = Callable[[Plan, Workload, str], Tile | None]


def with_tile(
    plan: Plan,
    workload: Workload,
    hardware: Hardware,
    flags: Mapping[str, str] = NO_FLAGS,
    timed: TimedTile | None = None,
) -> Plan:
    """Name the tile of each pass, for layers of either kind; the plan must be able to run."""
    return by_layer_group(workload, plan, lambda own, each: _with_tile(each, own, hardware, flags, timed))


def tiles_for(
    plan: Plan, workload: Workload, hardware: Hardware, passes: str = "forward", timed: TimedTile | None = None
) -> list[Tile]:
    """The tiles to try for a pass of a plan of equal layers: its default, and the tiles that its kernel proposes."""
    bare = replace(plan, tile=None, backward=None)
    default = _with_tile(bare, workload, hardware, NO_FLAGS, timed).tiles[passes]
    rows = sequence_sharding(workload, plan).key_piece
    return list(dict.fromkeys([default, *kernels[plan.kernel].candidate_tiles(rows)]))


def _with_tile(
    plan: Plan, workload: Workload, hardware: Hardware, flags: Mapping[str, str], timed: TimedTile | None
) -> Plan:
    if plan.tile:
        return plan
    found = replace(plan, tile=usual_tile(plan, workload, hardware.kind))
    for passes in workload.kernel_passes[: 1 if plan.backward else None]:
        best = next(tiles_that_run(found, workload, hardware, flags, passes), None)
        best = best or (timed and timed(found, workload, passes))
        found = found.with_tile_of_pass(passes, best) if best else found
    return replace(found, backward=None) if found.backward == found.tile else found


def tiles_that_run(
    plan: Plan, workload: Workload, hardware: Hardware, flags: Mapping[str, str], passes: str
) -> Iterator[Tile]:
    """The tiles of a pass that the plan, which names the tiles of the other pass, can run, the fastest first; none
    where the machine has no table for the kernel."""
    for tile in ranked_tiles(Calls.of(plan, workload, passes), hardware):
        each = plan.with_tile_of_pass(passes, tile)
        reason = why_unsupported(each, workload, hardware.kind, None, hardware.capability)
        if not (reason or why_tile_exceeds_core(each, workload, hardware, flags)):
            yield tile


class Calls(NamedTuple):
    """The calls of a kernel in a pass on one device, as far as the best tile depends on them: the kernel's shape with
    its usual tile, the shards, and where documents begin."""

    shape: TileShape
    sharding: SequenceSharding
    starts: tuple[int, ...] | None

    @classmethod
    def of(cls, plan: Plan, workload: Workload, passes: str) -> "Calls":
        starts = None if workload.starts is None else tuple(workload.starts.tolist())
        return cls(TileShape.of(workload, plan, passes), sequence_sharding(workload, plan), starts)


@lru_cache(2**12)
def ranked_tiles(calls: Calls, hardware: Hardware) -> tuple[Tile, ...]:
    """The tiles that a kernel proposes and that the machine's table has for it, the fastest for these calls first, and
    after all others the tiles that are far from every entry; among equally fast tiles the smallest. Empty where there
    is no table, or the kernel chooses its tiles itself."""
    kernel = kernels[calls.shape.kernel]
    table = machine_table(hardware, kernel)
    if table is None or kernel.counting_tile:
        return ()
    sides = [*kernel.candidate_tiles(calls.sharding.key_piece), *table.tiles(calls.shape)]
    masked = kernel.costs.masks_all and not calls.sharding.window.sees_future
    shapes = (calls.shape._replace(tile=tile) for tile in dict.fromkeys(sides))
    tiles = {tile for each in shapes for tile in third_sides(each, table, masked=masked)}
    ranks = dict[Tile, tuple[float, ...]]()
    for tile in tiles:
        shape = calls.shape._replace(tile=kernel.shortest_name(tile))
        if fits_piece(tile, kernel, calls.sharding) and (entry := table.entry(shape)):
            seconds = seconds_with(tile, on_device(entry.cost, shape, hardware), calls, hardware)
            ranks[tile] = entry.table.is_far, seconds, tile.scores, *tile.sides, tile.scores_at_once
    return tuple(sorted(ranks, key=lambda tile: ranks[tile]))


def fits_piece(tile: Tile, kernel: Kernel, sharding: SequenceSharding) -> bool:
    """Whether the tile is no larger than a piece of a shard, padding included."""
    return tile.block_q <= kernel.padded(sharding.query_piece) and tile.block_kv <= kernel.padded(sharding.key_piece)


def seconds_with(tile: Tile, cost: TileCost, calls: Calls, hardware: Hardware) -> float:
    """Seconds of the calls for one query head with a tile of this cost, on the device with the last shard."""
    tiles, shards = tiles_of_calls(tile, calls), calls.sharding.shards
    moved = bytes_moved(tile, calls) * np.broadcast_to(np.asarray(tiles.computed) > 0, shards).sum()
    memory = hardware.figure("achievable_hbm_bytes_per_s") or hardware.figure("hbm_bytes_per_s")
    return float(np.broadcast_to(cost.seconds(tiles, 1), shards).sum()) + (moved / memory if memory else 0.0)


def tiles_of_calls(tile: Tile, calls: Calls) -> TileCount:
    """The tiles of each call for one query head, on the device with the last shard: a count per other shard."""
    sharding, documents = calls.sharding, None
    if calls.starts is not None:
        documents = document_lookup(np.array(calls.starts), sharding.shards * sharding.rows)
    me, src = np.full(sharding.shards, sharding.shards - 1), np.arange(sharding.shards)
    bands = sharding.bands(me, src, documents=documents, rows=tile_ends(tile))
    return kernels[calls.shape.kernel].count_tiles(bands, tile)


def bytes_moved(tile: Tile, calls: Calls) -> float:
    """Bytes that a call moves in memory for one query head only because of its tile: copies for padding, and partial
    sums of dQ."""
    shape, kernel, rows = calls.shape, kernels[calls.shape.kernel], calls.sharding.key_piece
    itemsize = DTYPE_BYTES[shape.dtype]
    queries = calls.sharding.query_rows * shape.heads.keys
    moved = 0.0
    if kernel.pads(tile, rows):
        result_bytes = itemsize if calls_once(kernel, calls.sharding) else ACCUMULATOR_BYTES
        moved += padding_traffic(shape.passes, queries, 2 * queries / shape.group, itemsize, result_bytes).moved
    if shape.passes == "backward" and kernel.costs.dq_sums:
        moved += kernel.costs.dq_sums(rows, tile)[1] * queries * itemsize
    return moved
