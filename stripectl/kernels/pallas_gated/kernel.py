"""The recurrences on a TPU: a grid of chunks, with the states of some heads in VMEM from the first chunk to the last.

Each kernel is one pass over the chunks of a shard, forward or from the last to the first. `chunks` prepares a chunk,
and `stripectl.kernels.gated.chunk` multiplies it with a state. JAX transposes a chunk inside the kernel for its
gradients.

Letters: B batch, K heads of keys and queries, N heads of values (equal groups share a head of keys), L = B N, M = B K,
T rows, H elements of a key, E elements of a value; n chunks of C rows. States, maps and results are float32.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from stripectl.core.recurrence import HEADS_AT_ONCE, Recurrence
from stripectl.kernels.gated.chunk import Gates, gradient_before, outputs_after, state_after
from stripectl.kernels.gated.kernel import apply_map, compose_maps, split_map
from stripectl.kernels.pallas_gated.grid import Grid, at_first, at_last
from stripectl.kernels.pallas_tpu.accumulators import Ref
from stripectl.kernels.xla.kernel import Arrays

__all__ = ["apply_map", "compose_maps", "gradients", "map_of", "outputs", "split_map", "transposed_map_of"]

STEP_HEADS = 4  # value heads of a step: enough independent work to fill the units, few enough for the registers


def step_heads(heads: int, group: int) -> int:
    """Value heads of a step: they share a head of keys, or have whole groups."""
    fits = (n for n in range(min(STEP_HEADS, heads), 0, -1) if heads % n == 0 and (group % n == 0 or n % group == 0))
    return next(fits)


def begin_map(b: Ref, a: Sequence[Ref]) -> None:
    """The identity: B is zero, and A, where it is a matrix, is one."""
    b[...] = jnp.zeros_like(b)
    for held in a:
        rows, columns = (lax.broadcasted_iota(jnp.int32, held.shape, axis) for axis in (1, 2))
        held[...] = jnp.where(rows == columns, 1.0, 0.0)


def copy_all(targets: Sequence[Ref], sources: Sequence[Ref]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target[...] = source[...]


def map_kernel(grid: Grid, given: Sequence[Ref], results: Sequence[Ref], held: Sequence[Ref]) -> None:
    (k, v, *gates), (state, *a) = given, held
    at_first(partial(begin_map, state, a))
    for h, _, (k_CH,), (v_CE,), read in grid.each_head([k], [v], gates):
        chunk = grid.prepared(None, k_CH, v_CE, read)
        state[h] = state_after(chunk, state[h])
        for columns in a:
            columns[h] = state_after(chunk._replace(u_CE=None), columns[h])
    at_last(partial(copy_all, results, held))


def transposed_map_kernel(grid: Grid, given: Sequence[Ref], results: Sequence[Ref], held: Sequence[Ref]) -> None:
    (q, k, dout, *gates), (behind, *a) = given, held
    at_first(partial(begin_map, behind, a))
    for h, _, (q_CH, k_CH), (dout_CE,), read in grid.each_head([q, k], [dout], gates):
        chunk = grid.prepared(q_CH, k_CH, None, read)
        behind[h] = gradient_before(chunk, behind[h], dout_CE)
        for columns in a:
            columns[h] = gradient_before(chunk, columns[h], None)
    at_last(partial(copy_all, results, held))


def outputs_kernel(grid: Grid, given: Sequence[Ref], results: Sequence[Ref], held: Sequence[Ref]) -> None:
    (q, k, v, before, *gates), (out,), (state,) = given, results, held
    at_first(partial(copy_all, held, [before]))
    for h, _, (q_CH, k_CH), (v_CE,), read in grid.each_head([q, k], [v], gates):
        state[h], out[h] = outputs_after(grid.prepared(q_CH, k_CH, v_CE, read), state[h])


def states_kernel(grid: Grid, given: Sequence[Ref], results: Sequence[Ref], held: Sequence[Ref]) -> None:
    (k, v, before, *gates), (states,), (state,) = given, results, held
    at_first(partial(copy_all, held, [before]))
    for h, _, (k_CH,), (v_CE,), read in grid.each_head([k], [v], gates):
        states[h, 0] = state[h]
        state[h] = state_after(grid.prepared(None, k_CH, v_CE, read), state[h])


def gradients_kernel(grid: Grid, given: Sequence[Ref], results: Sequence[Ref], held: Sequence[Ref]) -> None:
    (q, k, v, dout, states, behind, *gates), (dq, dk, dv, *dgates), (dstate,) = given, results, held
    at_first(partial(copy_all, held, [behind]))
    sums = {}

    def computed(state: Array, q_CH: Array, k_CH: Array, v_CE: Array, *read: Array) -> tuple[Array, Array]:
        return outputs_after(grid.prepared(q_CH, k_CH, v_CE, read), state)

    for h, m, of_keys, (v_CE, dout_CE), read in grid.each_head([q, k], [v, dout], gates):
        _, pull = jax.vjp(computed, states[h, 0], *of_keys, v_CE, *read)
        dstate[h], own_dq, own_dk, dv[h], *of_gates = pull((dstate[h], dout_CE))
        sums[m] = (own_dq, own_dk) if m not in sums else (sums[m][0] + own_dq, sums[m][1] + own_dk)
        for target, found in zip(dgates, of_gates, strict=True):
            target[(h, 0) if len(target.shape) == 4 else h] = found
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
    recurrence: Recurrence,
    keys: Sequence[Array],
    own: Sequence[Array],
    gates: Gates,
    size: int,
    *,
    backward: bool = False,
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
    heads, dtype = batch * heads, keys[0].dtype
    grid = Grid(recurrence, dtype, heads, group, step_heads(heads, group), chunks, size, backward)
    return Folded(grid, [whole(x) for x in keys], [whole(x) for x in own], [gate(x) for x in gates])


def whole_map(kernel: Callable, name: str, found: Folded, like: Array, gates: Gates) -> Array:
    """float32 (B, N, elements): the map that a kernel makes in one pass over the chunks."""
    grid, size, values = found.grid, found.keys[0].shape[2], like.shape[3]
    is_matrix = grid.recurrence.map_kind == "matrix"
    shapes = [(size, values), *[(size, size)] * is_matrix]
    specs = [grid.of_keys(size)] * len(found.keys) + [grid.of_values(values)] + grid.of_gates(found.gates)
    results = [((grid.heads, *shape), grid.of_ends(*shape)) for shape in shapes]
    made = grid.run(kernel, name, [*found.keys, *found.own, *found.gates], specs, results, shapes)
    if not is_matrix:
        made.append(jnp.exp(gates[0].astype(jnp.float32).sum(2)))
    return jnp.concatenate([x.reshape(*like.shape[:2], -1) for x in made], -1)


def map_of(recurrence: Recurrence, k_BKTH: Array, v_BNTE: Array, gates: Gates, size: int) -> Array:
    found = whole_chunks(recurrence, [k_BKTH], [v_BNTE], gates, size)
    return whole_map(map_kernel, "map", found, v_BNTE, gates)


def transposed_map_of(
    recurrence: Recurrence, q_BKTH: Array, k_BKTH: Array, dout_BNTE: Array, gates: Gates, size: int
) -> Array:
    found = whole_chunks(recurrence, [q_BKTH, k_BKTH], [dout_BNTE], gates, size, backward=True)
    return whole_map(transposed_map_kernel, "transposed_map", found, dout_BNTE, gates)


def outputs(
    recurrence: Recurrence, q_BKTH: Array, k_BKTH: Array, v_BNTE: Array, gates: Gates, before_BNHE: Array, size: int
) -> Array:
    """float32 (B, N, T, E): the outputs of a shard, from the state before it."""
    grid, keys, own, folded = whole_chunks(recurrence, [q_BKTH, k_BKTH], [v_BNTE], gates, size)
    rows, values, state = v_BNTE.shape[2], v_BNTE.shape[3], before_BNHE.shape[2:]
    specs = [*[grid.of_keys(state[0])] * 2, grid.of_values(values), grid.of_ends(*state), *grid.of_gates(folded)]
    arrays = [*keys, *own, before_BNHE.reshape(-1, *state), *folded]
    results = [((grid.heads, grid.chunks * size, values), grid.of_values(values))]
    (out,) = grid.run(outputs_kernel, "outputs", arrays, specs, results, [state])
    return out[:, :rows].reshape(v_BNTE.shape)


def gradients(
    recurrence: Recurrence,
    q_BKTH: Array,
    k_BKTH: Array,
    v_BNTE: Array,
    gates: Gates,
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
    gates: Gates,
    dout: Array,
    before: Array,
    behind: Array,
    size: int,
) -> Arrays:
    rows, state = v.shape[2], before.shape[2:]
    grid, (k_,), (v_,), folded = whole_chunks(recurrence, [k], [v], gates, size)
    back, keys, own, _ = whole_chunks(recurrence, [q, k], [v, dout.astype(q.dtype)], gates, size, backward=True)
    before, behind = (x.reshape(-1, *state) for x in (before, behind))
    specs = [grid.of_keys(state[0]), grid.of_values(state[1]), grid.of_ends(*state), *grid.of_gates(folded)]
    results = [((grid.heads, grid.chunks, *state), grid.of_states(*state))]
    (states,) = grid.run(states_kernel, "states", [k_, v_, before, *folded], specs, results, [state])
    whole, (height, width), of_gates = back.chunks * size, state, back.of_gates(folded)
    specs = [*[back.of_keys(height)] * 2, *[back.of_values(width)] * 2, back.of_states(*state), back.of_ends(*state)]
    blocks = back.heads // back.at_once * back.keys
    results = [((blocks, whole, height), back.of_key_sums(height))] * 2
    results += [((back.heads, whole, width), back.of_values(width))]
    results += [(x.shape, spec) for x, spec in zip(folded, of_gates, strict=True)]
    arrays = [*keys, *own, states, behind, *folded]
    dq, dk, dv, *dgates = back.run(gradients_kernel, "gradients", arrays, [*specs, *of_gates], results, [state])
    dq, dk = (x.reshape(q.shape[1], -1, whole, height).sum(1)[None, :, :rows] for x in (dq, dk))
    dgates = [x.reshape(x.shape[0], whole, *like.shape[3:]) for x, like in zip(dgates, gates, strict=True)]
    return dq, dk, *(x[None, :, :rows] for x in (dv, *dgates))
