"""A pair of shards for kernels that compute a whole rectangle at once (splash, cudnn). Each rectangle is dead (nothing
runs), whole (no mask) or masked; the program chooses at run time, and the results are merged and summed in float32.

Letters: B batch, N query heads, T rows (queries), H head_dim; M = B N, because batch and heads are one dimension here.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from stripectl.core.layout import Bands, Index, MaskBlock
from stripectl.errors import BadInput
from stripectl.kernels.xla.kernel import Arrays

EMPTY = -1e30  # the maximum of no scores: finite, because -inf minus -inf is NaN
NOTHING = 2 * EMPTY  # the log-sum-exp of no scores; it has no weight next to EMPTY


class Passes(NamedTuple):
    """The functions of a kernel whose library computes a rectangle, as `core.kernel.Kernel` has them."""

    forward: Callable
    backward: Callable
    forward_once: Callable
    backward_once: Callable


def visit_blocks(bands: Bands, compute: Callable, state: Arrays, padded: bool) -> Arrays:
    """state = compute(band, masked, state) for each rectangle that is not dead; one compiled body serves them all.
    Where keys are `padded`, every rectangle is masked."""

    def rectangle(band: MaskBlock, state: Arrays) -> Arrays:
        case = (band.high > -band.rows) * (2 - ((band.high >= band.cols - 1) & (not padded)))
        branches = [lambda state: state, partial(compute, band, False), partial(compute, band, True)]
        return branches[case](state) if isinstance(case, int) else lax.switch(case, branches, state)

    if any(isinstance(band.low, int) and band.low > 1 - band.rows for band in bands):
        raise BadInput("this kernel has causal and full masks, but no windows. Try --kernel xla.")
    if len(bands) == 1:
        return rectangle(bands[0], state)
    table = jnp.stack([jnp.stack([jnp.asarray(x, jnp.int32) for x in (b.row, b.col, b.high)]) for b in bands])

    def turn(r: Index, state: Arrays) -> Arrays:
        return rectangle(bands[0]._replace(row=table[r, 0], col=table[r, 1], high=table[r, 2]), state)

    return lax.fori_loop(0, len(bands), turn, state)


def fold(x: Array) -> Array:
    """Batch and heads as one dimension."""
    return x.reshape(-1, *x.shape[2:])


def unfold(x: Array, like_BNTH: Array) -> Array:
    """The inverse of `fold`, for an array with the batch and heads of another."""
    return x.reshape(*like_BNTH.shape[:2], *x.shape[1:])


def cut_block(x: Array, at: Index, size: int) -> Array:
    return lax.dynamic_slice_in_dim(x, at, size, axis=1)


def put_block(x: Array, at: Index, part: Array) -> Array:
    return lax.dynamic_update_slice_in_dim(x, part, at, axis=1)


def merge(state: Sequence[Array], out_MTH: Array, lse_MT: Array) -> Arrays:
    """The state merged with `out` and `lse` of further keys. A row without keys has a log-sum-exp of NOTHING or less
    and may have a NaN output; its weight is zero."""
    before_MTH, max_MT, sum_MT = state
    new_MT = jnp.maximum(max_MT, lse_MT)
    decay_MT, weight_MT = jnp.exp(max_MT - new_MT), jnp.exp(lse_MT - new_MT)
    added_MTH = jnp.where(weight_MT[..., None] > 0, out_MTH.astype(jnp.float32), 0) * weight_MT[..., None]
    return before_MTH * decay_MT[..., None] + added_MTH, new_MT, sum_MT * decay_MT + weight_MT


def forward(
    queries: Sequence, keys: Sequence, state: Arrays, bands: Bands, attend: Callable, padded: bool = False
) -> Arrays:
    """The state after attend(band, masked, *queries, *keys) -> (out_MTH, log-sum-exp_MT) for each live rectangle.
    `attend` gets the rectangle's rows of the folded arrays."""

    def compute(band: MaskBlock, masked: bool, state: Arrays) -> Arrays:
        rows = (cut_block(x, band.row, band.rows) for x in queries)
        columns = (cut_block(x, band.col, band.cols) for x in keys)
        met = merge([cut_block(x, band.row, band.rows) for x in state], *attend(band, masked, *rows, *columns))
        return tuple(put_block(x, band.row, part) for x, part in zip(state, met, strict=True))

    after = visit_blocks(bands, compute, tuple(map(fold, state)), padded)
    return tuple(x.reshape(before.shape) for x, before in zip(after, state, strict=True))


def backward(
    queries: Sequence, keys: Sequence, dq_BNTH: Array, bands: Bands, differentiate: Callable, padded: bool = False
) -> Arrays:
    """(dq, dk, dv), dk and dv folded, from differentiate(band, masked, *queries, *keys) -> (dq, dk, dv) for each live
    rectangle, as in `forward`; dq is added to the dq that is given."""

    def compute(band: MaskBlock, masked: bool, grads: Arrays) -> Arrays:
        rows = (cut_block(x, band.row, band.rows) for x in queries)
        columns = (cut_block(x, band.col, band.cols) for x in keys)
        found = (x.astype(jnp.float32) for x in differentiate(band, masked, *rows, *columns))
        places = zip(grads, (band.row, band.col, band.col), found, strict=True)
        return tuple(put_block(x, at, cut_block(x, at, d.shape[1]) + d) for x, at, d in places)

    zeros = (jnp.zeros_like(x, jnp.float32) for x in keys)
    dq, dk, dv = visit_blocks(bands, compute, (fold(dq_BNTH), *zeros), padded)
    return dq.reshape(dq_BNTH.shape), dk, dv
