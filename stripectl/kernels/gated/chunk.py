"""A chunk of a recurrence and its products with a state, for all kernels of recurrences.

Let G_ts be the product of the gates of tokens s+1 to t. In a chunk that begins with the state S

    u_t = b_t (v_t - S^T G_t0 k_t - sum_{s<t} (k_t . G_ts k_s) u_s)     with the delta rule, else u_t = v_t
    o_t = S^T G_t0 q_t + sum_{s<=t} (q_t . G_ts k_s) u_s
    S'  = G_C0 S + sum_s G_Cs k_s u_s^T

and u = U - W S, where (I + L) [U | W] = b [v | G_t0 k] with L strictly lower triangular.

Letters: C rows of a chunk, H elements of a key, E elements of a value. States and results are float32.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

Gates = Sequence[Array]  # the gates of a recurrence, in its order


class Chunk(NamedTuple):
    """A chunk before it has a state: queries times the gates since the start of the chunk, keys times the gates to its
    end, the product of all gates, the scores of queries with keys, and U and W (W is None without the delta rule; U is
    None where the values are zero)."""

    q_CH: Any
    k_CH: Any
    gate: Any
    scores_CC: Any
    u_CE: Any
    w_CH: Any


def _product(equation: str, x: Array, y: Array) -> Array:
    """A float32 product of two arrays, multiplied in the narrower of their dtypes, as are its gradients."""
    narrow = min(x.dtype, y.dtype, key=lambda dtype: dtype.itemsize)
    return jnp.einsum(equation, x.astype(narrow), y.astype(narrow), preferred_element_type=jnp.float32)


product: Any = jax.custom_vjp(_product, nondiff_argnums=(0,))


def _product_forward(equation: str, x: Array, y: Array) -> tuple[Array, tuple[Array, Array]]:
    return product(equation, x, y), (x, y)


def _product_backward(equation: str, arrays: tuple[Array, Array], given: Array) -> tuple[Array, Array]:
    (x, y), (of_x, of_y, out) = arrays, equation.replace("->", ",").split(",")
    narrow = given.astype(min(x.dtype, y.dtype, key=lambda dtype: dtype.itemsize))
    dx, dy = product(f"{out},{of_y}->{of_x}", narrow, y), product(f"{of_x},{out}->{of_y}", x, narrow)
    return dx.astype(x.dtype), dy.astype(y.dtype)


product.defvjp(_product_forward, _product_backward)


def written(chunk: Chunk, state_HE: Array) -> Any:
    """The values that the tokens of a chunk write. A state may have more columns than values (a map in the making);
    there the chunk has no values of its own."""
    values = chunk.u_CE
    if values is not None and (more := state_HE.shape[1] - values.shape[1]):
        values = jnp.pad(values, ((0, 0), (0, more)))
    if chunk.w_CH is None:
        return values
    known = product("ch,he->ce", chunk.w_CH, state_HE)
    return -known if values is None else values - known


def advance(chunk: Chunk, state_HE: Array, values_CE: Array) -> Array:
    """The state after a chunk that wrote these values."""
    return chunk.gate * state_HE + product("ch,ce->he", chunk.k_CH, values_CE)


def state_after(chunk: Chunk, state_HE: Array) -> Array:
    """The state after the chunk."""
    return advance(chunk, state_HE, written(chunk, state_HE))


def outputs_after(chunk: Chunk, state_HE: Array) -> tuple[Array, Array]:
    """(state after the chunk, outputs)."""
    values_CE = written(chunk, state_HE)
    out_CE = product("ch,he->ce", chunk.q_CH, state_HE) + product("ts,se->te", chunk.scores_CC, values_CE)
    return advance(chunk, state_HE, values_CE), out_CE


def gradient_before(chunk: Chunk, behind_HE: Array, dout_CE: Array | None) -> Array:
    """The gradient of the state before a chunk, from the gradients of the state after it and of its outputs (None:
    zero)."""
    before = chunk.gate * behind_HE
    if dout_CE is not None:
        before = before + product("ch,ce->he", chunk.q_CH, dout_CE)
    if chunk.w_CH is None:
        return before
    dvalues = product("ch,he->ce", chunk.k_CH, behind_HE)
    if dout_CE is not None:
        dvalues = dvalues + product("ts,te->se", chunk.scores_CC, dout_CE)
    return before - product("ch,ce->he", chunk.w_CH, dvalues)
