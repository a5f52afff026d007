"""The grid of a kernel over the live tiles that `lines` lists, with the hop that it sends, if any."""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from stripectl.core.kernel import FusedHop
from stripectl.core.layout import Index, MaskBlock, Tile
from stripectl.kernels.pallas_tpu.accumulators import Ref
from stripectl.kernels.pallas_tpu.hop import COLLECTIVE, RemoteHop
from stripectl.kernels.pallas_tpu.lines import TileList, live_tiles, tiles_of
from stripectl.kernels.pallas_tpu.tile_memory import VMEM_BYTES
from stripectl.kernels.xla.kernel import Arrays, compiled_platform

INTERPRET: Any = True  # how a CPU runs the kernels: as plain JAX, or by the rules of TPU interpret mode
INTERPRET_HOPS: Any = pltpu.InterpretParams()  # devices wait for each other, because their grids differ in length


def cores_of_a_device() -> int:
    """TensorCores per device of the TPU that is compiled for. Each runs a share of a grid's parallel axis."""
    return pltpu.get_tpu_info().num_cores if compiled_platform() == "tpu" else INTERPRET_HOPS.num_cores_or_threads


def split_by_sizes(items: Sequence[Any], sizes: Sequence[int]) -> list[Sequence[Any]]:
    """Items in parts of these sizes, and the rest."""
    ends = list(itertools.accumulate(sizes, initial=0))
    return [*(items[a:b] for a, b in itertools.pairwise(ends)), items[ends[-1] :]]


class Step(NamedTuple):
    """A step of a grid: the head (of L), the number of the tile in the list and the query head of the group; the blocks
    that were fetched, the carried arrays as they were and as they will be, and what VMEM holds."""

    head: Index
    number: Index
    g: Index
    listed: TileList
    tile: Tile
    blocks: Sequence[Ref]
    before: Sequence[Ref]
    after: Sequence[Ref]
    held: Sequence[Ref]

    @property
    def entry(self) -> Index:
        """The entry of the tile in the list."""
        return self.listed.order[self.number]


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

    def part_in(
        self, hop: FusedHop, listed: TileList, sources: Sequence[Ref], targets: Sequence[Ref], copies: Sequence[Ref]
    ) -> RemoteHop:
        """The part of the grid's stripe in a hop."""
        start = listed.corner[int(self.by_columns)] * self.tile.block_q
        rows, alone = slice(None), start == 0  # padded rows are not sent: the first stripe sends all others
        if not hop.padded:
            rows, alone = pl.ds(start, self.bands.low.shape[0] * self.bands.rows), True
        return RemoteHop(hop.axis, hop.size, (slice(None), rows), alone, sources, targets, *copies)

    def run(
        self, kernel: Callable, name: str, kinds: str, held: list, arrays: Arrays, carried: Arrays, hop: FusedHop | None
    ) -> Arrays:
        """The carried arrays after a kernel has run over the tiles, updated in place and unchanged where no tile is
        live. The last arrays are the hop's, with the rows that arrived."""
        prefetched, listed = self.listing()
        count, (heads, group, *_) = prefetched[1][0], arrays[0].shape
        cores = math.gcd(heads, cores_of_a_device()) if hop else heads  # without a hop any core may take any head
        travelling = [x.reshape(-1, *x.shape[2:]) for x in hop.arrays] if hop else []
        each, own, outside = heads // cores, len(carried) - len(travelling), pl.BlockSpec(memory_space=pl.ANY)
        sizes = len(prefetched), len(arrays), len(travelling), own, len(travelling), own, len(travelling), len(held)
        given = zip(kinds.split(), arrays, strict=True)
        fetched = [self.spec(kind, group, x.shape[-1], each, listed) for kind, x in given]

        def body(*refs: Ref) -> None:
            told, blocks, sources, before, _, after, targets, scratch, copies = split_by_sizes(refs, sizes)
            found, (core, h, number, g) = listed(*told), map(pl.program_id, range(4))
            step = Step(core * each + h, number, g, found, self.tile, blocks, before, after, scratch)
            if not hop:
                return kernel(step)
            self.part_in(hop, found, sources, targets, copies).beside(found.count[0] > 0, partial(kernel, step))

        def computed(carried: Arrays) -> Arrays:
            operands = *prefetched, *arrays, *travelling, *carried
            return pl.pallas_call(
                body,
                grid_spec=pltpu.PrefetchScalarGridSpec(
                    num_scalar_prefetch=len(prefetched),
                    grid=(cores, each, jnp.maximum(count, 1), group),
                    in_specs=[*fetched, *[outside] * (len(travelling) + len(carried))],
                    out_specs=[outside] * len(carried),
                    scratch_shapes=[*held, *[pltpu.SemaphoreType.DMA((len(travelling),))] * (2 if hop else 0)],
                ),
                out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in carried],
                input_output_aliases={len(operands) - len(carried) + at: at for at in range(len(carried))},
                name=name,
                **options_of(hop is not None),
            )(*operands)

        return computed(carried) if hop else lax.cond(count > 0, computed, tuple, tuple(carried))


class CallOptions(TypedDict):
    """Options of `pallas_call` that depend on the platform."""

    compiler_params: pltpu.CompilerParams
    interpret: bool | pltpu.InterpretParams


def options_of(hops: bool) -> CallOptions:
    """Options of a kernel with or without hops, for the platform that is compiled for."""
    params = pltpu.CompilerParams(
        dimension_semantics=("parallel", "arbitrary", "arbitrary", "arbitrary"),
        vmem_limit_bytes=VMEM_BYTES,
        collective_id=COLLECTIVE if hops else None,
        has_side_effects=hops,
    )
    return {
        "compiler_params": params,
        "interpret": compiled_platform() != "tpu" and (INTERPRET_HOPS if hops else INTERPRET),
    }
