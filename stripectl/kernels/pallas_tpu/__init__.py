"""pallas_tpu: stripectl's own Pallas attention for TPUs, with any band.

Its grid holds live tiles only, whole tiles run without a mask, and the state of a row is read and written in place. The
sides of a tile are multiples of a TPU's 128 lanes; rows of a shard's piece that they do not divide are padded.
"""

from functools import partial
from typing import Any

from stripectl.core.kernel import LANES, Kernel, count_padded_tiles
from stripectl.core.kernel_costs import KernelCosts, PallasKernel
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan
from stripectl.core.reason import Reason
from stripectl.core.validation import why_unsupported_by_pallas
from stripectl.core.workload import Workload
from stripectl.kernels.pallas_tpu.tile_memory import VMEM_BYTES, keys_at_once, vmem_bytes

# 2048x2048 takes 2 to 6 % fewer bundles per score, but more scores at a diagonal: benchmarks/README.md "Tiles of Pallas
# kernels".
DEFAULT = Tile(1024, 1024)
MIN_DEFAULT_ROWS = 512
INDEX_BITS = 14  # for a tile's place in its line, and for a line's number


def why_unsupported(name: str, workload: Workload, plan: Plan, kind: str, *_: Any) -> Reason | None:
    """Why `name`, a kernel with a list of tiles, cannot run a plan, or None."""
    if reason := why_unsupported_by_pallas(name, workload, kind):
        return reason
    rows, most = workload.seq_len // plan.shards, 2**INDEX_BITS
    if any(tile and rows // min(tile.sides) > most for tile in (plan.tile, plan.backward)):
        return Reason.unsupported(
            f"{name} lists at most {most:,} tiles per side of a shard; this one has {rows:,} rows", "Try larger tiles."
        )
    return None


about = Kernel(
    "pallas_tpu",
    paper="https://arxiv.org/abs/2307.08691",
    family="softmax",
    default_tile=lambda kind: DEFAULT,
    why_unsupported=partial(why_unsupported, "pallas_tpu"),
    caps_scores=True,
    keys_at_once=lambda tile: (keys_at_once(tile),),
    count_tiles=count_padded_tiles,
    tile_multiple=LANES,
    min_default_rows=lambda kind: MIN_DEFAULT_ROWS,
    roundings=lambda head_dim: 2,  # the scaled queries, with log2(e), in the scores and in dK
    costs=KernelCosts(
        moved_bytes_per_element={"forward": 4, "backward": 4},  # the scaled queries
        vmem_bytes=vmem_bytes,
        vmem_wanted=VMEM_BYTES,
        query_copies={"forward": 1, "backward": 1},
        bundles={
            "forward": (PallasKernel("stripectl_forward", matmuls=2, only_live=True, blocks=2),),
            "backward": (PallasKernel("stripectl_backward", matmuls=5, per_kv_head=True, only_live=True, blocks=2),),
        },
    ),
)
