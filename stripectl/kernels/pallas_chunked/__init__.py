"""pallas_chunked: linear attention with a constant decay in Pallas kernels for TPUs.

The states of some heads stay in VMEM from the first chunk of a shard to the last. The tile is a chunk. Keys that come
before all queries of a pair of shards are one state, as in `chunked`.
"""

from typing import Any

import numpy as np

from stripectl.core.kernel import Kernel
from stripectl.core.kernel_costs import KernelCosts, PallasKernel
from stripectl.core.layout import Bands, MaskBlock, Tile
from stripectl.core.mask_tiles import TileCount
from stripectl.core.plan import Plan
from stripectl.core.reason import Reason
from stripectl.core.workload import Workload
from stripectl.kernels.chunked import why_unsupported as why_not_chunked

DEFAULT = Tile(128, 128)
MAX_ROWS = 256  # of a chunk: its scores stay in registers
SUBLANES = 16  # rows of a register of bfloat16


def squares(bands: Bands) -> list[MaskBlock]:
    """Rectangles as squares of queries and keys. A square has scores for all of its pairs (high >= cols - 1), for none
    (high <= -rows), or for those on and below its diagonal, or below it (high = 0 or -1)."""
    found = list[MaskBlock]()
    for band in bands:
        side = min(band.rows, band.cols)
        for down in range(0, band.rows, side):
            for right in range(0, band.cols, side):
                place = {"row": band.row + down, "col": band.col + right, "high": band.high + down - right}
                found.append(band._replace(rows=side, cols=side, **place))
    return found


def count_square_chunks(bands: list[MaskBlock], tile: Tile) -> TileCount:
    """Chunks of linear attention: `boundary` counts the chunks of squares on the diagonal, each with its scores and its
    products with the state; in other squares `whole` counts chunks of keys that one state takes in, and `rows` chunks
    of queries that read it."""
    whole = boundary = dead = np.int64(0)
    for band in squares(bands):
        count, high = -(-band.rows // min(tile.block_kv, band.rows)), np.asarray(band.high)
        before, behind = high >= band.cols - 1, high <= -band.rows
        whole, dead = whole + count * before, dead + count * (behind & ~before)
        boundary = boundary + count * ~(before | behind)
    return TileCount(whole, boundary, dead, whole)


def why_unsupported(workload: Workload, plan: Plan, kind: str, *_: Any) -> Reason | None:
    if kind != "tpu":
        return Reason.unsupported("pallas_chunked runs on TPUs", "Try --kernel chunked.")
    for option, tile in (("tile", plan.tile), ("backward", plan.backward)):
        if tile and tile.block_q != tile.block_kv:
            return Reason.unsupported("a chunk has as many queries as keys", f"Try {option}={tile.block_kv}.")
        if tile and tile.block_kv > MAX_ROWS:
            return Reason.unsupported(
                f"pallas_chunked needs chunks of at most {MAX_ROWS} rows", f"Try {option}={MAX_ROWS}."
            )
    return why_not_chunked(workload, plan, kind)


def diagonal_kernel(name: str) -> PallasKernel:
    return PallasKernel(f"stripectl_linear_{name}_", matmuls=0, only_live=True, chunks="boundary")


about = Kernel(
    "pallas_chunked",
    paper="https://arxiv.org/abs/2404.02882",
    family="linear",
    default_tile=lambda kind: DEFAULT,
    why_unsupported=why_unsupported,
    count_tiles=count_square_chunks,
    tile_multiple=SUBLANES,
    min_default_rows=lambda kind: 64,
    fallback="chunked",
    costs=KernelCosts(
        bundles={
            "forward": (diagonal_kernel("outputs"),),
            "backward": (diagonal_kernel("dq"), diagonal_kernel("dkv")),
        },
    ),
)
