"""chunked: linear attention in chunks (Katharopoulos et al. 2020; Qin et al. 2024, LASP, section 2.2).

A query meets the keys of its own chunk by the masked product, and all before them by a state of head_dim x head_dim, in
float32, that those keys add up to; so work grows with the length, and the chunk, which is the tile, weighs the two. The
state fades by a decay each token. The output is not normalised: what a model does to it comes after.
"""

import numpy as np

from stripectl.core.kernel import Kernel
from stripectl.core.layout import UNBOUNDED, MaskBlock, Tile, TileCount, column_tiles, layouts, row_tiles


def count_chunk_tiles(bands: list[MaskBlock], tile: Tile) -> TileCount:
    """`whole` are the tiles of keys that a state takes in, each once, and `rows` the rows of tiles whose queries meet
    it; `boundary` ones have scores."""
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


def why_unsupported(workload, plan, kind, *_):
    window = workload.window
    if workload.query_len is not None or workload.documents is not None:
        return "chunked takes whole sequences of one document. Leave --query-len and --documents out."
    if window.left is not None:
        return f"linear attention has no {workload.mask} window: a state does not forget a key. Try --mask causal."
    if workload.rates is None or not workload.rates.any():
        return None
    if window.sees_future:
        return "a decay counts tokens back to a key, and a full mask looks on too. Try --decay 1."
    if layouts[plan.layout].step(plan.shards) > 1:
        return f"a decay counts tokens, which {plan.layout} deals to all shards. Try --layout contiguous, or --decay 1."
    return None


about = Kernel(
    "chunked",
    paper="https://arxiv.org/abs/2404.02882",
    family="linear",
    default_tile=lambda kind: Tile(256, 256),
    why_unsupported=why_unsupported,
    count_tiles=count_chunk_tiles,
)
