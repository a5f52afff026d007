"""The cost of a tile: seconds, whatever their source."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from stripectl.core.layout import Tile
from stripectl.core.mask_tiles import TileCount
from stripectl.results.records import Sparse


@dataclass(frozen=True, kw_only=True)
class HeldOutBlock(Sparse):
    """A block that was not in the fit: its seconds, and the relative error of the fit."""

    block: str
    measured_s: float
    error: float


class Waves(NamedTuple):
    """How the thread blocks of a kernel, each of `block.block_q` queries, run on the processors of a GPU. The start and
    the end of a block take as long as `start_tiles` tiles; with `longest_first` the longest blocks of all heads start
    first."""

    block: Tile
    processors: int
    start_tiles: float = 0
    longest_first: bool = False


@dataclass(frozen=True)
class TileCost(Sparse):
    """Seconds per head for a tile of each kind, for visiting a row of tiles, and for a call; per key/value head for
    visiting a column of tiles. A kernel that `masks_all` masks every tile of a pair of shards with a boundary, and
    visits its dead tiles. The cost of a call is the same for shards of all lengths, except `call_grows`, which is
    proportional to their rows: copies and merges.

    On a GPU whose `processors` share the thread blocks of a kernel, each of a `block` of queries, `whole_s` is the time
    of a tile on one processor, and `start_s` the time of a block without its tiles; `longest_first` as in `Waves`.
    Where tiles were timed, `blocks` names the blocks of scores that ran, and `held_out` the block that shows the error
    of the fit.
    """

    whole_s: float = 0.0
    boundary_s: float = 0.0
    dead_s: float = 0.0
    row_s: float = 0.0
    call_s: float = 0.0
    start_s: float = 0.0
    column_s: float = 0.0
    masks_all: bool = False
    call_grows: bool = False
    processors: int = 0
    block: Tile | None = None
    longest_first: bool = False
    blocks: tuple[str, ...] = ()
    held_out: HeldOutBlock | None = None

    @property
    def waves(self) -> Waves:
        """How blocks run on the GPU's processors, which the cost must have; equal for all plans of a batch."""
        assert self.block
        start = float(np.max(self.start_s / self.whole_s)) if np.all(self.whole_s) else 0.0
        return Waves(self.block, self.processors, start, self.longest_first)

    def combined(self, other: "TileCost", how: Callable[[float, float], float]) -> "TileCost":
        """The cost whose seconds are `how` of both costs' seconds."""
        return replace(self, **{name: how(getattr(self, name), getattr(other, name)) for name in SECONDS})

    def scaled(self, factor: float) -> "TileCost":
        """The cost times a factor, without its calls and starts, which do not depend on the size of a tile."""
        return replace(self, **{name: factor * getattr(self, name) for name in SECONDS if name not in LATENCIES})

    def with_part_sped_up(self, part: str) -> "TileCost":
        """The cost if a part of the machine were twice as fast: compute changes the tiles, memory the traffic of a
        row's accumulators and all else that grows with the rows, latency the time of a call or of a block without its
        tiles."""
        parts = dict.fromkeys(SECONDS, "compute") | dict.fromkeys(LATENCIES, "latency")
        parts |= {"row_s": "memory", "column_s": "memory"} | ({"call_s": "memory"} if self.call_grows else {})
        return replace(self, **{name: getattr(self, name) / 2 for name, of in parts.items() if of == part})

    def scaled_to_length(self, times: float) -> "TileCost":
        """The cost on shards with `times` as many rows."""
        return replace(self, call_s=self.call_s * times) if self.call_grows else self

    def seconds(self, tiles: TileCount, heads: int, part: float = 1.0) -> np.ndarray:
        """Seconds of a call with these tiles for `heads` heads, which are a part of a shard's heads. A cost
        on a device has its columns in `row_s`."""
        if self.processors:
            return tiles.calls * self.call_s + tiles.busiest * self.whole_s
        whole_s, dead_s = self.whole_s, self.dead_s
        if self.masks_all:
            masked = np.greater(tiles.boundary, 0)
            whole_s, dead_s = whole_s + masked * (self.boundary_s - whole_s), masked * dead_s
        each = tiles.whole * whole_s + tiles.boundary * self.boundary_s + tiles.dead * dead_s
        return self.call_s * (part if self.call_grows else 1.0) + heads * (each + tiles.rows * self.row_s)


SECONDS = tuple(name for name in TileCost.__annotations__ if name.endswith("_s"))
LATENCIES = ("call_s", "start_s")
