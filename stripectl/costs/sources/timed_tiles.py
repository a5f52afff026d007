"""Tiles and hops of the local machine, as they were timed.

A calibration times blocks of whole, causal and dead scores, fits one cost per kind of tile, and is checked on a block
that was not in the fit. A block has one key/value group; on a GPU it has as many as the workload, because a GPU
computes heads at the same time: one head of 4k rows leaves three quarters of an H200 idle.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stripectl.core.kernel import kernels
from stripectl.core.layout import UNBOUNDED, MaskBlock, Tile
from stripectl.core.linear_attention import CONSTANT
from stripectl.core.mask_tiles import TileCount
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import CostModel
from stripectl.hardware.profile import Hardware
from stripectl.results.cost_source import CostOrigin, CostSource, HopCost, LinkCosts, Timings
from stripectl.results.records import Sparse
from stripectl.results.tile_cost import HeldOutBlock, TileCost

BLOCKS = (4096, 8192)
HELD_OUT = 6144
BANDS = {"whole": (-UNBOUNDED, UNBOUNDED), "causal": (-UNBOUNDED, 0), "dead": (-UNBOUNDED, -UNBOUNDED)}
# Query heads of a block on a GPU: the fewest for a library's kernel, which gives each multiprocessor one tile's rows of
# a head, and the most, because of memory.
MIN_BLOCK_HEADS, MAX_BLOCK_HEADS = 16, 64
HOP_BYTES = (2**16, 2**20, 2**24)


@dataclass(frozen=True)
class CalibrationBlock:
    """A square block of scores to time: `rows` queries and keys under one band."""

    rows: int
    band: str

    def __str__(self) -> str:
        return f"{self.rows} {self.band}"

    @property
    def rectangle(self) -> MaskBlock:
        aligned = self.rows if self.band == "causal" else 1
        return MaskBlock(0, 0, self.rows, self.rows, *BANDS[self.band], aligned=aligned)


@dataclass(frozen=True, kw_only=True)
class BlockShape(Sparse):
    """The properties, besides rows and band, that determine the time of a block: `group` heads for each of `groups` key
    heads."""

    group: int
    head_dim: int
    v_head_dim: int
    dtype: str
    recurrence: str = CONSTANT
    groups: int = 1
    soft_cap: float | None = None

    @classmethod
    def of(cls, workload: Workload, kernel: str, kind: str) -> "BlockShape":
        """The shape for a kernel on hardware of that kind. Query heads share a key/value head, or in a recurrence value
        heads share a key head."""
        key_heads = workload.query_heads if workload.gated else workload.kv_heads
        group, groups = workload.heads // key_heads, 1
        if kind == "gpu":
            fewest = MIN_BLOCK_HEADS if kernels[kernel].counting_tile else 1
            groups = min(max(workload.batch * key_heads, -(-fewest // group)), max(1, MAX_BLOCK_HEADS // group))
        return cls(
            group=group,
            head_dim=workload.head_dim,
            v_head_dim=workload.value_dim,
            dtype=workload.dtype,
            recurrence=workload.recurrence if workload.gated else CONSTANT,
            groups=groups,
            soft_cap=workload.soft_cap,
        )

    @property
    def heads(self) -> int:
        return self.group * self.groups


def blocks_for(tile: Tile) -> tuple[list[CalibrationBlock], CalibrationBlock]:
    """(blocks to fit, the block held out): 4k and 8k rows, or as many as hold four tiles where tiles are larger."""
    scale = max(1, -(-4 * max(tile.sides) // BLOCKS[1]))
    fitted = [CalibrationBlock(rows * scale, band) for rows in BLOCKS for band in BANDS]
    return fitted, CalibrationBlock(HELD_OUT * scale, "causal")


def block_tile_count(block: CalibrationBlock, tile: Tile, kernel: str) -> TileCount:
    return kernels[kernel].count_tiles([block.rectangle], tile)


def fit_tiles(
    blocks: Sequence[CalibrationBlock], seconds: Sequence[float], tile: Tile, heads: int, kernel: str
) -> TileCost:
    """Non-negative costs per head of a whole, boundary and dead tile, and of a call, that fit the times best (least
    squares of relative errors)."""
    from scipy.optimize import nnls

    counts = [block_tile_count(block, tile, kernel) for block in blocks]
    rows = [[heads * float(kind) for kind in (c.whole, c.boundary, c.dead)] + [1.0] for c in counts]
    weights = 1 / np.asarray(seconds)
    costs, _ = nnls(np.asarray(rows) * weights[:, None], np.ones(len(rows)))
    whole, boundary, dead, call = (float(cost) for cost in costs)
    return TileCost(whole_s=whole, boundary_s=boundary, dead_s=dead, call_s=call)


def fit_hop(nbytes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """(latency in seconds, bytes/s one way) of a hop, from hops of several sizes."""
    from scipy.optimize import nnls

    weights = 1 / np.asarray(seconds)
    rows = np.stack([np.ones(len(nbytes)), np.asarray(nbytes, float)], 1)
    (latency, per_byte), _ = nnls(rows * weights[:, None], np.ones(len(nbytes)))
    return float(latency), 1 / max(float(per_byte), 1e-18)


def calibrated_tile(seconds: Mapping[CalibrationBlock, float], tile: Tile, heads: int, kernel: str) -> TileCost:
    """The cost of a tile, fitted to the seconds of its blocks, with the error of the fit on the block held out."""
    fitted, held_out = blocks_for(tile)
    cost = fit_tiles(fitted, [seconds[block] for block in fitted], tile, heads, kernel)
    predicted_s = float(cost.seconds(block_tile_count(held_out, tile, kernel), heads))
    measured_s = seconds[held_out]
    shown = HeldOutBlock(block=str(held_out), measured_s=measured_s, error=predicted_s / measured_s - 1)
    return replace(cost, blocks=tuple(map(str, fitted)), held_out=shown)


def timed_cost_model(
    times: Mapping[str, Mapping[CalibrationBlock, float]],
    tiles: Mapping[str, Tile],
    heads: int,
    kernel: str,
    hop: tuple[float, float] | None,
    hardware: Hardware,
) -> CostModel:
    """A machine whose tiles were timed: `times[pass][block]` in seconds, including the held-out block, for the tile of
    each pass. A pass that was not timed costs nothing and must not be simulated."""
    costs = {passes: calibrated_tile(times[passes], tile, heads, kernel) for passes, tile in tiles.items()}
    latency_s, rate = hop or (0.0, math.inf)
    own = tiles.get("backward", tiles["forward"])
    source = CostSource(
        source=CostOrigin.MEASURED_TILE,
        timings=Timings(tile=str(tiles["forward"]), backward_tile=str(own) if own != tiles["forward"] else None),
        forward=costs.get("forward"),
        backward=costs.get("backward"),
        links=LinkCosts(hop=HopCost(latency_s=latency_s, bytes_per_s_one_way=rate) if hop else None),
    )
    forward, backward = (costs.get(passes, TileCost()) for passes in ("forward", "backward"))
    torus = bool(hardware.torus_dims)
    return CostModel(forward, backward, source, latency_s, rate, hardware.overlaps, torus=torus)
