"""A kernel's grid: the live tiles of a pair of shards, listed before it runs by arithmetic on the bands.

Rows that the tile does not divide are padded to it (`padding`). Tiles of padded queries are computed like others; tiles
with the last key are masked, and drop the padded keys.

A line is a row of tiles through all adjacent rectangles, or, by columns, a column of tiles. Its accumulators are read
once and written once, so copies never conflict. Lines without a live tile are omitted, and the other lines numbered. An
entry of the list says which tile of which line it is, whether it begins or ends its line, and whether it needs a mask.
The list is prefetched, and the grid is as long as the list.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from stripectl.core.kernel import FusedHop
from stripectl.core.layout import UNBOUNDED, Bands, Index, MaskBlock, Tile
from stripectl.core.mask_tiles import column_tiles, row_tiles
from stripectl.kernels.pallas_tpu import INDEX_BITS
from stripectl.kernels.pallas_tpu.accumulators import Ref
from stripectl.kernels.pallas_tpu.hop import COLLECTIVE, RemoteHop
from stripectl.kernels.pallas_tpu.tile_memory import VMEM_BYTES
from stripectl.kernels.xla.kernel import Arrays, compiled_platform

LISTED = 2**15  # tiles in a list, so that it fits in a core's scalar memory
MASKED, BEGINS, ENDS = 4, 2, 1  # bits of a tile's entry
INTERPRET: Any = True  # how a CPU runs the kernels: as plain JAX, or by the rules of TPU interpret mode
INTERPRET_HOPS: Any = pltpu.InterpretParams()  # devices wait for each other, because their grids differ in length


def tiles_of(bands: MaskBlock, tile: Tile) -> tuple[int, int]:
    """(rows of tiles, columns of tiles) of a rectangle."""
    return -(-bands.rows // tile.block_q), -(-bands.cols // tile.block_kv)


def live_tiles(bands: MaskBlock, tile: Tile) -> tuple[Any, Any, Any]:
    """(entries, count, lines): the live tiles of P x Q rectangles (low and high are (P, Q)), line by line, and the
    ascending numbers of the lines that have live tiles, with a smaller number behind the last."""
    beside, (rows, cols) = bands.low.shape[1], tiles_of(bands, tile)
    spread = bands._replace(low=bands.low[:, None], high=bands.high[:, None])
    index = jnp.arange(rows, dtype=jnp.int32)[:, None]
    first, last = row_tiles(spread, tile)
    a, b, c, d = column_tiles(spread, tile, index * tile.block_q)
    live = jnp.where((index >= first) & (index < last), d - a, 0)
    in_line, ends = live.sum(-1).reshape(-1), jnp.cumsum(live)
    line_ends = ends[beside - 1 :: beside]
    a, b, c = ((x + jnp.arange(beside, dtype=jnp.int32) * cols).reshape(-1) for x in (a, b, c))
    step = jnp.arange(ends.size * cols, dtype=jnp.int32)
    behind = jnp.searchsorted(ends, step, side="right", method="compare_all")  # one program; a search has several
    part = jnp.minimum(behind, ends.size - 1).astype(jnp.int32)
    line = part // beside
    along = jnp.minimum((a - ends + live.reshape(-1))[part] + step, beside * cols - 1)
    masked = (along < b[part]) | (along >= c[part]) | ((line % rows + 1) * tile.block_q > bands.rows)
    flags = masked * MASKED + (step == (line_ends - in_line)[line]) * BEGINS + (step == line_ends[line] - 1) * ENDS
    number = jnp.maximum(jnp.cumsum(in_line > 0) - 1, 0)
    (lines,) = jnp.nonzero(in_line, size=in_line.size + 1, fill_value=-1)
    along = along + bands.col // tile.block_kv
    return (((number[line] << INDEX_BITS) + along) << 3) + flags, ends[-1], lines + bands.row // tile.block_q


def cores_of_a_device() -> int:
    """TensorCores per device of the TPU that is compiled for. Each runs a share of a grid's parallel axis."""
    return pltpu.get_tpu_info().num_cores if compiled_platform() == "tpu" else INTERPRET_HOPS.num_cores_or_threads


def split_by_sizes(items: Sequence[Any], sizes: Sequence[int]) -> list[Sequence[Any]]:
    """Items in parts of these sizes, and the rest."""
    ends = list(itertools.accumulate(sizes, initial=0))
    return [*(items[a:b] for a, b in itertools.pairwise(ends)), items[ends[-1] :]]


def place_of(entry: Index) -> tuple[Index, Index]:
    """(number of the line, place in the line) of an entry."""
    return entry >> 3 + INDEX_BITS, (entry >> 3) & (1 << INDEX_BITS) - 1


class TileList(NamedTuple):
    """A list as kernels prefetch it, with all places counted within the pair of shards: the entries and their count,
    the live lines, the line and the place in it where the list begins, and (low, high) of each rectangle. A rectangle
    has `each` lines and tiles per line, and `beside` rectangles share lines. Its `keys` lie along the lines, or, with
    `by_columns`, across them. Where `on_diagonal`, masked tiles are squares on the mask's diagonal."""

    order: Any
    count: Any
    lines: Any
    corner: Any
    bands: Any
    sides: Tile
    each: tuple[int, int]
    beside: int
    keys: int
    by_columns: bool
    on_diagonal: bool

    def at(self, step: Index) -> tuple[Any, Any]:
        """(line, tile in the line) of a step."""
        number, along = place_of(self.order[step])
        return self.lines[number], along

    def band(self, step: Index) -> tuple[Any, Any]:
        """(low, high) of the tile of a step, relative to its corner."""
        line, along = self.at(step)
        down, right = (lax.div(x, each) for x, each in zip(self.inside(step), self.each, strict=True))
        rectangle = down * self.beside + right
        apart = line * self.sides.block_q - along * self.sides.block_kv
        return self.bands[2 * rectangle] + apart, self.bands[2 * rectangle + 1] + apart

    def inside(self, step: Index) -> tuple[Any, Any]:
        """(line, tile in the line) of a step, counted from the corner."""
        line, along = self.at(step)
        return line - self.corner[0], along - self.corner[1]

    def keys_left(self, step: Index) -> Any:
        """How many keys of its rectangle lie at or behind the first key of the tile of a step, where the tile does not
        divide them; else None."""
        axis = int(not self.by_columns)
        side = self.sides.sides[axis]
        return self.keys - lax.rem(self.inside(step)[axis], self.each[axis]) * side if self.keys % side else None


class TileGrid(NamedTuple):
    """The grid over the live tiles of P x Q rectangles (low and high are (P, Q)). Its lines are rows of tiles for all
    heads of a group, or, with `by_columns`, columns of tiles, where a step reads the queries of one head."""

    bands: MaskBlock
    tile: Tile
    by_columns: bool

    @property
    def transposed(self) -> tuple[MaskBlock, Tile]:
        """The rectangles and their tile, transposed so that lines are rows."""
        if not self.by_columns:
            return self.bands, self.tile
        row, col, rows, cols, low, high = self.bands[:6]
        return MaskBlock(col, row, cols, rows, -high.T, -low.T), Tile(self.tile.block_kv, self.tile.block_q)

    def spec(self, kind: str, group: int, width: int, each: int, listed: Callable) -> pl.BlockSpec:
        """The block that a step fetches from queries (L, G, T, H), from one number per query (L, G, 1, T) or from keys
        (L, S, H), where a core has `each` heads."""
        heads, (block_q, block_kv) = None if self.by_columns else group, self.tile.sides

        def at(axis: int, step: Index, prefetched: Sequence[Ref]) -> Index:
            return listed(*prefetched).at(step)[axis]

        def queries(core: Index, h: Index, step: Index, g: Index, *prefetched: Ref) -> tuple[Index, ...]:
            return core * each + h, g if self.by_columns else 0, at(int(self.by_columns), step, prefetched), 0

        def numbers(core: Index, h: Index, step: Index, g: Index, *prefetched: Ref) -> tuple[Index, ...]:
            return core * each + h, g if self.by_columns else 0, 0, at(int(self.by_columns), step, prefetched)

        def keys(core: Index, h: Index, step: Index, g: Index, *prefetched: Ref) -> tuple[Index, ...]:
            return core * each + h, at(int(not self.by_columns), step, prefetched), 0

        if kind == "numbers":
            return pl.BlockSpec((None, heads, 1, block_q), numbers)
        if kind == "keys":
            return pl.BlockSpec((None, block_kv, width), keys)
        return pl.BlockSpec((None, heads, block_q, width), queries)

    def listing(self) -> tuple[tuple, Callable]:
        """The arrays that kernels prefetch, the length second, and the function that makes a `TileList` from them."""
        bands, sides = self.transposed
        order, count, lines = live_tiles(bands, sides)
        corner = jnp.stack([jnp.int32(bands.row // sides.block_q), jnp.int32(bands.col // sides.block_kv)])
        down, right = (jnp.arange(n, dtype=jnp.int32) for n in bands.low.shape)
        each, beside = tiles_of(bands, sides), bands.low.shape[1]
        apart = right * each[1] * sides.block_kv - (down * each[0] * sides.block_q)[:, None]
        shift = apart + bands.col - bands.row
        lows_highs = jnp.stack([bands.low + shift, bands.high + shift], -1).reshape(-1)
        prefetched = order, count[None], jnp.maximum(lines, 0), corner, lows_highs
        own = partial(TileList, sides=sides, each=each, beside=beside)
        on_diagonal = self.tile.block_q == self.tile.block_kv and self.bands.aligned % self.tile.block_q == 0
        return prefetched, partial(own, keys=self.bands.cols, by_columns=self.by_columns, on_diagonal=on_diagonal)

    def run(
        self,
        kernel: Callable,
        name: str,
        kinds: str,
        scratch: list,
        arrays: Sequence[Array],
        carried: Sequence[Array],
        hop: FusedHop | None,
    ) -> tuple:
        """The carried arrays after a kernel has run over the tiles, updated in place and unchanged where no tile is
        live. The last arrays are the hop's, with the rows that arrived."""
        prefetched, listed = self.listing()
        count, (heads, group, *_) = prefetched[1][0], arrays[0].shape
        cores = math.gcd(heads, cores_of_a_device()) if hop else heads  # without a hop any core may take any head
        each = heads // cores
        travelling = [x.reshape(-1, *x.shape[2:]) for x in hop.arrays] if hop else []
        copied = [pltpu.SemaphoreType.DMA((len(travelling),))] * 2 if hop else []
        own, outside = len(carried) - len(travelling), pl.BlockSpec(memory_space=pl.ANY)
        sizes = len(prefetched), len(arrays), len(travelling), own, len(travelling), own, len(travelling), len(scratch)

        def body(*refs: Ref) -> None:
            told, blocks, sources, before, _, after, targets, held, copies = split_by_sizes(refs, sizes)
            found, (core, h, step, g) = listed(*told), map(pl.program_id, range(4))
            at = core * each + h, step, g
            compute = partial(kernel, at, found, *blocks, *before, *after, *held, tile=self.tile)
            if hop:
                start = found.corner[int(self.by_columns)] * self.tile.block_q
                rows, alone = slice(None), start == 0  # padded rows are not sent: the first stripe sends all others
                if not hop.padded:
                    rows, alone = pl.ds(start, self.bands.low.shape[0] * self.bands.rows), True
                part = RemoteHop(hop.axis, hop.size, (slice(None), rows), alone, sources, targets, *copies)
                part.beside(found.count[0] > 0, compute)
            else:
                compute()

        def computed(carried: Sequence[Array]) -> Arrays:
            operands = *prefetched, *arrays, *travelling, *carried
            fetched = [
                self.spec(kind, group, x.shape[-1], each, listed) for kind, x in zip(kinds.split(), arrays, strict=True)
            ]
            return pl.pallas_call(
                body,
                grid_spec=pltpu.PrefetchScalarGridSpec(
                    num_scalar_prefetch=len(prefetched),
                    grid=(cores, each, jnp.maximum(count, 1), group),
                    in_specs=[*fetched, *[outside] * (len(travelling) + len(carried))],
                    out_specs=[outside] * len(carried),
                    scratch_shapes=[*scratch, *copied],
                ),
                out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in carried],
                input_output_aliases={len(operands) - len(carried) + at: at for at in range(len(carried))},
                compiler_params=compiler_params(hop is not None),
                interpret=compiled_platform() != "tpu" and (INTERPRET_HOPS if hop else INTERPRET),
                name=name,
            )(*operands)

        return computed(carried) if hop else lax.cond(count > 0, computed, tuple, tuple(carried))


def compiler_params(hops: bool) -> pltpu.CompilerParams:
    return pltpu.CompilerParams(
        dimension_semantics=("parallel", "arbitrary", "arbitrary", "arbitrary"),
        vmem_limit_bytes=VMEM_BYTES,
        collective_id=COLLECTIVE if hops else None,
        has_side_effects=hops,
    )


def visit_stripes(stripes: MaskBlock, run: Callable, state: Arrays) -> Arrays:
    """state = run(stripe, state) for each stripe; one compiled body serves them all."""
    count, together, _ = stripes.low.shape

    def turn(at: Index, state: Arrays) -> Arrays:
        row = at * together * stripes.rows
        return run(stripes._replace(row=row, low=stripes.low[at], high=stripes.high[at]), state)

    return turn(0, state) if count == 1 else lax.fori_loop(0, count, turn, state)


def in_stripes(bands: Bands, tile: Tile, most: int = UNBOUNDED) -> MaskBlock:
    """The rectangles of a pair of shards, which fill it row by row, as stripes of at most `most` rows, or of one row of
    tiles, whose lists fit. Low and high are (stripes, P, Q), and rows are a rectangle's, padded to the tile; a stripe
    holds P rectangles above each other, or a part of one rectangle. Where no number of lines divides the rectangles
    well, each line is a rectangle of its own, and the last stripe ends in dead lines."""
    beside, (whole, across) = len({b.col for b in bands}), tiles_of(bands[0], tile)
    total = whole * len(bands) // beside
    fitting = max(1, min(total, most // tile.block_q, LISTED // (beside * across)))
    stripes = -(-total // fitting)
    lines = next(n for n in range(fitting, 0, -1) if total % n == 0 and (whole % n == 0 or n % whole == 0))
    each = min(whole, lines)
    if total // lines > stripes:
        lines, each = -(-total // stripes), 1
    starts = jnp.arange(0, whole, each, dtype=jnp.int32)[:, None] * tile.block_q

    def stacked(of_band: Iterable[Index]) -> Array:
        spread = jnp.stack([jnp.asarray(x, jnp.int32) for x in of_band]).reshape(-1, 1, beside) + starts
        flat, dead = spread.reshape(-1, beside), -total % lines
        filled = jnp.pad(flat, ((0, dead), (0, 0)), constant_values=-UNBOUNDED)
        return filled.reshape(-1, lines // each, beside)

    low, high = stacked(b.low for b in bands), stacked(b.high for b in bands)
    return MaskBlock(0, 0, each * tile.block_q, bands[0].cols, low, high, aligned=bands[0].aligned)
