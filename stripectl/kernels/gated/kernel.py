"""The recurrences of `stripectl.core.recurrence` in chunks: the map of a shard, its outputs, and the transposes of
both.

A chunk has the formula of `chunk`. Every G is the exponential of
a sum of only the logarithms between s and t, so a gate near 0 costs later tokens no precision. Masks are applied to
logarithms.

Letters: B batch, K heads of keys and queries, N heads of values (equal groups share a head of keys), T rows, H elements
    of a key, E elements of a value; n chunks of C rows. States, maps and results are float32. A map is one array: the H
    * E elements of B, then the elements of A.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from stripectl.core import scopes
from stripectl.core.recurrence import HEADS_AT_ONCE, Recurrence
from stripectl.kernels.gated.chunk import Chunk, Gates, gradient_before, outputs_after, state_after
from stripectl.kernels.xla.kernel import Arrays

SUB_ROWS = 16  # rows of a sub-chunk, in which vector gates weigh each pair of tokens
MASKED = -1e30  # the logarithm of zero, finite so that its gradient is finite


def contract(equation: str, *arrays: Array, precision: lax.PrecisionLike = None) -> Array:
    return jnp.einsum(equation, *arrays, precision=precision, preferred_element_type=jnp.float32)


def contract_exactly(equation: str, *arrays: Array) -> Array:
    """A product of maps in full precision on every device, because every later token inherits its error."""
    return contract(equation, *arrays, precision=lax.Precision.HIGHEST)


def sums_between(log_S: Array) -> Array:
    """[t, s]: the sum of log_S from s+1 to t along the first dimension; MASKED where s is after t."""
    rows, rest = log_S.shape[0], (1,) * (log_S.ndim - 1)
    t, s = jnp.arange(rows)[:, None], jnp.arange(rows)
    apart = jnp.cumsum(jnp.where((t > s).reshape(rows, rows, *rest), log_S[:, None], 0.0), axis=0)
    return jnp.where((t >= s).reshape(rows, rows, *rest), apart, MASKED)


def sums_to_end(log_T: Array) -> Array:
    """[t]: the sum of log_T after t."""
    behind = jnp.concatenate([log_T[1:], jnp.zeros_like(log_T[:1])])
    return lax.cumsum(behind, axis=0, reverse=True)


def gated_scores(x_TH: Array, y_TH: Array, log_gate: Array | None) -> Array:
    """[t, s] for s <= t: x_t . G_ts y_s, else 0. `log_gate` is None, a number per token or a vector per token."""
    if log_gate is None:
        return jnp.tril(contract("th,sh->ts", x_TH, y_TH))
    if log_gate.ndim == 1:
        return contract("th,sh->ts", x_TH, y_TH) * jnp.exp(sums_between(log_gate))
    return vector_gated_scores(x_TH, y_TH, log_gate)


def vector_gated_scores(x_TH: Array, y_TH: Array, log_TH: Array) -> Array:
    """Gated scores for a gate per key element. Between sub-chunks they are products, with gates from the start of the
    later sub-chunk and to the end of the earlier; within a sub-chunk they are computed pair by pair (Yang et al. 2023,
    section 4.3)."""
    rows, size = x_TH.shape
    sub = next(each for each in range(min(SUB_ROWS, rows), 0, -1) if rows % each == 0)
    x, y, log = (each.reshape(rows // sub, sub, size) for each in (x_TH, y_TH, log_TH))
    inside = jax.vmap(sums_between)(log)
    own = contract("ith,ish,itsh->its", x, y, jnp.exp(inside))
    if rows == sub:
        return own[0]
    whole = log.sum(1)
    # From the end of sub-chunk j to the beginning of sub-chunk i: the sum of the sub-chunks between them.
    between = jnp.pad(sums_between(whole)[:-1], ((1, 0), (0, 0), (0, 0)), constant_values=MASKED)
    y = y * jnp.exp(jax.vmap(sums_to_end)(log))
    scores = contract("ith,ijh,jsh->itjs", x * jnp.exp(jnp.cumsum(log, 1)), jnp.exp(between), y)
    return (scores + jnp.einsum("its,ij->itjs", own, jnp.eye(rows // sub))).reshape(rows, rows)


def prepare_chunk(recurrence: Recurrence, q_CH: Array | None, k_CH: Array, v_CE: Array | None, gates: Gates) -> Chunk:
    """The chunk of one head. Queries are None where no outputs are needed, values where gradients do not need them."""
    given = dict(zip(recurrence.gate_shapes(1), gates, strict=True))
    log_gate, write_C = given.get("log_gate"), given.get("write")
    none = jnp.zeros(1)
    since, until, whole = (none[:, None],) * 2 + (none,)
    if log_gate is not None:
        wide = log_gate if log_gate.ndim > 1 else log_gate[:, None]
        since, until, whole = jnp.cumsum(wide, 0), sums_to_end(wide), wide.sum(0)
    values, reads = v_CE, None
    if write_C is not None:
        lower_CC = write_C[:, None] * jnp.tril(gated_scores(k_CH, k_CH, log_gate), -1)
        right = [k_CH * jnp.exp(since)] + ([] if v_CE is None else [v_CE])
        solved = lax.linalg.triangular_solve(
            lower_CC,
            write_C[:, None] * jnp.concatenate(right, 1),
            left_side=True,
            lower=True,
            unit_diagonal=True,
        )
        reads, values = solved[:, : k_CH.shape[1]], None if v_CE is None else solved[:, k_CH.shape[1] :]
    queries = (None, None) if q_CH is None else (q_CH * jnp.exp(since), gated_scores(q_CH, k_CH, log_gate))
    return Chunk(queries[0], k_CH * jnp.exp(until), jnp.exp(whole)[:, None], queries[1], values, reads)


def outputs_of_chunk(
    recurrence: Recurrence, state_HE: Array, q_CH: Array, k_CH: Array, v_CE: Array, *gates: Array
) -> tuple[Array, Array]:
    """(state after the chunk, outputs)."""
    with jax.named_scope(scopes.BOUNDARY_TILE):
        return outputs_after(prepare_chunk(recurrence, q_CH, k_CH, v_CE, gates), state_HE)


def state_of_chunk(recurrence: Recurrence, state_HE: Array, k_CH: Array, v_CE: Array, *gates: Array) -> Array:
    """The state after the chunk."""
    with jax.named_scope(scopes.WHOLE_TILE):
        return state_after(prepare_chunk(recurrence, None, k_CH, v_CE, gates), state_HE)


def transposed_chunk(
    recurrence: Recurrence, behind_HE: Array, q_CH: Array, k_CH: Array, dout_CE: Array, *gates: Array
) -> Array:
    """The gradient of the state before a chunk, from the gradients of the state after it and of its outputs. Columns of
    the state beyond the outputs' have no output gradient."""
    with jax.named_scope(scopes.WHOLE_TILE):
        dout_CE = jnp.pad(dout_CE, ((0, 0), (0, behind_HE.shape[1] - dout_CE.shape[1])))
        return gradient_before(prepare_chunk(recurrence, q_CH, k_CH, None, gates), behind_HE, dout_CE)


def in_chunks(rows: int, size: int, *arrays_T: Array) -> Arrays:
    """Each array in float32 as (n, C, ...). Rows that fill the last chunk leave a state unchanged, because their keys
    are 0."""
    size = min(size, rows)
    more = -rows % size

    def cut(x: Array) -> Array:
        x = jnp.pad(x.astype(jnp.float32), ((0, more), *((0, 0),) * (x.ndim - 1)))
        return x.reshape(-1, size, *x.shape[1:])

    return tuple(map(cut, arrays_T))


def joined(rows: int, chunks: Array) -> Array:
    """(T, ...) from (n, C, ...)."""
    return chunks.reshape(-1, *chunks.shape[2:])[:rows]


def over_heads(compute: Callable, shared: Sequence[Array], own: Sequence[Array], heads: int) -> Any:
    """compute(*shared, *own) for every head of values: `shared` are (B, K, ...), `own` and the results (B, N, ...)."""
    batch, keys = shared[0].shape[:2]
    group = heads // keys
    shared = [x.reshape(batch * keys, *x.shape[2:]) for x in shared]
    own = [x.reshape(batch * keys, group, *x.shape[2:]) for x in own]

    def of_group(arrays: tuple[Sequence[Array], Sequence[Array]]) -> Any:
        first, rest = arrays
        return jax.vmap(lambda *each: compute(*first, *each))(*rest)

    found = lax.map(of_group, (shared, own), batch_size=min(batch * keys, max(1, HEADS_AT_ONCE // group)))
    return jax.tree.map(lambda x: x.reshape(batch, heads, *x.shape[2:]), found)


def pack(state_HE: Array, a: Array) -> Array:
    return jnp.concatenate([state_HE.reshape(-1), a.reshape(-1)])


def start_of_map(recurrence: Recurrence, k_TH: Array, values: int) -> Array:
    """The identity map: B is zero and, where A is a matrix, A is appended as columns."""
    size = k_TH.shape[1]
    none = jnp.zeros_like(k_TH, jnp.float32, (size, values))
    return jnp.concatenate([none, jnp.eye(size)], 1) if recurrence.map_kind == "matrix" else none


def packed_map(recurrence: Recurrence, found: Array, values: int, gates: Gates) -> Array:
    """A map as one array, from a state that began as `start_of_map`."""
    if recurrence.map_kind == "matrix":
        return pack(found[:, :values], found[:, values:])
    return pack(found, jnp.exp(gates[0].astype(jnp.float32).sum(0)))


def map_of(recurrence: Recurrence, k_BKTH: Array, v_BNTE: Array, gates: Gates, size: int) -> Array:
    """float32 (B, N, elements): the map of a shard's tokens on a state."""
    rows, values = k_BKTH.shape[2], v_BNTE.shape[3]

    def head(k_TH: Array, v_TE: Array, *gates_T: Array) -> Array:
        def onward(state: Array, arrays: Arrays) -> tuple[Array, None]:
            return state_of_chunk(recurrence, state, *arrays), None

        chunks = in_chunks(rows, size, k_TH, v_TE, *gates_T)
        found, _ = lax.scan(onward, start_of_map(recurrence, k_TH, values), chunks)
        return packed_map(recurrence, found, values, gates_T)

    return over_heads(head, [k_BKTH], [v_BNTE, *gates], v_BNTE.shape[1])


def transposed_map_of(
    recurrence: Recurrence, q_BKTH: Array, k_BKTH: Array, dout_BNTE: Array, gates: Gates, size: int
) -> Array:
    """float32 (B, N, elements): the map from the gradient of the state after a shard to the gradient of the state
    before it. Its A is the transpose; its B is the contribution of the shard's own outputs."""
    rows, values = k_BKTH.shape[2], dout_BNTE.shape[3]

    def head(q_TH: Array, k_TH: Array, dout_TE: Array, *gates_T: Array) -> Array:
        def back(behind: Array, arrays: Arrays) -> tuple[Array, None]:
            return transposed_chunk(recurrence, behind, *arrays), None

        chunks = in_chunks(rows, size, q_TH, k_TH, dout_TE, *gates_T)
        found, _ = lax.scan(back, start_of_map(recurrence, k_TH, values), chunks, reverse=True)
        return packed_map(recurrence, found, values, gates_T)

    return over_heads(head, [q_BKTH, k_BKTH], [dout_BNTE, *gates], dout_BNTE.shape[1])


def outputs(
    recurrence: Recurrence, q_BKTH: Array, k_BKTH: Array, v_BNTE: Array, gates: Gates, before_BNHE: Array, size: int
) -> Array:
    """float32 (B, N, T, E): the outputs of a shard, from the state before it."""
    rows = k_BKTH.shape[2]

    def head(q_TH: Array, k_TH: Array, v_TE: Array, before_HE: Array, *gates_T: Array) -> Array:
        def onward(state: Array, arrays: Arrays) -> tuple[Array, Array]:
            return outputs_of_chunk(recurrence, state, *arrays)

        _, out = lax.scan(onward, before_HE, in_chunks(rows, size, q_TH, k_TH, v_TE, *gates_T))
        return joined(rows, out)

    return over_heads(head, [q_BKTH, k_BKTH], [v_BNTE, before_BNHE, *gates], v_BNTE.shape[1])


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
    state after it. The states of chunks are computed again; then chunks are transposed from last to first."""
    rows, keys = k_BKTH.shape[2], k_BKTH.shape[1]

    def head(
        q_TH: Array, k_TH: Array, v_TE: Array, dout_TE: Array, before_HE: Array, behind_HE: Array, *gates_T: Array
    ) -> list[Array]:
        def onward(state: Array, arrays: Arrays) -> tuple[Array, Array]:
            return state_of_chunk(recurrence, state, *arrays), state

        def back(behind: Array, given: Arrays) -> tuple[Array, list[Array]]:
            state, dout_CE, *arrays = given
            _, pull = jax.vjp(lambda *each: outputs_of_chunk(recurrence, *each), state, *arrays)
            before, *found = pull((behind, dout_CE))
            return before, found

        dout, q, *others = in_chunks(rows, size, dout_TE, q_TH, k_TH, v_TE, *gates_T)
        _, states = lax.scan(onward, before_HE, tuple(others))
        _, found = lax.scan(back, behind_HE, (states, dout, q, *others), reverse=True)
        return [joined(rows, each) for each in found]

    own = [v_BNTE, dout_BNTE, before_BNHE, behind_BNHE, *gates]
    dq, dk, *rest = over_heads(head, [q_BKTH, k_BKTH], own, v_BNTE.shape[1])
    shared = (x.reshape(x.shape[0], keys, -1, *x.shape[2:]).sum(2) for x in (dq, dk))
    return (*shared, *rest)


def split_map(recurrence: Recurrence, packed: Array, key_dim: int) -> tuple[Array, Array]:
    """(A, B) of maps (..., elements): A has shape (), (H,) or (H, H) after the leading dimensions."""
    inner = {"number": 1, "diagonal": key_dim, "matrix": key_dim**2}[recurrence.map_kind]
    lead, own = packed.shape[:-1], packed.shape[-1] - inner
    shape = {"number": (), "diagonal": (key_dim,), "matrix": (key_dim, key_dim)}[recurrence.map_kind]
    return packed[..., own:].reshape(*lead, *shape), packed[..., :own].reshape(*lead, key_dim, own // key_dim)


def multiply_state(recurrence: Recurrence, a: Array, x_HE: Array) -> Array:
    """A S."""
    if recurrence.map_kind == "matrix":
        return contract_exactly("...gh,...he->...ge", a, x_HE)
    return a.reshape(*a.shape[: x_HE.ndim - 2], -1, 1) * x_HE


def apply_map(recurrence: Recurrence, packed: Array, state_BNHE: Array) -> Array:
    """A S + B."""
    a, b = split_map(recurrence, packed, state_BNHE.shape[-2])
    return multiply_state(recurrence, a, state_BNHE) + b


def compose_maps(recurrence: Recurrence, later: Array, earlier: Array, key_dim: int) -> Array:
    """The map of an earlier shard followed by the map of a later one."""
    a, b = split_map(recurrence, earlier, key_dim)
    after, _ = split_map(recurrence, later, key_dim)
    state = apply_map(recurrence, later, b)
    both = multiply_state(recurrence, after, a) if recurrence.map_kind == "matrix" else after * a
    lead = later.shape[:-1]
    return jnp.concatenate([state.reshape(*lead, -1), both.reshape(*lead, -1)], -1)
