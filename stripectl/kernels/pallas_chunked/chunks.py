"""The Pallas kernels of squares on the diagonal: a grid of chunks, with the states of some heads in VMEM from the first
chunk of a square to the last.

Letters: L key/value heads, G query heads per key/value head, T rows (queries), S columns (keys), H head_dim; chunks of
    C rows.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from stripectl.core.layout import Index
from stripectl.kernels.gated.chunk import product
from stripectl.kernels.pallas_gated.grid import at_first
from stripectl.kernels.pallas_tpu.accumulators import Ref
from stripectl.kernels.pallas_tpu.tile_memory import VMEM_BYTES
from stripectl.kernels.xla.kernel import compiled_platform

MASKED = -1e30  # the logarithm of zero


class Decays(NamedTuple):
    """Powers of the decays of a step's heads, in VMEM: w^(t-s) where a query sees a key, else 0; w^(t+1) and w^(C-1-s),
    in every lane."""

    between_CC: Any
    since_CH: Any
    until_CH: Any

    @staticmethod
    def scratch(heads: int, rows: int, size: int) -> list[Any]:
        return [pltpu.VMEM((heads, rows, width), jnp.float32) for width in (rows, size, size)]

    def fill(self, h: int, rate: Array, high: Index) -> None:
        rows = self.between_CC.shape[1]
        t, s = (lax.broadcasted_iota(jnp.int32, (rows, rows), axis) for axis in (0, 1))
        apart = rate * (t - s).astype(jnp.float32)
        self.between_CC[h] = jnp.exp(jnp.where(s <= t + high, apart, MASKED))
        row = lax.broadcasted_iota(jnp.int32, self.since_CH.shape[1:], 0).astype(jnp.float32)
        self.since_CH[h], self.until_CH[h] = jnp.exp(rate * (row + 1)), jnp.exp(rate * (rows - 1 - row))

    def over_chunk(self, h: int) -> Array:
        """(1, H): w^C."""
        return self.since_CH[h, -1:]


def weighed(x: Array, weight: Array) -> Array:
    return (x.astype(jnp.float32) * weight).astype(x.dtype)


def begin(decays: Decays, held: Ref, first_head: Index, rates: Ref, high: Ref) -> None:
    held[...] = jnp.zeros_like(held)
    for h in range(held.shape[0]):
        decays.fill(h, rates[first_head + h], high[0])


def diagonal_outputs(
    first: Ref, high: Ref, rates: Ref, q: Ref, k: Ref, v: Ref, before: Ref, out: Ref, held: Ref, *decays: Ref
) -> None:
    own, heads = Decays(*decays), q.shape[0]
    at_first(partial(begin, own, held, (first[0] + pl.program_id(0)) * heads, rates, high))
    for h in range(heads):
        k_CH, v_CH, state_HH = k[h], v[h], held[h]
        for g in range(q.shape[1]):
            scores_CC = (product("th,sh->ts", q[h, g], k_CH) * own.between_CC[h]).astype(v_CH.dtype)
            known_CH = product("th,he->te", q[h, g], state_HH) * own.since_CH[h]
            out[h, g] = before[h, g] + known_CH + product("ts,se->te", scores_CC, v_CH)
        held[h] = own.over_chunk(h) * state_HH + product("sh,se->he", weighed(k_CH, own.until_CH[h]), v_CH)


def diagonal_key_gradients(
    first: Ref, high: Ref, rates: Ref, q: Ref, k: Ref, v: Ref, dout: Ref, dk: Ref, dv: Ref, held: Ref, *decays: Ref
) -> None:
    own, heads = Decays(*decays), q.shape[0]
    at_first(partial(begin, own, held, (first[0] + pl.program_id(0)) * heads, rates, high))
    for h in range(heads):
        k_CH, v_CH, behind_HH = k[h], v[h], held[h]
        of_key = product("se,he->sh", v_CH, behind_HH) * own.until_CH[h]
        of_value = product("sh,he->se", k_CH, behind_HH) * own.until_CH[h]
        behind_HH = own.over_chunk(h) * behind_HH
        for g in range(q.shape[1]):
            q_CH, dout_CH = q[h, g], dout[h, g]
            scores_CC = (product("th,sh->ts", q_CH, k_CH) * own.between_CC[h]).astype(q_CH.dtype)
            dscores_CC = (product("te,se->ts", dout_CH, v_CH) * own.between_CC[h]).astype(q_CH.dtype)
            of_key = of_key + product("ts,th->sh", dscores_CC, q_CH)
            of_value = of_value + product("ts,te->se", scores_CC, dout_CH)
            behind_HH = behind_HH + product("th,te->he", weighed(q_CH, own.since_CH[h]), dout_CH)
        dk[h], dv[h], held[h] = of_key, of_value, behind_HH


class DiagonalGrid(NamedTuple):
    """Steps over `count` blocks of `heads` key/value heads, from the block `first`, and the chunks of each."""

    heads: int
    first: Any
    count: Any
    chunks: int
    rows: int
    backward: bool = False

    def spec(self, x: Array) -> pl.BlockSpec:
        """The block of a step, of an array of (L, G, T, H) or (L, S, H)."""
        inner = x.shape[1:-2]

        def at(i: Index, j: Index, first: Ref, *_: Any) -> tuple[Index, ...]:
            return first[0] + i, *(0 for _ in inner), self.chunks - 1 - j if self.backward else j, 0

        return pl.BlockSpec((self.heads, *inner, self.rows, x.shape[-1]), at)

    def run(
        self,
        kernel: Callable,
        name: str,
        prefetched: Sequence[Array],
        arrays: Sequence[Array],
        results: Sequence[Array],
        in_place: Mapping[int, int],
    ) -> list:
        """Results like the given arrays, in float32; `in_place` holds the arrays that become a result."""
        size = arrays[0].shape[-1]
        scratch = [pltpu.VMEM((self.heads, size, size), jnp.float32), *Decays.scratch(self.heads, self.rows, size)]
        found = pl.pallas_call(
            kernel,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1 + len(prefetched),
                grid=(self.count, self.chunks),
                in_specs=[self.spec(x) for x in arrays],
                out_specs=[self.spec(x) for x in results],
                scratch_shapes=scratch,
            ),
            out_shape=[jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in results],
            input_output_aliases={1 + len(prefetched) + source: result for source, result in in_place.items()},
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=VMEM_BYTES
            ),
            interpret=compiled_platform() != "tpu",
            name=f"stripectl_linear_{name}_{self.heads}_heads",
        )(jnp.full(1, self.first, jnp.int32), *prefetched, *arrays)
        return list(found)
