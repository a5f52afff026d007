"""The third side of a tile: how many of its keys a kernel multiplies at once, by the costs that ship for a machine.

For each pair of sides only the cheapest third side of those in the table is worth a run or a compilation; a search that
only simulates tries every third side.
"""

from dataclasses import replace

from stripectl.core.kernel import MAX_TILE_ROWS, kernels
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan
from stripectl.core.workload import Workload
from stripectl.costs.shape import TileShape
from stripectl.costs.sources.table import CostTable, machine_table
from stripectl.hardware.profile import Hardware

LARGEST = Tile(MAX_TILE_ROWS, MAX_TILE_ROWS)
WORTH = 0.01  # of a cost: what another number than the usual must save


def with_third_sides(tile: Tile, workload: Workload, plan: Plan, hardware: Hardware, passes: str) -> list[Tile]:
    """`third_sides` of a tile of a plan's pass, by the table of its machine."""
    kernel = kernels[plan.kernel]
    masked = kernel.costs.masks_all and not workload.window.sees_future
    shape = TileShape.of(workload, replace(plan, tile=tile, backward=None), passes)
    return third_sides(shape, machine_table(hardware, kernel), masked=masked)


def third_sides(shape: TileShape, table: CostTable | None, *, masked: bool) -> list[Tile]:
    """The tile of a shape with each third side in the table, cheapest first; the kernel's usual number comes first
    where no other is clearly cheaper, and alone where the table does not tell third sides apart. A kernel that
    multiplies the keys of a whole tile at once has no larger block of scores than those in the table."""
    kernel = kernels[shape.kernel]
    tile = shape.tile
    if kernel.keys_at_once is None or table is None or tile.block_kv_compute:
        return [tile]
    known = table.tiles(shape)
    most = max((kernel.full_name(each).scores_at_once for each in known), default=0)
    # The sides that entries name: the own side of a small tile says nothing about larger tiles.
    sides = {side for each in known if (side := each.block_kv_compute)}
    tried = (tile._replace(block_kv_compute=side) for side in sides if tile.block_kv % side == 0)
    others = {kernel.shortest_name(each) for each in tried if each.scores_at_once <= most} - {tile}
    shapes = {each: shape._replace(tile=each) for each in others}
    costs = {each: cost for each, own in shapes.items() if (cost := cost_of_scores(table, own, masked=masked))}
    usual = cost_of_scores(table, shape, masked=masked)
    whole = kernel.keys_at_once(LARGEST)[0] == LARGEST.block_kv
    ranked = {each: cost for each, cost in costs.items() if cost != usual}
    if not (whole and most and kernel.full_name(tile).scores_at_once > most):
        ranked[tile] = usual * (1 - WORTH) if usual else 0.0
    return sorted(ranked, key=lambda each: (ranked[each], each != tile, each))


def cost_of_scores(table: CostTable, shape: TileShape, *, masked: bool) -> float | None:
    """Seconds of a tile, masked or whole; None without an entry, or for a GPU's waves."""
    entry = table.entry(shape)
    if entry is None or entry.cost.processors:
        return None
    return entry.cost.boundary_s if masked else entry.cost.whole_s
