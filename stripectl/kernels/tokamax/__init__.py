"""tokamax: the splash attention of Google's tokamax for TPUs, causal and full masks. Installed by stripectl[tokamax].

Its grid holds live tiles only; a backward pass over few columns of tiles visits the dead tiles too. That pass is one
kernel with five matmuls per tile, which adds dQ in the dtype of the queries. Rows that the tile does not divide are
padded.
"""

from collections.abc import Sequence
from typing import Any

from stripectl.compat import why_no_tokamax
from stripectl.core.kernel import LANES, Kernel, KnownTile, count_padded_tiles, roundings_of_scaled_queries
from stripectl.core.kernel_costs import KernelCosts, PallasKernel
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan
from stripectl.core.reason import Reason
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.validation import why_unsupported_by_pallas
from stripectl.core.workload import Workload
from stripectl.kernels.tokamax.tile_memory import dq_sums, vmem_bytes

SCALAR_BYTES = 2**20  # scalar memory of a TPU core
LISTED_BYTES = 5 * 4  # per tile: its row, its column, whether it begins and ends a row, and its mask
# The fastest of tokamax's own sweep on TPU7x with 4k tokens; with more tokens 2048x2048x512: profiles/published.
DEFAULT = Tile(1024, 1024)
MIN_DEFAULT_ROWS = 512
SEARCHED_SIDES = 1024, 2048  # as tokamax's own sweep has them: one tile of 4096 compiles for more than 15 minutes


def why_unsupported(workload: Workload, plan: Plan, kind: str, *_: Any) -> Reason | None:
    if reason := why_unsupported_by_pallas("tokamax", workload, kind):
        return reason
    if workload.window.left is not None:
        return Reason.unsupported("tokamax has causal and full masks here, but no windows", "Try --kernel pallas_tpu.")
    rows = sequence_sharding(workload, plan).key_piece
    tiles = [tile for tile in (plan.tile or DEFAULT, plan.backward) if tile]
    if max(-(-rows // tile.block_q) * -(-rows // tile.block_kv) for tile in tiles) * LISTED_BYTES <= SCALAR_BYTES:
        return None
    return Reason.unsupported(
        f"tokamax lists every tile of a piece of {rows:,} rows, and this list needs more than the 1 MiB of scalar "
        "memory",
        "Try larger tiles, more devices on the ring, or --kernel pallas_tpu.",
    )


def known_tile(workload: Workload, plan: Plan, device_kinds: Sequence[str], passes: str) -> KnownTile | None:
    """The winner of tokamax's own sweep for the shape nearest to a pair of shards."""
    from stripectl.kernels.tokamax.winners import Shape, nearest_winner

    sharding = sequence_sharding(workload, plan)
    rows, heads = (sharding.query_piece, sharding.key_piece), (workload.head_dim, workload.value_dim)
    shape = Shape(*rows, *heads, workload.heads // workload.kv_heads, workload.mask != "full")
    return nearest_winner(device_kinds, shape, passes)


about = Kernel(
    "tokamax",
    paper="https://github.com/openxla/tokamax",
    family="softmax",
    default_tile=lambda kind: DEFAULT,
    why_unsupported=why_unsupported,
    why_missing=lambda: Reason.not_installed(why_no_tokamax("pallas_tpu")),
    keys_at_once=lambda tile: (tile.block_kv,),
    count_tiles=count_padded_tiles,
    tile_multiple=LANES,
    min_default_rows=lambda kind: MIN_DEFAULT_ROWS,
    returns_result=True,
    known_tile=known_tile,
    searched_sides=SEARCHED_SIDES,
    # And of the results of rectangles, and of the partial sums of dQ.
    roundings=lambda head_dim: 2 + roundings_of_scaled_queries(head_dim),
    costs=KernelCosts(
        dq_sums=dq_sums,
        vmem_bytes=vmem_bytes,
        # Queries are scaled, and dQ; the results of rectangles are merged in float32.
        moved_bytes_per_element={"forward": 4, "backward": 8},
        merged_bytes_per_element={"forward": 10, "backward": 6},
        query_copies={"forward": 1, "backward": 1},
        merged_copies={"forward": 1, "backward": 1},  # a separate result
        bundles={
            "forward": (PallasKernel("_fwd_", matmuls=2, only_live=True, blocks=2),),
            "backward": (PallasKernel("_dkv_", matmuls=5, only_live=True, shared=False, blocks=4),),
        },
    ),
)
