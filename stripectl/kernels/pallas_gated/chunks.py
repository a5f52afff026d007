"""A chunk of one head in VMEM, prepared for its products with a state (`stripectl.kernels.gated.chunk`).

Vectors are rows (1, C) or columns (C, 1), because registers have two dimensions. Sums of logarithms are products with
matrices of zeros and ones, or sums over lanes, and have only the terms between two tokens, so a gate near 0 costs later
tokens no precision. The triangular system is inverted by elimination, row by row, in float32.

Letters: C rows of a chunk, R rows of a sub-chunk, H elements of a key, E elements of a value.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from stripectl.core.recurrence import LOG_GATE, WRITE, Recurrence
from stripectl.kernels.gated.chunk import Chunk, Gates, product
from stripectl.kernels.xla.kernel import Arrays

SUB_ROWS = 16  # rows of a sub-chunk, in which vector gates weigh each pair of tokens
SLAB = 8  # rows of a register
MASKED = -1e30  # the logarithm of zero, finite so that its gradient is finite


def row_and_column(rows: int, columns: int) -> Arrays:
    """int32 (rows, columns): the row, and the column, of each element."""
    return tuple(lax.broadcasted_iota(jnp.int32, (rows, columns), axis) for axis in (0, 1))


def as_column(x_1C: Array) -> Array:
    """(1, C) as (C, 1)."""
    t, s = row_and_column(x_1C.shape[1], x_1C.shape[1])
    return jnp.where(t == s, x_1C, 0.0).sum(1, keepdims=True)


def in_bfloat16(x: Array, parts: int) -> list:
    """bfloat16 arrays whose sum is x: two arrays hold 16 bits of x, three arrays all 24."""
    found = []
    for _ in range(parts):
        found.append(x.astype(jnp.bfloat16))
        x = x - found[-1].astype(jnp.float32)
    return found


def careful_product(x: Array, y: Array, dtype: DTypeLike) -> Any:
    """A product of float32 arrays, because every later token inherits its error: with 16 bits of each where the results
    become bfloat16, else in full precision."""
    if dtype != jnp.bfloat16:
        return jnp.dot(x, y, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)
    (x, x_rest), (y, y_rest) = in_bfloat16(x, 2), in_bfloat16(y, 2)
    return sum(jnp.dot(a, b, preferred_element_type=jnp.float32) for a, b in ((x_rest, y), (x, y_rest), (x, y)))


def _chosen_sums(equation: str, chosen: Array, x: Array) -> Any:
    ones = jnp.where(chosen, 1.0, 0.0).astype(jnp.bfloat16)
    return sum(jnp.einsum(equation, ones, part, preferred_element_type=jnp.float32) for part in in_bfloat16(x, 3)[::-1])


def _sums(chosen: Array, x: Array) -> Array:
    """The sums of the rows of x that are chosen by each row of a matrix of booleans, in full precision."""
    return _chosen_sums("ts,sh->th", chosen, x)


sums: Any = jax.custom_vjp(_sums)
sums.defvjp(
    lambda chosen, x: (sums(chosen, x), chosen),
    lambda chosen, given: (None, _chosen_sums("ts,th->sh", chosen, given)),
)


def _solved(lower_CC: Array, right: Array) -> Array:
    """The inverse of (I + lower), in the dtype of `right`, times `right`, in float32."""
    return product("ts,sh->th", inverse(lower_CC, right.dtype).astype(right.dtype), right)


solved: Any = jax.custom_vjp(_solved)


def _solved_forward(lower_CC: Array, right: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    inverted = inverse(lower_CC, right.dtype).astype(right.dtype)
    found = product("ts,sh->th", inverted, right)
    return found, (inverted, right, found)


def _solved_backward(kept: tuple[Array, Array, Array], given: Array) -> tuple[Array, Array]:
    inverted, right, found = kept
    dright = product("ts,th->sh", inverted, given)
    t, s = row_and_column(*inverted.shape)
    dlower = jnp.where(t > s, -product("th,sh->ts", dright.astype(right.dtype), found.astype(right.dtype)), 0.0)
    return dlower, dright.astype(right.dtype)


solved.defvjp(_solved_forward, _solved_backward)


def inverse(lower_CC: Array, dtype: DTypeLike) -> Array:
    """The inverse of I + lower, a strictly lower triangle, in float32, to be used as `dtype`. In each sub-chunk a row,
    once complete, is eliminated from the rows below it. Then blocks are joined two by two: [X, 0; -Y L X, Y] inverts
    [I + A, 0; L, I + B] where X inverts I + A and Y inverts I + B."""
    rows = lower_CC.shape[0]
    t, s = row_and_column(rows, rows)
    slabs = [jnp.where(t == s, 1.0, 0.0)[at : at + SLAB] for at in range(0, rows, SLAB)]
    lower = [lower_CC[at : at + SLAB] for at in range(0, rows, SLAB)]
    for j in range(rows):
        row = slabs[j // SLAB][j % SLAB : j % SLAB + 1]
        for i in range((j + 1) // SLAB, (j // SUB_ROWS + 1) * SUB_ROWS // SLAB):
            slabs[i] = slabs[i] - lower[i][:, j : j + 1] * row
    found, size = jnp.concatenate(slabs, 0), SUB_ROWS
    while size < rows:
        joined = jnp.where((t // size % 2 == 1) & (t // size - s // size == 1), lower_CC, 0.0)
        parts = [found[at : at + size] for at in range(0, rows, size)]
        below = jnp.concatenate(parts[1::2], 0)
        below = below - careful_product(careful_product(below, joined, dtype), found, dtype)
        parts[1::2] = [below[at : at + size] for at in range(0, below.shape[0], size)]
        found, size = jnp.concatenate(parts, 0), 2 * size
    return found


def chunk_of_head(
    recurrence: Recurrence,
    dtype: DTypeLike,
    q_CH: Array | None,
    k_CH: Array,
    v_CE: Array | None,
    gates: Gates,
) -> Chunk:
    """The chunk of one head, from float32 arrays; `dtype` is the dtype of its products. Queries are None where no
    outputs are needed, values where gradients do not need them. Gates are rows, or (C, H)."""
    given = dict(zip(recurrence.gate_shapes(1), gates, strict=True))
    log_gate, write = given.get(LOG_GATE), given.get(WRITE)
    since, until, whole = decays(log_gate, k_CH.shape[0])
    asked = [] if q_CH is None else [q_CH]
    scores = scores_with_gates([*asked, *([] if write is None else [k_CH])], k_CH, log_gate, dtype)
    values = v_CE
    reads = None
    if write is not None:
        t, s = row_and_column(*scores[-1].shape)
        share_C1 = as_column(write)
        lower_CC = share_C1 * jnp.where(t > s, scores[-1], 0.0)
        reads = solved(lower_CC, (share_C1 * k_CH * since).astype(dtype)).astype(dtype)
        values = None if v_CE is None else solved(lower_CC, (share_C1 * v_CE).astype(dtype))
    query, own = (None, None) if q_CH is None else ((q_CH * since).astype(dtype), scores[0].astype(dtype))
    return Chunk(query, (k_CH * until).astype(dtype), whole, own, values, reads)


def decays(log_gate: Array | None, rows: int) -> tuple[Array | float, Array | float, Array | float]:
    """The gates since the start of the chunk, to its end, and over the whole chunk as a factor of a state."""
    if log_gate is None:
        return 1.0, 1.0, 1.0
    t, s = row_and_column(rows, rows)
    if log_gate.shape[0] == 1:
        since, until = (jnp.where(kept, log_gate, 0.0).sum(1, keepdims=True) for kept in (s <= t, s > t))
        return jnp.exp(since), jnp.exp(until), jnp.exp(log_gate.sum(1, keepdims=True))
    whole = as_column(log_gate.sum(0, keepdims=True))
    return jnp.exp(sums(s <= t, log_gate)), jnp.exp(sums(s > t, log_gate)), jnp.exp(whole)


def scores_with_gates(asked: Sequence[Array], k_CH: Array, log_gate: Array | None, dtype: DTypeLike) -> list:
    """Of every array: [t, s] for s <= t: x_t . G_ts k_s, else 0."""
    if not asked:
        return []
    rows = k_CH.shape[0]
    if log_gate is not None and log_gate.shape[0] > 1:
        return scores_with_vector_gates(asked, k_CH, log_gate, dtype)
    t, s = row_and_column(rows, rows)
    found = [product("th,sh->ts", x.astype(dtype), k_CH.astype(dtype)) for x in asked]
    if log_gate is None:
        return [jnp.where(t >= s, x, 0.0) for x in found]
    between = sums(s <= t, jnp.where(t > s, as_column(log_gate), 0.0))
    weight = jnp.exp(jnp.where(t >= s, between, MASKED))
    return [x * weight for x in found]


def scores_with_vector_gates(asked: Sequence[Array], k_CH: Array, log_CH: Array, dtype: DTypeLike) -> list:
    """Gated scores for a gate per key element (Yang et al. 2023, section 4.3). The scores of a sub-chunk with keys of
    earlier sub-chunks are products, with gates from its start and to its start, and its own keys one by one."""
    rows, sub = k_CH.shape[0], SUB_ROWS
    parts = [[] for _ in asked]
    for first in range(0, rows, sub):
        own = slice(first, first + sub)
        _, s = row_and_column(sub, rows)
        found = [jnp.zeros((sub, rows), jnp.float32) for _ in asked]
        after = jnp.zeros((sub, k_CH.shape[1]), jnp.float32)  # the sum of logarithms after the key, up to each query
        down, _ = row_and_column(*after.shape)
        for at in reversed(range(sub)):
            if at + 1 < sub:
                after = jnp.where(down > at, after + log_CH[first + at + 1 : first + at + 2], 0.0)
            weight = jnp.where(down >= at, jnp.exp(after) * k_CH[first + at : first + at + 1], 0.0)
            for i, x in enumerate(asked):
                found[i] = jnp.where(s == first + at, (x[own] * weight).sum(1, keepdims=True), found[i])
        if first:
            key, token = row_and_column(rows, rows)
            until = jnp.exp(sums((token > key) & (token < first), log_CH))
            earlier, _ = row_and_column(*k_CH.shape)
            keys = jnp.where(earlier < first, k_CH * until, 0.0).astype(dtype)
            row, token = row_and_column(sub, sub)
            since = jnp.exp(sums(token <= row, log_CH[own]))
            for i, x in enumerate(asked):
                found[i] = found[i] + product("th,sh->ts", (x[own] * since).astype(dtype), keys)
        for i, x in enumerate(found):
            parts[i].append(x)
    return [jnp.concatenate(each, 0) for each in parts]
