"""A layout says which positions of the sequence a shard holds; everything about masks follows from this.

A shard is one or more *pieces* of equal length whose positions are evenly spaced: first, first + step, first + 2 step.
All pieces of a layout have the same step, so between a piece of queries and a piece of keys a mask that looks `left`
and `right` of each query is a *band*: query i keeps key j where i + low <= j <= i + high. Two numbers per pair of
pieces cover every layout, causal and full masks, sliding windows and cached prefixes, and whether a tile is whole,
boundary or dead is arithmetic on them. This arithmetic works on ints, NumPy arrays and JAX tracers.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stripectl.core.lengths import format_length, parse_length
from stripectl.core.reason import Reason
from stripectl.errors import BadInput
from stripectl.util.catalogue import Catalogue
from stripectl.util.files import unknown_name

UNBOUNDED = 2**30  # no position is larger, and with a row or column added it still fits 32 bits
Index = Any  # an int, a NumPy array (all shards at once) or a tracer
Documents = Callable[[Index], tuple[Index, Index]]  # positions -> first position of their documents, and past the last
MAX_SIDE = 2**20  # of a tile
SLIDING = "sliding:"  # a mask of each query and the keys before it, `sliding:4k` keys in total
WHOLE = (0, 1)  # the part that is all of a shard's keys


@dataclass(frozen=True)
class Halo:
    """The last `rows` rows of the run of keys that lies `distance` runs before each run of a shard's queries."""

    distance: int
    rows: int


Part = tuple[Index, int] | Halo  # of keys: the i-th of n equal parts of a shard's rows, (i, n), or a halo


class Window(NamedTuple):
    """How far a query sees: keys from `left` positions before it to `right` after it; None means no limit."""

    left: int | None
    right: int | None

    @property
    def sees_future(self) -> bool:
        """Whether queries see all keys after them."""
        return self.right is None


MASKS = {"causal": Window(None, 0), "full": Window(None, None)}


class MaskBlock(NamedTuple):
    """A piece of queries against a piece of keys: rows x cols scores from (row, col) of the pair of shards. Query i
    keeps key j (both counted inside the rectangle) where i + low <= j <= i + high. With `limits` (first, end), which
    hold one value per row and never decrease, it also needs first[i] <= j < end[i]. On every device high, or
    high + 1, is a multiple of `aligned`, which divides rows and cols."""

    row: Index
    col: Index
    rows: int
    cols: int
    low: Index
    high: Index
    limits: tuple[Any, Any] | None = None
    aligned: int = 1


Bands = Sequence[MaskBlock]  # of a pair of shards


class Tile(NamedTuple):
    """The block of scores for which a kernel fetches queries and keys: `2048x4096`; `1024` means `1024x1024`. The third
    side, as in `2048x4096x512`, is the number of keys that the kernel multiplies at once; None is the kernel's usual
    number."""

    block_q: int
    block_kv: int
    block_kv_compute: int | None = None

    def __str__(self) -> str:
        return "x".join(str(side) for side in self if side is not None)

    @property
    def sides(self) -> tuple[int, int]:
        """(queries, keys)."""
        return self.block_q, self.block_kv

    @property
    def scores(self) -> int:
        return self.block_q * self.block_kv

    @property
    def scores_at_once(self) -> int:
        """The scores of the keys that are multiplied at once."""
        return self.block_q * (self.block_kv_compute or self.block_kv)

    def distance(self, other: "Tile") -> float:
        """The distance between two tiles, in the logarithms of their sides. Two third sides count where both are
        known."""
        pairs = [*zip(self.sides, other.sides, strict=True)]
        if self.block_kv_compute and other.block_kv_compute:
            pairs.append((self.block_kv_compute, other.block_kv_compute))
        return sum(abs(math.log2(a / b)) for a, b in pairs)


@dataclass(frozen=True)
class Layout:
    """Which positions each shard holds.

    `firsts(shard, shards, rows)` gives the first position of each piece, in the order in which the shard stores them;
    `step(shards)` is the distance between neighbours in a piece; `pieces` is the number of pieces.
    """

    name: str
    paper: str
    firsts: Callable[[Index, int, int], tuple[Index, ...]]
    step: Callable[[int], int]
    pieces: int = 1

    def why_unsupported(self, seq_len: int, shards: int) -> Reason | None:
        """Why a sequence cannot be laid out on `shards` shards, or None."""
        parts = shards * self.pieces
        if seq_len % parts == 0:
            return None
        near = max(parts, round(seq_len / parts) * parts)
        needs = "rows that divide evenly" if self.pieces == 1 else f"a multiple of {self.pieces} rows per shard"
        each = f"{seq_len} over {shards} shards gives {seq_len / shards:.10g}"
        return Reason.unsupported(f"{self.name} needs {needs}; {each}", f"Try --seqlen {near}.")

    def positions(self, shards: int, rows: int) -> np.ndarray:
        """int64[shards, rows]: the position of each row of each shard."""
        spaced = np.arange(rows // self.pieces) * self.step(shards)
        firsts = [np.array(self.firsts(shard, shards, rows))[:, None] for shard in range(shards)]
        return np.stack([(first + spaced).reshape(rows) for first in firsts])

    def run_places(self, shard: Index, shards: int) -> tuple[Index, ...]:
        """The place of each piece of a shard among all pieces of the sequence, where pieces are adjacent positions."""
        return self.firsts(shard, shards, self.pieces)

    def adjacent_runs(self, run: int, shards: int, by: int = -1) -> list[tuple[int, int] | None]:
        """For every shard the (shard, piece) that holds the positions before its piece `run`, or behind it with by=1;
        None where the sequence begins or ends."""
        places = [self.run_places(shard, shards) for shard in range(shards)]
        held = {place: (shard, piece) for shard, own in enumerate(places) for piece, place in enumerate(own)}
        return [held.get(own[run] + by) for own in places]

    def permutation(self, shards: int, seq_len: int) -> np.ndarray:
        """int64[seq_len]: sharded = natural[permutation]."""
        return self.positions(shards, seq_len // shards).reshape(seq_len)

    def inverse(self, shards: int, seq_len: int) -> np.ndarray:
        """int64[seq_len]: natural = sharded[inverse]."""
        return np.argsort(self.permutation(shards, seq_len))


layouts: Catalogue[Layout] = Catalogue("stripectl.layouts", "layout", "layout")


def parse_mask(text: object) -> Window:
    """How far a query sees under a mask: `causal`, `full`, or `sliding:4k`.

    Raises:
        BadInput: not a mask.
    """
    if not isinstance(text, str):
        raise BadInput(f"a mask is a word, not {text!r}. Write causal, full or {SLIDING}4k.")
    if text in MASKS:
        return MASKS[text]
    if not text.startswith(SLIDING):
        raise unknown_name("mask", text, [*MASKS, f"{SLIDING}4k"])
    return Window(parse_length(text.removeprefix(SLIDING)) - 1, 0)


def plain_mask(text: str) -> str:
    """A mask in its normal spelling: `sliding:4k` for `sliding:4096`."""
    left, _ = parse_mask(text)
    return text if left is None else f"{SLIDING}{format_length(left + 1)}"


def parse_tile(text: str | int | tuple[int | None, ...]) -> Tile:
    """`2048x4096`, `1024` for `1024x1024`, or with the keys that are multiplied at once, `2048x4096x512`; or such sides
    as numbers.

    Raises:
        BadInput: not a tile.
    """
    given = [side for side in text if side is not None] if isinstance(text, tuple) else str(text).strip().split("x")
    sides = [int(side) for side in given if re.fullmatch(r"\d{1,7}", str(side))]
    if not 1 <= len(sides) == len(given) <= 3 or not 1 <= min(sides) <= max(sides) <= MAX_SIDE:
        raise BadInput(
            f"{text!r} is not a tile. Write 1024, 2048x4096 (queries x keys), or 2048x4096x512 (and keys at once)."
        )
    tile = Tile(*(sides if len(sides) > 1 else sides * 2))
    if tile.block_kv_compute and tile.block_kv % tile.block_kv_compute:
        near = math.gcd(*tile.sides[1:], tile.block_kv_compute)
        raise BadInput(
            f"{text!r} is not a tile, because {tile.block_kv_compute} keys at once do not divide {tile.block_kv}. "
            f"Try {tile._replace(block_kv_compute=near)}."
        )
    return tile
