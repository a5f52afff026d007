"""gated: linear attention with gates and the delta rule, in chunks (Yang et al. 2023 and 2024; Kimi Team 2025).

A query attends to the tokens of its own chunk through masked scores, and to all earlier tokens through a state, as in
`chunked`. With the delta rule the values that a chunk writes depend on each other: they solve a triangular system (the
WY form, Yang et al. 2024, arXiv:2406.06484, section 3.2). The tile is a chunk, so it has as many queries as keys.
"""

from typing import Any

import numpy as np

from stripectl.core.kernel import Kernel
from stripectl.core.kernel_costs import KernelCosts
from stripectl.core.layout import MaskBlock, Tile
from stripectl.core.mask_tiles import TileCount
from stripectl.core.plan import Plan
from stripectl.core.reason import Reason
from stripectl.core.validation import why_not_one_document
from stripectl.core.workload import Workload


def count_chunks(bands: list[MaskBlock], tile: Tile) -> TileCount:
    """Chunks: `boundary` counts chunks with scores and outputs; `whole` counts chunks that only make a map, because all
    their keys come before all queries."""
    whole = boundary = dead = np.int64(0)
    for band in bands:
        count, high = -(-band.rows // min(tile.block_kv, band.rows)), np.asarray(band.high)
        before, behind = high >= band.cols, high <= -band.rows
        whole, dead = whole + count * before, dead + count * behind
        boundary = boundary + count * ~(before | behind)
    return TileCount(whole, boundary, dead, np.zeros_like(boundary))


def why_unsupported(workload: Workload, plan: Plan, kind: str, *_: Any) -> Reason | None:
    if reason := why_not_one_document("gated", workload):
        return reason
    if workload.mask != "causal":
        return Reason.unsupported(
            f"a recurrence reads tokens in order, so it has no {workload.mask} mask", "Try --mask causal."
        )
    if workload.recurrence == "decay":
        return Reason.unsupported("gated computes recurrences", "Try --kernel chunked, or add --recurrence gdn.")
    for option, tile in (("tile", plan.tile), ("backward", plan.backward)):
        if tile and tile.block_q != tile.block_kv:
            return Reason.unsupported("a chunk has as many queries as keys", f"Try {option}={tile.block_kv}.")
    return None


about = Kernel(
    "gated",
    paper="https://arxiv.org/abs/2406.06484",
    family="gated",
    default_tile=lambda kind: Tile(64, 64),
    why_unsupported=why_unsupported,
    count_tiles=count_chunks,
    min_default_rows=lambda kind: 64,
    costs=KernelCosts(in_stages=True),
)
