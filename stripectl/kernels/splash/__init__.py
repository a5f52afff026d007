"""splash: JAX's Pallas attention for TPUs (jax.experimental.pallas.ops.tpu.splash_attention), causal and full masks.

Its kernels compute whole rectangles of tiles. The sides of a tile are multiples of a TPU's 128 lanes; rows of a shard's
piece that they do not divide are padded, and then every tile is masked. Any head_dim runs; the compiler pads a head_dim
that is not a multiple of 128.
"""

from typing import Any

from stripectl.core.kernel import LANES, Kernel, count_padded_tiles, roundings_of_scaled_queries
from stripectl.core.kernel_costs import KernelCosts, PallasKernel
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan
from stripectl.core.reason import Reason
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.validation import why_unsupported_by_pallas
from stripectl.core.workload import Workload
from stripectl.kernels.splash.tile_memory import COMPUTE, COMPUTE_WHOLE, compute_size, vmem_bytes

SCALAR_BYTES = 2**20  # scalar memory of a TPU core: libtpu 0.0.42.1, "of 1.00M smem", from v4 to tpu7x


def why_unsupported(workload: Workload, plan: Plan, kind: str, *_: Any) -> Reason | None:
    if kind == "tpu" and workload.window.left is not None:
        return Reason.unsupported("splash has causal and full masks, but no windows", "Try --kernel pallas_tpu.")
    if reason := why_unsupported_by_pallas("splash", workload, kind):
        return reason
    rows = sequence_sharding(workload, plan).key_piece
    tiles = [tile for tile in (plan.tile or DEFAULT, plan.backward) if tile]
    unmasked = workload.window.sees_future and not any(rows % tile.block_kv for tile in tiles)
    if kind != "tpu" or unmasked or all(mask_bytes(rows, tile) <= SCALAR_BYTES for tile in tiles):
        return None
    return Reason.unsupported(
        f"splash lists every tile of a piece of {rows:,} rows, and this list needs more than the 1 MiB of scalar "
        "memory",
        "Try larger tiles, more devices on the ring, or --kernel pallas_tpu.",
    )


def mask_bytes(rows: int, tile: Tile) -> int:
    """Scalar memory for the list of a piece's tiles: the tile to fetch next, and whether each is computed. Arrays there
    are padded to 8 rows of 128 elements."""
    down, across = -(-rows // tile.block_q), -(-rows // tile.block_kv)
    index = 1 if max(down, across) <= 2**7 else 2
    return -(-down // 8) * 8 * -(-across // 128) * 128 * (index + 1)


# Both passes compile for v4, v5e, v5p, v6e and tpu7x with head_dim up to 256; 2048x2048 compiles only for the last two.
# By the compiler's bundles smaller tiles gain at most 2 %: benchmarks/README.md "Tiles of Pallas kernels".
DEFAULT = Tile(1024, 1024)
MIN_DEFAULT_ROWS = 512  # on v5e a score costs 5 % more than at 1024; at 128 rows it costs nearly four times as much


about = Kernel(
    "splash",
    paper="https://arxiv.org/abs/2307.08691",
    family="softmax",
    default_tile=lambda kind: DEFAULT,
    why_unsupported=why_unsupported,
    caps_scores=True,
    fallback="pallas_tpu",
    keys_at_once=lambda tile: (compute_size(tile, COMPUTE), compute_size(tile, COMPUTE_WHOLE)),
    count_tiles=count_padded_tiles,
    tile_multiple=LANES,
    min_default_rows=lambda kind: MIN_DEFAULT_ROWS,
    returns_result=True,
    roundings=lambda head_dim: 1 + roundings_of_scaled_queries(head_dim),  # and of the results of rectangles
    costs=KernelCosts(
        # Queries are scaled, and dQ; the results of rectangles are merged in float32.
        moved_bytes_per_element={"forward": 4, "backward": 8},
        merged_bytes_per_element={"forward": 10, "backward": 6},
        vmem_bytes=vmem_bytes,
        query_copies={"forward": 1, "backward": 1},
        merged_copies={"forward": 1, "backward": 1},  # a separate result
        sum_lanes=LANES,
        bundles={
            "forward": (PallasKernel("_fwd_", matmuls=2, blocks=2),),
            "backward": (
                PallasKernel("_dq_", matmuls=3, shared=False, blocks=2),
                PallasKernel("_dkv_", matmuls=4, per_kv_head=True, shared=False, blocks=2),
            ),
        },
    ),
)
