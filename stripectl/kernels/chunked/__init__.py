"""chunked: linear attention in chunks (Katharopoulos et al. 2020; Qin et al. 2024, LASP, section 2.2).

A query attends to the keys of its own chunk through masked scores, and to all earlier keys through a float32 state of
head_dim x head_dim that sums them up. Work therefore grows linearly with the length, and the chunk size, which is the
tile, balances the two parts. The state decays with every token. The output is not normalised: that is the model's task.
"""

from typing import Any

import numpy as np

from stripectl.core.kernel import Kernel
from stripectl.core.layout import UNBOUNDED, MaskBlock, Tile, layouts
from stripectl.core.mask_tiles import TileCount, column_tiles, row_tiles
from stripectl.core.plan import Plan
from stripectl.core.reason import Reason
from stripectl.core.validation import why_not_one_document
from stripectl.core.workload import Workload


def count_chunk_tiles(bands: list[MaskBlock], tile: Tile) -> TileCount:
    """Tiles of linear attention: `whole` counts the key tiles that a state takes in, each once; `rows` counts the rows
    of tiles whose queries read a state; `boundary` counts the tiles with scores."""
    whole = boundary = dead = visited = np.int64(0)
    for band in bands:
        shape = np.broadcast_shapes(np.shape(band.low), np.shape(band.high))
        high = np.broadcast_to(band.high, shape)[..., None].astype(np.int64)
        spread = band._replace(low=np.full_like(high, -UNBOUNDED), high=high)
        side = Tile(min(tile.block_q, band.rows), min(tile.block_kv, band.cols))
        index = np.arange(-(-band.rows // side.block_q))
        first, last = row_tiles(spread, side)
        visit = (index >= first) & (index < last)
        _, _, c, d = column_tiles(spread, side, index * side.block_q)
        whole = whole + np.where(visit, c, 0).max(-1)
        boundary = boundary + np.where(visit, d - c, 0).sum(-1)
        dead = dead + (~visit).sum(-1)
        visited = visited + visit.sum(-1)
    return TileCount(whole, boundary, dead, visited)


def why_unsupported(workload: Workload, plan: Plan, kind: str, *_: Any) -> Reason | None:
    window = workload.window
    if reason := why_not_one_document("chunked", workload):
        return reason
    if window.left is not None:
        return Reason.unsupported(
            f"linear attention has no {workload.mask} window: a state cannot forget a key", "Try --mask causal."
        )
    if workload.rates is None or not workload.rates.any():
        return None
    if window.sees_future:
        return Reason.unsupported(
            "a decay counts the tokens back to a key, but a full mask also looks ahead", "Try --decay 1."
        )
    if layouts[plan.layout].step(plan.shards) > 1:
        return Reason.unsupported(
            f"a decay needs adjacent tokens, but {plan.layout} spreads them", "Try --layout contiguous or --decay 1."
        )
    return None


about = Kernel(
    "chunked",
    paper="https://arxiv.org/abs/2404.02882",
    family="linear",
    default_tile=lambda kind: Tile(256, 256),
    why_unsupported=why_unsupported,
    count_tiles=count_chunk_tiles,
)
