"""The kernels, a folder each; `kernels` finds them by listing this folder.

A folder's `__init__.py` says what the kernel is (`about`), without JAX; its `kernel.py` computes, with JAX.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, NamedTuple

from stripectl.core.layout import MaskBlock, Tile, TileCount, count_tiles
from stripectl.util.files import Catalogue

LANES = 128  # of a TPU's vector registers
MIN_TILE_ROWS, MAX_TILE_ROWS = 128, 4096  # of a side worth trying: a TPU's matrix unit, the papers' largest
LINEAR_FAMILIES = ("linear", "gated")  # of linear attention: with a constant gate, or a recurrence
Capability = tuple[int, int]  # of an NVIDIA GPU: 9.0 is (9, 0)
# Of striped attention, on GPUs and TPUs (arXiv:2311.09431, section 3.1).
PAPER_TILES = (Tile(2048, 4096), Tile(2048, 2048))


def always_supported(*_: Any) -> None:
    """Nothing is unsupported."""


def why_not_whole_sequences(name: str, workload: Any) -> str | None:
    """Why a kernel of whole sequences cannot compute a workload, or None."""
    if workload.query_len is not None:
        return f"{name} has as many queries as keys. Try --kernel xla."
    if workload.documents is not None:
        return f"{name} has masks of whole sequences, no documents. Try --kernel xla."
    return None


def why_unsupported_by_pallas(name: str, workload: Any, plan: Any, kind: str) -> str | None:
    """Why a Pallas kernel for TPUs, of whole sequences, cannot run a plan, or None."""
    if kind != "tpu":
        return f"{name} runs on TPUs. Try --kernel xla."
    if reason := why_not_whole_sequences(name, workload):
        return reason
    if plan.parts > 1 and workload.seq_len // plan.shards // plan.parts % LANES:
        return f"{name} needs parts of multiples of {LANES} rows. Try a smaller parts."
    return None


class PallasKernel(NamedTuple):
    """One of the Pallas kernels that a pass is made of."""

    name: str  # a part of what the HLO calls it, which no other of the pass has
    matmuls: int  # of a tile
    per_kv_head: bool = False  # its tiles lie in columns, of a key/value head, not in rows
    only_live: bool = False  # its grid holds live tiles alone, and whole ones go without a mask
    shared: bool = True  # the cores of a device share its grid; else all of it runs on one of them


class FusedHop(NamedTuple):
    """What travels to the next of `size` devices round an axis of the mesh while a kernel computes: arrays of (B, K, S,
    H)."""

    axis: str
    size: int
    arrays: Sequence[Any]


@dataclass(frozen=True)
class Kernel:
    """Computes the scores of a pair of shards in tiles.

    default_tile(kind) -> the tile to use on hardware of that kind ("cpu", "tpu", "gpu") when a plan names none.
    why_unsupported(workload, plan, kind, capability) -> why the kernel cannot run on such hardware, or None;
        `capability` is the compute capability of a GPU as (major, minor), None where it is not known.
    count_tiles(bands, tile) -> its tiles of a pair of shards by kind.
    min_default_rows(kind) -> the shortest side of a default tile, however short the shards: smaller tiles cost
        more than their balance saves.
    tile_multiple: above 1, a tile's sides must be multiples of it that divide the rows of a shard's piece.
    counting_tile: of a library's kernel, which chooses its tiles itself: the tile in which its work is counted; no plan
        can name another, and no compiler knows the workspace.
    rows_per_fetch: how many rows of tiles share a fetch of keys and values from memory, as they run at once.
    score_touches[pass] -> how often a score of a kernel that keeps all of them in memory goes to it or from it; such a
        kernel takes no tile: a tile is a whole piece of a shard.
    bundles[pass] -> the Pallas kernels of the pass, whose tiles a TPU's compiler estimates only in its bundles; none
        for a kernel that XLA compiles.
    makes_hops: it makes the hops of a ring itself, while it computes tiles: forward and backward take a `FusedHop`
        besides, and give (what they give without it, what the hop has brought).
    fallback: the kernel that computes what this one cannot, on the same hardware.
    tile_costs_of: the kernel whose tiles it computes, where that is another: they cost the same.
    moved_bytes_per_element[pass] -> bytes that a call reads and writes in memory for each element of its queries,
        besides its tiles: queries that are scaled beforehand, results that are merged afterwards.
    query_copies[pass] -> how many copies of the queries a call holds in memory meanwhile.
    saved_score_tiles[pass] -> how many arrays of a tile's scores in float32 it holds meanwhile.

    `stripectl.kernels.NAME.kernel` of the family `softmax` holds two functions over arrays q_BNTH, k_BKSH, v_BKSH
    (batch, heads or key/value heads, rows or columns, head_dim) and the bands of the pair of shards:

    forward(q, k, v, state, bands, tile) -> state, where state is (out_BNTH, max_BNT, sum_BNT) in float32: the output
        not yet divided by the sum of exponentials, the running maximum, and that sum.
    backward(q, k, v, dout, lse, delta, dq, bands, tile) -> (dq, dk, dv) in float32, dq added to what came in. With
        lse the log-sum-exp and delta = rowsum(dout * out) - dlse these are attention's gradients; with the maximum, the
        cotangent of `out` and minus the cotangent of `sum` they are those of the state.

    Of the family `linear` both take `rates_K` besides, the logarithms of the decay of a token of every key/value head;
    the output is not normalised. forward may compute a part (i, n), a share of the heads; and backward comes in two:
    backward_q(k, v, dout, dq, bands, tile, rates, part) -> dq and backward_kv(q, k, v, dout, bands, tile, rates) ->
    (dk, dv). With them go state(k, v, rates) -> what the keys of a shard add up to, advance_state(state, own, rate,
    rows) -> a state after so many rows more, apply(q, before, rates) -> out_BNTH behind such a state, and of gradients
    dstate(q, dout, rates) -> that of `before`, state_backward(k, v, behind, rates) -> (dk, dv) from that of the state
    behind.

    Of the family `gated` they take a Recurrence first, gates behind k and v, and the rows of a chunk last: map_of(k, v,
    gates) and transposed_map_of(q, k, dout, gates) -> what a shard does to a state and to the gradient of one, in one
    array a head; apply_map(map, state) and compose_maps(later, earlier); outputs(q, k, v, gates, before), and
    gradients(q, k, v, gates, dout, before, behind) -> (dq, dk, dv, of each gate).

    Of the family `scores` it holds three, which JAX differentiates: scores(q, k, bands), weights(list of scores) ->
    (list of weights, max_BNT, sum_BNT), and weigh(weights, v, bands) -> out_BNTH.
    """

    name: str
    paper: str
    family: Literal["softmax", "scores", "linear", "gated"]
    default_tile: Callable[[str], Tile]
    why_unsupported: Callable[[Any, Any, str, Capability | None], str | None] = always_supported
    count_tiles: Callable[[list[MaskBlock], Tile], TileCount] = count_tiles
    tile_multiple: int = 1
    min_default_rows: Callable[[str], int] = lambda kind: MIN_TILE_ROWS
    counting_tile: Tile | None = None
    rows_per_fetch: int = 1
    score_touches: Mapping[str, int] = field(default_factory=dict)
    bundles: Mapping[str, tuple[PallasKernel, ...]] = field(default_factory=dict)
    makes_hops: bool = False
    fallback: str = ""
    tile_costs_of: str = ""
    moved_bytes_per_element: Mapping[str, int] = field(default_factory=dict)
    query_copies: Mapping[str, int] = field(default_factory=dict)
    saved_score_tiles: Mapping[str, int] = field(default_factory=dict)

    @property
    def attention(self) -> str:
        """The kind of attention that it computes."""
        return "linear" if self.family in LINEAR_FAMILIES else "softmax"

    @property
    def masks_all(self) -> bool:
        """Whether it masks every tile of a pair of shards that has a boundary, and visits the dead ones."""
        parts = [part for of_pass in self.bundles.values() for part in of_pass]
        return bool(parts) and not any(part.only_live for part in parts)

    @property
    def keeps_all_scores(self) -> bool:
        return bool(self.score_touches)

    def largest_tile(self, tile: Tile, rows: int) -> Tile:
        """The largest tile that the kernel can run on pieces of `rows` rows and that is no larger than `tile`; the
        kernel's smallest where there is none."""
        unit, tile = self.tile_multiple, self.counting_tile or tile

        def side(most: int) -> int:
            sizes = range(min(most, rows) // unit * unit, 0, -unit)
            return next((size for size in sizes if unit == 1 or rows % size == 0), unit)

        return Tile(side(tile.block_q), side(tile.block_kv))

    def candidate_tiles(self, rows: int) -> list[Tile]:
        """Tiles worth trying on pieces of `rows` rows: powers of two a side that the kernel can run, and the papers',
        which may not fit."""
        if self.keeps_all_scores:
            return [Tile(rows, rows)]
        if self.counting_tile:
            return [self.largest_tile(self.counting_tile, rows)]
        sides = [2**n for n in range(min(MIN_TILE_ROWS, rows).bit_length() - 1, min(MAX_TILE_ROWS, rows).bit_length())]
        fit = [side for side in sides if self.why_tile_unsupported(Tile(side, side), rows) is None]
        return list(dict.fromkeys([*(Tile(q, kv) for q in fit for kv in fit), *PAPER_TILES]))

    def why_tile_unsupported(self, tile: Tile, rows: int, option: str = "tile") -> str | None:
        """Why a tile, which is an option of a plan, cannot run on pieces of `rows` rows, or None."""
        unit = self.tile_multiple
        if self.counting_tile and tile != self.largest_tile(tile, rows):
            return f"{self.name} chooses its tiles itself. Leave {option}={tile} out."
        if unit == 1 or all(side % unit == 0 == rows % side for side in tile):
            return None
        pass_of = "" if option == "tile" else f"{option} "
        need = f"{self.name} needs {pass_of}tiles of multiples of {unit} that divide the {rows} rows of a piece"
        fitting = f"{tile} is not. Try {option}={self.largest_tile(tile, rows)}." if rows % unit == 0 else "none does."
        return f"{need}; {fitting}"

    def load(self) -> ModuleType:
        """The module that computes; imports JAX."""
        return importlib.import_module(f"stripectl.kernels.{self.name}.kernel")


kernels = Catalogue("stripectl.kernels", "kernel", "about")
