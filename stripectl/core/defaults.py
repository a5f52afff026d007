"""Defaults for the parts that a plan omits: its mesh and its tile."""

from dataclasses import replace

from stripectl.core.kernel import kernels
from stripectl.core.layer_groups import join_plans, layer_groups
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan, factorisations, make_mesh
from stripectl.core.scheme import schemes
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.workload import Workload

TILES_A_SIDE = 16  # with 16 tiles a balanced layout keeps 1.77 of its 1.88 on 8 shards; with four tiles, 1.52


def with_mesh(plan: Plan, devices: int) -> Plan:
    """The plan with its mesh named: all devices on the scheme's own axes, as balanced as possible, larger axes
    first."""
    if plan.mesh is not None:
        return plan
    axes = schemes[plan.scheme].axes
    if not axes:
        return replace(plan, mesh=())
    sizes = min(factorisations(devices, len(axes)), key=lambda each: (max(each) - min(each), [-size for size in each]))
    return replace(plan, mesh=make_mesh(dict(zip(axes, sizes, strict=True))))


def with_tile(plan: Plan, workload: Workload, kind: str) -> Plan:
    """The plan with its tile named, for layers of either kind. It is the kernel's default for such hardware, made
    smaller until a shard has TILES_A_SIDE tiles or the kernel's shortest side is reached, and no larger than a shard's
    piece."""
    return join_plans([_with_tile(each, own, kind) for _, own, each in layer_groups(workload, plan)])


def tiles_for(plan: Plan, workload: Workload, kind: str) -> list[Tile]:
    """The tiles to try for a plan that can run: the default, and the tiles that its kernel proposes."""
    rows = sequence_sharding(workload, plan).key_piece
    default = with_tile(replace(plan, tile=None, backward=None), workload, kind).tile
    assert default
    return list(dict.fromkeys([default, *kernels[plan.kernel].candidate_tiles(rows)]))


def _with_tile(plan: Plan, workload: Workload, kind: str) -> Plan:
    if plan.tile:
        return plan
    sharding, kernel = sequence_sharding(workload, plan), kernels[plan.kernel]
    queries, keys = sharding.query_piece, sharding.key_piece
    if kernel.keeps_all_scores:
        return replace(plan, tile=Tile(queries, keys))
    most, tile = max(kernel.min_default_rows(kind), sharding.rows // TILES_A_SIDE), kernel.default_tile(kind)
    fitting = kernel.largest_tile(Tile(min(tile.block_q, most), min(tile.block_kv, most)), keys)
    return replace(plan, tile=fitting._replace(block_q=min(fitting.block_q, kernel.padded(queries))))
