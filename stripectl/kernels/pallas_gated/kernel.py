"""The recurrences on a TPU: a grid of chunks, with the states of some heads in VMEM from the first chunk to the last.

Each kernel is one pass over the chunks of a shard, forward or from the last to the first. `chunks` prepares a chunk,
and `stripectl.kernels.gated.chunk` multiplies it with a state. JAX transposes a chunk inside the kernel for its
gradients.

Letters: B batch, K heads of keys and queries, N heads of values (equal groups share a head of keys), L = B N, M = B K,
T rows, H elements of a key, E elements of a value; n chunks of C rows. States, maps and results are float32.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from stripectl.core.layout import Index
from stripectl.core.recurrence import HEADS_AT_ONCE, Recurrence
from stripectl.kernels.gated.chunk import gradient_before, outputs_after, state_after
from stripectl.kernels.gated.kernel import apply_map, compose_maps, split_map
from stripectl.kernels.pallas_gated.chunks import chunk_of_head
from stripectl.kernels.pallas_tpu.accumulators import Ref
from stripectl.kernels.pallas_tpu.lines import compiled_platform
from stripectl.kernels.pallas_tpu.tile_memory import VMEM_BYTES
from stripectl.kernels.xla.kernel import Arrays

__all__ = ["apply_map", "compose_maps", "gradients", "map_of", "outputs", "split_map", "transposed_map_of"]

STEP_HEADS = 4  # value heads of a step: enough independent work to fill the units, few enough for the registers


class Grid(NamedTuple):
    """Steps over blocks of value heads and the chunks of each: `at_once` heads of values, of which `group` share a head
    of keys, and `rows` of a chunk."""

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

    def of_gates(self, gates: Sequence[Array]) -> list[pl.BlockSpec]:
        return [self.of_values(x.shape[2]) if x.ndim == 3 else self.of_numbers() for x in gates]

    def run(
        self,
        name: str,
        kernel: Callable,
        arrays: Sequence[Array],
        specs: Sequence[pl.BlockSpec],
        results: Sequence[tuple[tuple[int, ...], pl.BlockSpec]],
        scratch: Sequence[tuple[int, ...]],
    ) -> list:
        """The results, given as (shape, spec), of a kernel over the grid."""
        found = pl.pallas_call(
            kernel,
            grid=(self.heads // self.at_once, self.chunks),
            in_specs=specs,
            out_specs=[spec for _, spec in results],
            out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape, _ in results],
            scratch_shapes=[pltpu.VMEM((self.at_once, *shape), jnp.float32) for shape in scratch],
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=VMEM_BYTES
            ),
            interpret=compiled_platform() != "tpu",
            name=f"{name}_{self.at_once}_heads",
        )(*arrays)
        return list(found)


def step_heads(heads: int, group: int) -> int:
    """Value heads of a step: they share a head of keys, or have whole groups."""
    fits = (n for n in range(min(STEP_HEADS, heads), 0, -1) if heads % n == 0 and (group % n == 0 or n % group == 0))
    return next(fits)


def exact(dtype: DTypeLike) -> AbstractContextManager:
    """Products of float32 arrays in full precision."""
    return jax.default_matmul_precision("highest" if dtype == jnp.float32 else None)


def each_head(
    grid: Grid, keys: Sequence, own: Sequence, gates: Sequence
) -> Iterator[tuple[int, int, list[Array], list[Array], list[Array]]]:
    """For every head of a step: (its place, its head of keys, float32 arrays of keys, of values, and its gates)."""
    for h in range(grid.at_once):
        m = h * grid.keys // grid.at_once
        read = [x[h, 0] if len(x.shape) == 4 else x[h] for x in gates]
        yield h, m, [x[m].astype(jnp.float32) for x in keys], [x[h].astype(jnp.float32) for x in own], read


def at_first(compute: Callable) -> None:
    pl.when(pl.program_id(1) == 0)(compute)


def at_last(compute: Callable) -> None:
    pl.when(pl.program_id(1) == pl.num_programs(1) - 1)(compute)


def begin_map(b: Ref, a: Sequence[Ref]) -> None:
    """The identity: B is zero, and A, where it is a matrix, is one."""
    b[...] = jnp.zeros_like(b)
    for held in a:
        rows, columns = (lax.broadcasted_iota(jnp.int32, held.shape, axis) for axis in (1, 2))
        held[...] = jnp.where(rows == columns, 1.0, 0.0)


def copy_all(targets: Sequence[Ref], sources: Sequence[Ref]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target[...] = source[...]


def map_kernel(recurrence: Recurrence, grid: Grid, dtype: DTypeLike, k: Ref, v: Ref, *refs: Ref) -> None:
    count = len(recurrence.gate_shapes(1))
    gates, rest = refs[:count], refs[count:]
    results, held = rest[: len(rest) // 2], rest[len(rest) // 2 :]
    at_first(partial(begin_map, held[0], held[1:]))
    for h, _, (k_CH,), (v_CE,), read in each_head(grid, [k], [v], gates):
        chunk = chunk_of_head(recurrence, dtype, None, k_CH, v_CE, read)
        held[0][h] = state_after(chunk, held[0][h])
        for a in held[1:]:
            a[h] = state_after(chunk._replace(u_CE=None), a[h])
    at_last(partial(copy_all, results, held))


def transposed_map_kernel(
    recurrence: Recurrence, grid: Grid, dtype: DTypeLike, q: Ref, k: Ref, dout: Ref, *refs: Ref
) -> None:
    count = len(recurrence.gate_shapes(1))
    gates, rest = refs[:count], refs[count:]
    results, held = rest[: len(rest) // 2], rest[len(rest) // 2 :]
    at_first(partial(begin_map, held[0], held[1:]))
    for h, _, (q_CH, k_CH), (dout_CE,), read in each_head(grid, [q, k], [dout], gates):
        chunk = chunk_of_head(recurrence, dtype, q_CH, k_CH, None, read)
        held[0][h] = gradient_before(chunk, held[0][h], dout_CE)
        for a in held[1:]:
            a[h] = gradient_before(chunk, a[h], None)
    at_last(partial(copy_all, results, held))


def outputs_kernel(
    recurrence: Recurrence, grid: Grid, dtype: DTypeLike, q: Ref, k: Ref, v: Ref, before: Ref, *refs: Ref
) -> None:
    *gates, out, state = refs
    at_first(partial(copy_all, [state], [before]))
    for h, _, (q_CH, k_CH), (v_CE,), read in each_head(grid, [q, k], [v], gates):
        state[h], out[h] = outputs_after(chunk_of_head(recurrence, dtype, q_CH, k_CH, v_CE, read), state[h])


def states_kernel(
    recurrence: Recurrence, grid: Grid, dtype: DTypeLike, k: Ref, v: Ref, before: Ref, *refs: Ref
) -> None:
    *gates, states, state = refs
    at_first(partial(copy_all, [state], [before]))
    for h, _, (k_CH,), (v_CE,), read in each_head(grid, [k], [v], gates):
        states[h, 0] = state[h]
        state[h] = state_after(chunk_of_head(recurrence, dtype, None, k_CH, v_CE, read), state[h])


def gradients_kernel(
    recurrence: Recurrence,
    grid: Grid,
    dtype: DTypeLike,
    q: Ref,
    k: Ref,
    v: Ref,
    dout: Ref,
    states: Ref,
    behind: Ref,
    *refs: Ref,
) -> None:
    count = len(recurrence.gate_shapes(1))
    gates, dq, dk, dv, dgates, (dstate,) = refs[:count], *refs[count : count + 3], refs[count + 3 : -1], refs[-1:]
    at_first(partial(copy_all, [dstate], [behind]))
    sums = {}

    def computed(state: Array, q_CH: Array, k_CH: Array, v_CE: Array, *read: Array) -> tuple[Array, Array]:
        return outputs_after(chunk_of_head(recurrence, dtype, q_CH, k_CH, v_CE, read), state)

    for h, m, of_keys, (v_CE, dout_CE), read in each_head(grid, [q, k], [v, dout], gates):
        _, pull = jax.vjp(computed, states[h, 0], *of_keys, v_CE, *read)
        dstate[h], own_dq, own_dk, dv[h], *of_gates = pull((dstate[h], dout_CE))
        sums[m] = (own_dq, own_dk) if m not in sums else (sums[m][0] + own_dq, sums[m][1] + own_dk)
        for target, found in zip(dgates, of_gates, strict=True):
            if len(target.shape) == 4:
                target[h, 0] = found
            else:
                target[h] = found
    for m, (own_dq, own_dk) in sums.items():
        dq[m], dk[m] = own_dq, own_dk


class Folded(NamedTuple):
    """A grid, and arrays of all heads in whole chunks: (M, n C, H), (L, n C, E), and gates as (L, n, 1, C) or
    (L, n C, H)."""

    grid: Grid
    keys: list
    own: list
    gates: list


def whole_chunks(
    keys: Sequence[Array], own: Sequence[Array], gates: Sequence[Array], size: int, backward: bool
) -> Folded:
    """Rows that fill the last chunk leave a state unchanged, because their keys and the logarithms of gates are 0."""
    batch, heads, rows, _ = own[0].shape
    chunks = -(-rows // size)

    def whole(x: Array) -> Array:
        more = ((0, 0), (0, 0), (0, chunks * size - rows), *((0, 0),) * (x.ndim - 3))
        x = jnp.pad(x, more)
        return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])

    def gate(x: Array) -> Array:
        x = whole(x.astype(jnp.float32))
        return x.reshape(x.shape[0], chunks, 1, size) if x.ndim == 2 else x

    group = heads // keys[0].shape[1]
    grid = Grid(batch * heads, group, step_heads(batch * heads, group), chunks, size, backward)
    return Folded(grid, [whole(x) for x in keys], [whole(x) for x in own], [gate(x) for x in gates])


def whole_map(
    recurrence: Recurrence, kernel: Callable, name: str, found: Folded, like: Array, gates: Sequence[Array]
) -> jax.Array:
    """float32 (B, N, elements): the map that a kernel makes in one pass over the chunks."""
    grid, size, values = found.grid, found.keys[0].shape[2], like.shape[3]
    shapes = [(size, values), *([(size, size)] if recurrence.map_kind == "matrix" else [])]
    specs = [grid.of_keys(size)] * len(found.keys) + [grid.of_values(values)] + grid.of_gates(found.gates)
    results = [((grid.heads, *shape), grid.of_ends(*shape)) for shape in shapes]
    dtype = found.keys[0].dtype
    with exact(dtype):
        made = grid.run(
            name,
            partial(kernel, recurrence, grid, dtype),
            [*found.keys, *found.own, *found.gates],
            specs,
            results,
            shapes,
        )
    lead = like.shape[:2]
    if recurrence.map_kind != "matrix":
        made.append(jnp.exp(gates[0].astype(jnp.float32).sum(2)))
    return jnp.concatenate([x.reshape(*lead, -1) for x in made], -1)


def map_of(recurrence: Recurrence, k_BKTH: Array, v_BNTE: Array, gates: Sequence[Array], size: int) -> Array:
    found = whole_chunks([k_BKTH], [v_BNTE], gates, size, backward=False)
    return whole_map(recurrence, map_kernel, "stripectl_map", found, v_BNTE, gates)


def transposed_map_of(
    recurrence: Recurrence, q_BKTH: Array, k_BKTH: Array, dout_BNTE: Array, gates: Sequence[Array], size: int
) -> Array:
    found = whole_chunks([q_BKTH, k_BKTH], [dout_BNTE], gates, size, backward=True)
    return whole_map(recurrence, transposed_map_kernel, "stripectl_transposed_map", found, dout_BNTE, gates)


def outputs(
    recurrence: Recurrence,
    q_BKTH: Array,
    k_BKTH: Array,
    v_BNTE: Array,
    gates: Sequence[Array],
    before_BNHE: Array,
    size: int,
) -> Array:
    """float32 (B, N, T, E): the outputs of a shard, from the state before it."""
    grid, keys, own, folded = whole_chunks([q_BKTH, k_BKTH], [v_BNTE], gates, size, backward=False)
    rows, values, state = v_BNTE.shape[2], v_BNTE.shape[3], before_BNHE.shape[2:]
    specs = [*[grid.of_keys(state[0])] * 2, grid.of_values(values), grid.of_ends(*state), *grid.of_gates(folded)]
    arrays = [*keys, *own, before_BNHE.reshape(-1, *state), *folded]
    results = [((grid.heads, grid.chunks * size, values), grid.of_values(values))]
    with exact(q_BKTH.dtype):
        kernel = partial(outputs_kernel, recurrence, grid, q_BKTH.dtype)
        (out,) = grid.run("stripectl_outputs", kernel, arrays, specs, results, [state])
    return out[:, :rows].reshape(v_BNTE.shape)


def gradients(
    recurrence: Recurrence,
    q_BKTH: Array,
    k_BKTH: Array,
    v_BNTE: Array,
    gates: Sequence[Array],
    dout_BNTE: Array,
    before_BNHE: Array,
    behind_BNHE: Array,
    size: int,
) -> Arrays:
    """float32 (dq, dk, dv, the gradient of every gate) of a shard, from the state before it and the gradient of the
    state after it. One kernel computes the states of chunks again, one transposes chunks from last to first; the states
    of a few heads are in memory at a time."""
    batch, heads, rows, _ = v_BNTE.shape
    keys = k_BKTH.shape[1]
    group = heads // keys
    at_once = next(n for n in range(min(batch * keys, max(1, HEADS_AT_ONCE // group)), 0, -1) if batch * keys % n == 0)

    def in_blocks(x: Array, each: int) -> Array:
        return x.reshape(-1, 1, each, *x.shape[2:])

    def of_block(arrays: Sequence[Array]) -> Arrays:
        q, k, v, dout, before, behind, *gates = arrays
        return gradients_of_block(recurrence, q, k, v, gates, dout, before, behind, size)

    shared = [in_blocks(x, at_once) for x in (q_BKTH, k_BKTH)]
    own = [in_blocks(x, at_once * group) for x in (v_BNTE, dout_BNTE, before_BNHE, behind_BNHE, *gates)]
    dq, dk, *rest = lax.map(of_block, (*shared, *own))
    of_keys = (x.reshape(batch, keys, rows, -1) for x in (dq, dk))
    likes = v_BNTE, *gates
    return (*of_keys, *(x.reshape(like.shape) for x, like in zip(rest, likes, strict=True)))


def gradients_of_block(
    recurrence: Recurrence,
    q: Array,
    k: Array,
    v: Array,
    gates: Sequence[Array],
    dout: Array,
    before: Array,
    behind: Array,
    size: int,
) -> Arrays:
    dtype, rows, (height, width) = q.dtype, v.shape[2], before.shape[2:]
    forward, (k_, *_), (v_, *_), folded = whole_chunks([k], [v], gates, size, backward=False)
    backward, keys, own, _ = whole_chunks([q, k], [v, dout.astype(dtype)], gates, size, backward=True)
    before, behind = (x.reshape(-1, height, width) for x in (before, behind))
    with exact(dtype):
        specs = [
            forward.of_keys(height),
            forward.of_values(width),
            forward.of_ends(height, width),
            *forward.of_gates(folded),
        ]
        results = [((forward.heads, forward.chunks, height, width), forward.of_states(height, width))]
        again = partial(states_kernel, recurrence, forward, dtype)
        (states,) = forward.run("stripectl_states", again, [k_, v_, before, *folded], specs, results, [(height, width)])
        whole = backward.chunks * size
        specs = [*[backward.of_keys(height)] * 2, *[backward.of_values(width)] * 2]
        specs += [backward.of_states(height, width), backward.of_ends(height, width), *backward.of_gates(folded)]
        blocks = backward.heads // backward.at_once * backward.keys
        results = [((blocks, whole, height), backward.of_key_sums(height))] * 2
        results += [((backward.heads, whole, width), backward.of_values(width))]
        results += [(x.shape, spec) for x, spec in zip(folded, backward.of_gates(folded), strict=True)]
        kernel = partial(gradients_kernel, recurrence, backward, dtype)
        arrays = [*keys, *own, states, behind, *folded]
        dq, dk, dv, *dgates = backward.run("stripectl_gradients", kernel, arrays, specs, results, [(height, width)])
    dq, dk = (x.reshape(q.shape[1], -1, whole, height).sum(1)[None, :, :rows] for x in (dq, dk))
    dgates = [x.reshape(x.shape[0], whole, *like.shape[3:]) for x, like in zip(dgates, gates, strict=True)]
    return dq, dk, *(x[None, :, :rows] for x in (dv, *dgates))
