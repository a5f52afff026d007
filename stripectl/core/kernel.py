"""The kernels, one folder each; `kernels` finds them by listing the folder `stripectl/kernels`.

A folder's `__init__.py` describes the kernel (`about`), without JAX; its `kernel.py` computes, with JAX.
"""

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, Literal, NamedTuple

from stripectl.core.kernel_costs import KernelCosts
from stripectl.core.layout import MaskBlock, Tile
from stripectl.core.mask_tiles import TileCount, count_tiles
from stripectl.core.reason import Reason
from stripectl.errors import BadInput
from stripectl.util.catalogue import Catalogue

LANES, SUBLANES = 128, 8  # of a TPU's vector registers
BLOCK_COPIES = 2  # of a block in a core's memory: it is loaded or stored while another tile is computed
MIN_TILE_ROWS, MAX_TILE_ROWS = 128, 4096  # of a side worth trying: a TPU's matrix unit, and the papers' largest
# A tile costs as much as its scores and OVERHEAD_ROWS more rows: splash on v5e takes 5 % more for a score in tiles of
# 512 than in tiles of 1024 (benchmarks/README.md "Tiles of Pallas kernels").
OVERHEAD_ROWS = 54
LINEAR_FAMILIES = ("linear", "gated")  # kernels of linear attention: with a constant gate, or for a recurrence
Capability = tuple[int, int]  # the compute capability of an NVIDIA GPU: 9.0 is (9, 0)
# The tiles of striped attention, on GPUs and TPUs (arXiv:2311.09431, section 3.1).
PAPER_TILES = (Tile(2048, 4096), Tile(2048, 2048))


def padded_to_lanes(width: int) -> int:
    """The columns that an array of this width has in a core's memory."""
    return -(-width // LANES) * LANES


def always_supported(*_: Any) -> None:
    """Nothing is unsupported."""


def roundings_of_scaled_queries(head_dim: int) -> int:
    """The roundings of queries that are multiplied by head_dim^-0.5 beforehand: a gradient of keys reads them in the
    scores and in its own product. A power of two rounds nothing."""
    return 0 if math.frexp(head_dim**-0.5)[0] == 0.5 else 2


count_padded_tiles = partial(count_tiles, padded=True)


class KnownTile(NamedTuple):
    """A tile that was measured elsewhere, and where."""

    tile: Tile
    source: str


class FusedHop(NamedTuple):
    """A hop inside a kernel: arrays of (B, K, S, H) travel to the next of `size` devices round a mesh axis while the
    kernel computes. `padded`: the kernel pads the rows that it computes."""

    axis: str
    size: int
    arrays: Sequence[Any]
    padded: bool = False


@dataclass(frozen=True)
class Kernel:
    """A kernel computes the scores of a pair of shards in tiles.

    default_tile(kind) -> the tile for hardware of that kind ("cpu", "tpu", "gpu") where a plan names none.
    why_unsupported(workload, plan, kind, capability) -> why the kernel cannot run on such hardware, or None;
        `capability` is the compute capability of a GPU as (major, minor), None where it is not known.
    why_missing() -> why the kernel cannot run in this installation, with the command that installs its library, or
        None. A simulation from tables does not need the library.
    count_tiles(bands, tile) -> its tiles of a pair of shards, by kind.
    keys_at_once(tile) -> the numbers of keys that it multiplies at once where a tile has two sides: one number, or one
        under a mask and one without; None for a kernel whose tiles have no third side.
    min_default_rows(kind) -> the shortest side of a default tile, also for short shards: smaller tiles cost more than
        their better balance saves.
    tile_multiple: above 1, the sides of a tile must be such multiples. Where they do not divide the rows of a shard's
        piece, the kernel pads the rows.
    counting_tile: for a library's kernel, which chooses its tiles itself: the tile in which its work is counted. A plan
        cannot name another tile.
    table_only: only times of the kernel are known, and nothing here runs it: it can be simulated.
    returns_result: it is a library's kernel, whose calls return results and not states. A call that holds all scores is
        final; other results are merged and summed in float32.
    caps_scores: forward, backward, forward_once, backward_once and scores take soft_cap=c: scores x, after their
        scale and before the mask, become c * tanh(x / c).
    makes_hops: the kernel sends the hops of a ring itself while it computes tiles: forward and backward take a
        `FusedHop` too, and return (their usual result, the arrays that the hop has brought).
    fallback: the kernel for cases that this kernel does not support, on the same hardware.
    known_tile(workload, plan, device kinds, pass) -> the tile that published sweeps of a library found fastest for the
        nearest shape, or None: where a search for tiles begins. None for kernels without such sweeps.
    searched_sides: the smallest and the largest side that a search for tiles tries on long pieces.
    roundings(head_dim) -> how many roundings to the dtype of its arguments a gradient passes through in addition to
        the roundings of every kernel (`execute.verification`): of scaled queries, of the results of rectangles.

    In the family `softmax`, `stripectl.kernels.NAME.kernel` holds two functions over arrays q_BNTH, k_BKSH, v_BKSH
    (batch, heads or key/value heads, rows or columns, head_dim) and the bands of the pair of shards:

    forward(q, k, v, state, bands, tile) -> state, where state is (out_BNTH, max_BNT, sum_BNT) in float32: the output
        not yet divided by the sum of exponentials, the running maximum, and that sum.
    backward(q, k, v, dout, lse, delta, dq, bands, tile) -> (dq, dk, dv) in float32, with the given dq added. With lse
        the log-sum-exp and delta = rowsum(dout * out) - dlse these are the gradients of attention; with the maximum,
        the cotangent of `out` and minus the cotangent of `sum` they are the gradients of the state.

    A module whose kernel `returns_result` has two functions more, for bands that are one rectangle of all scores:

    forward_once(q, k, v, bands, tile) -> (out, lse), out in the dtype of q.
    backward_once(q, k, v, dout, lse, delta, out, bands, tile) -> (dq, dk, dv) in the dtype of q.

    In the family `linear` both also take `rates_K`, the logarithm of the decay per token of each key/value head; the
    output is not normalised. forward may compute a part (i, n), a share of the heads, and backward has two functions:
    backward_q(k, v, dout, dq, bands, tile, rates, part) -> dq and backward_kv(q, k, v, dout, bands, tile, rates) ->
    (dk, dv). The state functions are state(k, v, rates) -> the state of a shard's keys, advance_state(state, own, rate,
    rows) -> a state after `rows` more rows, and apply(q, before, rates) -> out_BNTH from the state before a shard. For
    gradients, dstate(q, dout, rates) -> the gradient of `before`, and state_backward(k, v, behind, rates) -> (dk, dv)
    from the gradient of the state after the shard.

    In the family `gated` functions take a Recurrence first, gates after k and v, and the rows of a chunk last:
    map_of(k, v, gates) and transposed_map_of(q, k, dout, gates) -> the map of a shard on states and on gradients of
    states, one array per head; apply_map(map, state) and compose_maps(later, earlier); outputs(q, k, v, gates, before),
    and gradients(q, k, v, gates, dout, before, behind) -> (dq, dk, dv, gradients of the gates).

    The family `scores` has three functions, which JAX differentiates: scores(q, k, bands), weights(list of scores) ->
    (list of weights, max_BNT, sum_BNT), and weigh(weights, v, bands) -> out_BNTH.
    """

    name: str
    paper: str
    family: Literal["softmax", "scores", "linear", "gated"]
    default_tile: Callable[[str], Tile]
    why_unsupported: Callable[[Any, Any, str, Capability | None], Reason | None] = always_supported
    why_missing: Callable[[], Reason | None] = always_supported
    count_tiles: Callable[[list[MaskBlock], Tile], TileCount] = count_tiles
    keys_at_once: Callable[[Tile], tuple[int, ...]] | None = None
    tile_multiple: int = 1
    min_default_rows: Callable[[str], int] = lambda kind: MIN_TILE_ROWS
    counting_tile: Tile | None = None
    table_only: bool = False
    returns_result: bool = False
    caps_scores: bool = False
    makes_hops: bool = False
    fallback: str = ""
    known_tile: Callable[[Any, Any, Sequence[str], str], KnownTile | None] | None = None
    searched_sides: tuple[int, int] = (MIN_TILE_ROWS, MAX_TILE_ROWS)
    roundings: Callable[[int], int] = lambda head_dim: 0
    costs: KernelCosts = field(default_factory=KernelCosts)

    @property
    def attention(self) -> str:
        """The kind of attention that the kernel computes."""
        return "linear" if self.family in LINEAR_FAMILIES else "softmax"

    def computes(self, passes: str) -> str:
        """The kernel that computes its tiles in a pass."""
        return self.costs.tile_costs_of.get(passes, self.name)

    @property
    def is_fused(self) -> bool:
        """Whether it is a kernel of its own or of a library, not a loop that XLA compiles."""
        return bool(self.costs.bundles) or self.counting_tile is not None

    @property
    def keeps_all_scores(self) -> bool:
        return bool(self.costs.score_touches)

    def largest_tile(self, tile: Tile, rows: int) -> Tile:
        """The largest tile, at most as large as `tile`, that the kernel can run on pieces of `rows` rows; the kernel's
        smallest tile where no tile is small enough. A kernel that pads rows has sides whose tiles, padding included,
        cost least."""
        unit, tile, limit = self.tile_multiple, self.counting_tile or tile, self.padded(rows)

        def side(most: int) -> int:
            largest = max(unit, min(most, limit) // unit * unit)
            if unit == 1:
                return largest
            return min(range(largest, 0, -unit), key=lambda size: self.padded(rows, size) * (1 + OVERHEAD_ROWS / size))

        keys = side(tile.block_kv)
        at_once = tile.block_kv_compute and math.gcd(keys, max(unit, tile.block_kv_compute // unit * unit))
        return Tile(side(tile.block_q), keys, at_once)

    def padded(self, rows: int, side: int | None = None) -> int:
        """The rows of a piece, padded to a side of a tile, by default to the shortest; where the kernel pads none, the
        rows themselves."""
        unit = side or self.tile_multiple
        return -(-rows // unit) * unit if self.tile_multiple > 1 else rows

    def pads(self, tile: Tile, rows: int) -> bool:
        """Whether the kernel pads pieces of `rows` rows to this tile."""
        return self.tile_multiple > 1 and any(rows % side for side in tile.sides)

    def full_name(self, tile: Tile) -> Tile:
        """The tile with its third side: where the kernel has several, its number under a mask."""
        if self.keys_at_once is None or tile.block_kv_compute:
            return tile
        return tile._replace(block_kv_compute=self.keys_at_once(tile)[0])

    def shortest_name(self, tile: Tile) -> Tile:
        """The tile without its third side, where the kernel multiplies as many keys at once by itself."""
        two = tile._replace(block_kv_compute=None)
        usual = self.keys_at_once and set(self.keys_at_once(two))
        return two if usual == {tile.block_kv_compute} else tile

    def candidate_tiles(self, rows: int) -> list[Tile]:
        """Tiles worth trying on pieces of `rows` rows: sides that are powers of two and that the kernel can run, the
        smallest sides that give as many tiles, and the papers' tiles, which may not fit."""
        if self.keeps_all_scores:
            return [Tile(rows, rows)]
        if self.counting_tile:
            return [self.largest_tile(self.counting_tile, rows)]
        most = self.padded(rows)
        low, high = self.searched_sides
        sides = [2**n for n in range(min(low, most).bit_length() - 1, min(high, most).bit_length())]
        if self.tile_multiple > 1:
            sides += [self.padded(-(-rows // -(-rows // side))) for side in (*sides, 2 * sides[-1])]
        unsupported = self.why_tile_unsupported
        fit = [side for side in sides if side <= high and unsupported(Tile(side, side), rows) is None]
        papers = [tile for tile in PAPER_TILES if max(tile.sides) <= high]
        return list(dict.fromkeys([*(Tile(q, kv) for q in fit for kv in fit), *papers]))

    def why_tile_unsupported(self, tile: Tile, rows: int, option: str = "tile") -> Reason | None:
        """Why a tile, given as `option` of a plan, cannot run on pieces of `rows` rows, or None."""
        unit, at_once = self.tile_multiple, tile.block_kv_compute
        if at_once and not self.keys_at_once:
            two = tile._replace(block_kv_compute=None)
            return Reason.unsupported(
                f"{self.name} multiplies all keys of a tile at once, so a tile has two sides", f"Try {option}={two}."
            )
        if self.counting_tile and tile != self.largest_tile(tile, rows):
            return Reason.unsupported(f"{self.name} chooses its tiles itself", f"Omit {option}={tile}.")
        fitting = self.largest_tile(tile, rows)
        if any(side % unit for side in tile.sides):
            pass_of = "" if option == "tile" else f"{option} "
            return Reason.unsupported(
                f"{self.name} needs {pass_of}tiles of multiples of {unit}; {tile} is not", f"Try {option}={fitting}."
            )
        if at_once and at_once % unit:
            near = tile._replace(block_kv_compute=fitting.block_kv_compute)
            return Reason.unsupported(
                f"{self.name} multiplies a multiple of {unit} keys at once; {at_once} is not", f"Try {option}={near}."
            )
        return None

    def load(self) -> ModuleType:
        """The module that computes; imports JAX.

        Raises:
            BadInput: nothing here runs the kernel.
        """
        if self.table_only:
            raise BadInput(str(self.why_missing()))
        return importlib.import_module(f"{kernels.module(self.name)}.kernel")


kernels: Catalogue[Kernel] = Catalogue("stripectl.kernels", "kernel", "about")
