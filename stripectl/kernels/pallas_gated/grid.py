"""A grid of chunks: a kernel over it visits the chunks of some heads in order, with their states in VMEM.

Letters: K heads of keys and queries, N heads of values, L = B N, M = B K, H elements of a key, E elements of a value;
n chunks of C rows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from stripectl.core.layout import Index
from stripectl.core.recurrence import Recurrence
from stripectl.kernels.gated.chunk import Chunk, Gates
from stripectl.kernels.pallas_gated.chunks import chunk_of_head
from stripectl.kernels.pallas_tpu.accumulators import Ref
from stripectl.kernels.pallas_tpu.grid import split_by_sizes
from stripectl.kernels.pallas_tpu.tile_memory import VMEM_BYTES
from stripectl.kernels.xla.kernel import compiled_platform


def exact(dtype: DTypeLike) -> AbstractContextManager:
    """Products of float32 arrays in full precision."""
    return jax.default_matmul_precision("highest" if dtype == jnp.float32 else None)


def at_first(compute: Callable) -> None:
    pl.when(pl.program_id(1) == 0)(compute)


def at_last(compute: Callable) -> None:
    pl.when(pl.program_id(1) == pl.num_programs(1) - 1)(compute)


class Head(NamedTuple):
    """A head of values in a step: its place, the place of its head of keys, its arrays, and its gates."""

    place: int
    of_keys: int
    keys: list[Array]
    own: list[Array]
    gates: list[Array]


class Grid(NamedTuple):
    """Steps over blocks of value heads and the chunks of each: `at_once` heads of values, of which `group` share a head
    of keys, and `rows` of a chunk. A kernel over it multiplies in `dtype`."""

    recurrence: Recurrence
    dtype: DTypeLike
    heads: int
    group: int
    at_once: int
    chunks: int
    rows: int
    backward: bool = False

    @property
    def keys(self) -> int:
        """Heads of keys in a step."""
        return max(1, self.at_once // self.group)

    def chunk(self, j: Index) -> Index:
        return self.chunks - 1 - j if self.backward else j

    def of_keys(self, width: int) -> pl.BlockSpec:
        def at(i: Index, j: Index) -> tuple[Index, ...]:
            return lax.div(i * self.at_once, self.group * self.keys), self.chunk(j), 0

        return pl.BlockSpec((self.keys, self.rows, width), at)

    def of_key_sums(self, width: int) -> pl.BlockSpec:
        """Sums over the value heads of a step that share a head of keys."""
        return pl.BlockSpec((self.keys, self.rows, width), lambda i, j: (i, self.chunk(j), 0))

    def of_values(self, width: int) -> pl.BlockSpec:
        return pl.BlockSpec((self.at_once, self.rows, width), lambda i, j: (i, self.chunk(j), 0))

    def of_numbers(self) -> pl.BlockSpec:
        """One per row, in an array of (L, n, 1, C)."""
        return pl.BlockSpec((self.at_once, 1, 1, self.rows), lambda i, j: (i, self.chunk(j), 0, 0))

    def of_states(self, *shape: int) -> pl.BlockSpec:
        """One per chunk, in an array of (L, n, H, E)."""
        return pl.BlockSpec((self.at_once, 1, *shape), lambda i, j: (i, self.chunk(j), 0, 0))

    def of_ends(self, *shape: int) -> pl.BlockSpec:
        """One per head."""
        return pl.BlockSpec((self.at_once, *shape), lambda i, j: (i, 0, 0))

    def of_gates(self, gates: Gates) -> list[pl.BlockSpec]:
        return [self.of_values(x.shape[2]) if x.ndim == 3 else self.of_numbers() for x in gates]

    def run(
        self,
        kernel: Callable,
        name: str,
        arrays: Sequence[Array],
        specs: Sequence[pl.BlockSpec],
        results: Sequence[tuple[tuple[int, ...], pl.BlockSpec]],
        scratch: Sequence[tuple[int, ...]],
    ) -> list[Array]:
        """The results, given as (shape, spec), of kernel(grid, arrays, results, scratch)."""

        def body(*refs: Ref) -> None:
            kernel(self, *split_by_sizes(refs, (len(arrays), len(results))))

        compute = pl.pallas_call(
            body,
            grid=(self.heads // self.at_once, self.chunks),
            in_specs=specs,
            out_specs=[spec for _, spec in results],
            out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape, _ in results],
            scratch_shapes=[pltpu.VMEM((self.at_once, *shape), jnp.float32) for shape in scratch],
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=VMEM_BYTES
            ),
            interpret=compiled_platform() != "tpu",
            name=f"stripectl_{name}_{self.at_once}_heads",
        )
        with exact(self.dtype):
            return list(compute(*arrays))

    def prepared(self, q_CH: Array | None, k_CH: Array, v_CE: Array | None, gates: Gates) -> Chunk:
        """The chunk of one head."""
        return chunk_of_head(self.recurrence, self.dtype, q_CH, k_CH, v_CE, gates)

    def each_head(self, keys: Sequence[Ref], own: Sequence[Ref], gates: Sequence[Ref]) -> Iterator[Head]:
        """Every head of a step, with float32 arrays."""
        for h in range(self.at_once):
            m = h * self.keys // self.at_once
            read = [x[h, 0] if len(x.shape) == 4 else x[h] for x in gates]
            yield Head(h, m, [x[m].astype(jnp.float32) for x in keys], [x[h].astype(jnp.float32) for x in own], read)
