"""Defaults that no machine's table decides: the mesh of a plan, and the tile of a kernel's description."""

from dataclasses import replace

from stripectl.core.kernel import kernels
from stripectl.core.layer_groups import by_layer_group
from stripectl.core.layout import Tile
from stripectl.core.mesh import factorisations, make_mesh
from stripectl.core.plan import Plan
from stripectl.core.scheme import schemes
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.workload import Workload

TILES_A_SIDE = 16  # with 16 tiles a balanced layout keeps 1.77 of its 1.88 on 8 shards; with four tiles, 1.52


def with_mesh(plan: Plan, devices: int) -> Plan:
    """Name the plan's mesh: all devices on the scheme's own axes, as balanced as possible, larger axes
    first."""
    if plan.mesh is not None:
        return plan
    axes = schemes[plan.scheme].axes
    if not axes:
        return replace(plan, mesh=())
    sizes = min(factorisations(devices, len(axes)), key=lambda each: (max(each) - min(each), [-size for size in each]))
    return replace(plan, mesh=make_mesh(dict(zip(axes, sizes, strict=True))))


def with_usual_tiles(plan: Plan, workload: Workload, kind: str) -> Plan:
    """The plan with the usual tile of each kind of layer on hardware of this kind."""
    return by_layer_group(
        workload, plan.without_tiles(), lambda own, each: replace(each, tile=usual_tile(each, own, kind))
    )


def usual_tile(plan: Plan, workload: Workload, kind: str) -> Tile:
    """The tile of the kernel's description for hardware of this kind, made smaller until a shard has TILES_A_SIDE tiles
    or the kernel's shortest side is reached, and no larger than a piece of the shard."""
    sharding, kernel = sequence_sharding(workload, plan), kernels[plan.kernel]
    queries, keys = sharding.query_piece, sharding.key_piece
    if kernel.keeps_all_scores:
        return Tile(queries, keys)
    most, tile = max(kernel.min_default_rows(kind), sharding.rows // TILES_A_SIDE), kernel.default_tile(kind)
    fitting = kernel.largest_tile(Tile(min(tile.block_q, most), min(tile.block_kv, most)), keys)
    return fitting._replace(block_q=min(fitting.block_q, kernel.padded(queries)))
