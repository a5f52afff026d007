"""Passes of a kernel whose library computes a whole rectangle with one of two masks, none and causal (cudnn, tokamax on
GPUs).

Letters: B batch, N query heads, K key/value heads, T rows (queries), S columns (keys), H head_dim; M = B N and L = B K,
because batch and heads are one dimension here.

A mask j <= i + high with high < 0 is the causal mask after the queries have moved up by -high rows: the first rows,
which attend to no key, leave, and rows of zeros follow the last. With high > 0, which occurs only for queries behind a
cached prefix, the first `high` keys have no mask and the other keys the causal mask.

Such a library computes delta itself as rowsum(dout * out) from an output that it is given. Where several results are
merged, stripectl has a delta instead, so `output_for` builds an output that gives this delta.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from stripectl.core.layout import UNBOUNDED, Bands, Index, MaskBlock, Tile
from stripectl.errors import BadInput
from stripectl.kernels.splash import rectangles
from stripectl.kernels.splash.rectangles import NOTHING, Passes, fold, unfold
from stripectl.kernels.xla.kernel import Arrays

PARTS = 2  # parts of the columns that carry delta; each part corrects the rounding of the parts before it
MIN_PART_SQUARE = 1e-6  # sum of squares of a part over its row's largest element; below it, other parts carry delta


def output_for(dout_MTH: Array, delta_MT: Array) -> Array:
    """out_MTH along dout with rowsum(dout * out) = delta. Rounding would change delta by up to 2^-9, so there are two
    parts of columns, and the second carries the rounding error of the first. Rows where dout is 0 get 0: every
    cotangent of a log-sum-exp that a scheme has comes with a cotangent of its output."""
    kind, width = jnp.finfo(dout_MTH.dtype), dout_MTH.shape[2]
    wide = dout_MTH.astype(jnp.float32)
    largest = jnp.max(jnp.abs(wide), axis=2)
    scale = jnp.where(largest >= jnp.finfo(jnp.float32).tiny, 1 / largest, 0)
    unit_MTH, left_MT, out_MTH = wide * scale[..., None], delta_MT * scale, jnp.zeros_like(wide)
    for part in range(PARTS):
        own = jnp.where(jnp.arange(width) % PARTS == part, unit_MTH, 0)
        step = own * (left_MT / jnp.maximum(jnp.sum(own**2, 2), MIN_PART_SQUARE))[..., None]
        step = lax.reduce_precision(step, kind.nexp, kind.nmant)  # XLA removes a cast there and back, but not this
        left_MT, out_MTH = left_MT - jnp.sum(own * step, 2), out_MTH + step
    return out_MTH.astype(dout_MTH.dtype)


def moved(x: Array, rows: Index, fill: float = 0.0) -> Array:
    """x with row i taken from row i + rows, or `fill` where that row does not exist."""
    if isinstance(rows, int) and rows == 0:
        return x
    size, sides = x.shape[1], [(0, 0, 0)] * x.ndim
    sides[1] = size, size, 0
    padded = lax.pad(x, jnp.asarray(fill, x.dtype), sides)
    return lax.dynamic_slice_in_dim(padded, size + rows, size, axis=1)


def by_diagonal(name: str, band: MaskBlock, masked: bool, run: Callable) -> Any:
    """run(causal, rows), where queries move up by `rows` so that the library's mask equals the band's. The program
    decides at run time whether they move at all, so that it copies only then."""
    if not masked:
        return run(False, 0)
    if not isinstance(band.high, int):
        return lax.cond(band.high < 0, lambda: run(True, -band.high), lambda: run(True, 0))
    if band.high > 0:
        raise BadInput(f"{name} has no mask with a diagonal above the first. Try --kernel xla.")
    return run(True, -band.high)


def without_prefix(bands: Bands) -> list[Bands]:
    """The bands in groups that run in sequence; no group has a diagonal above the first."""
    if not any(isinstance(band.high, int) and 0 < band.high < band.cols - 1 for band in bands):
        return [bands]
    parts = list[Bands]()
    for band in bands:
        first = min(max(band.high, 0), band.cols)
        parts += [[band._replace(cols=first, high=UNBOUNDED)]] if first else []
        rest = band._replace(col=band.col + first, cols=band.cols - first, high=band.high - first)
        parts += [[rest]] if rest.cols else []
    return parts


def attend_moved(attend: Callable, q: Array, k: Array, v: Array, causal: bool, rows: Index) -> tuple[Array, Array]:
    """(out_MTH, log-sum-exp_MT) of queries that have moved up by `rows`, moved back."""
    out, lse = attend(causal, moved(q, rows), k, v)
    return moved(out, -rows), moved(lse, -rows, NOTHING)


def differentiate_moved(
    differentiate: Callable, queries: Sequence[Array], k: Array, v: Array, causal: bool, rows: Index
) -> Arrays:
    """(dq_MTH, dk_LSH, dv_LSH) likewise, from (q, log-sum-exp, out, dout)."""
    q, lse, out, dout = (moved(x, rows) for x in queries)
    dq, dk, dv = differentiate(causal, q, k, v, lse, out, dout)
    return moved(dq, -rows), dk, dv


def causal_passes(name: str, attend: Callable, differentiate: Callable) -> Passes:
    """The passes of the kernel `name`, from its library's attend(causal, q_MTH, k_LSH, v_LSH) ->
    (out_MTH, log-sum-exp_MT) and differentiate(causal, q_MTH, k_LSH, v_LSH, lse_MT, out_MTH, dout_MTH) ->
    (dq_MTH, dk_LSH, dv_LSH)."""

    def forward(q_BNTH: Array, k_BKSH: Array, v_BKSH: Array, state: Arrays, bands: Bands, tile: Tile) -> Arrays:
        def compute(band: MaskBlock, masked: bool, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
            return by_diagonal(name, band, masked, partial(attend_moved, attend, q, k, v))

        for group in without_prefix(bands):
            state = rectangles.forward([fold(q_BNTH)], [fold(k_BKSH), fold(v_BKSH)], state, group, compute)
        return state

    def backward(
        q_BNTH: Array,
        k_BKSH: Array,
        v_BKSH: Array,
        dout_BNTH: Array,
        lse_BNT: Array,
        delta_BNT: Array,
        dq_BNTH: Array,
        bands: Bands,
        tile: Tile,
    ) -> tuple[Array, Array, Array]:
        """(dq, dk, dv). A row of zeros after the last query adds no gradient, because its dout and its delta are 0."""
        q, lse, dout, delta = map(fold, (q_BNTH, lse_BNT, dout_BNTH.astype(q_BNTH.dtype), delta_BNT))
        queries = q, lse, output_for(dout, delta), dout

        def compute(band: MaskBlock, masked: bool, *arrays: Array) -> Arrays:
            *own, k, v = arrays

            return by_diagonal(name, band, masked, partial(differentiate_moved, differentiate, own, k, v))

        dq, dk, dv = rectangles.backward(queries, [fold(k_BKSH), fold(v_BKSH)], dq_BNTH, bands, compute)
        return dq, dk.reshape(k_BKSH.shape), dv.reshape(v_BKSH.shape)

    def forward_once(q_BNTH: Array, k_BKSH: Array, v_BKSH: Array, bands: Bands, tile: Tile) -> tuple[Array, Array]:
        (band,) = bands
        out, lse = attend(band.high < band.cols - 1, fold(q_BNTH), fold(k_BKSH), fold(v_BKSH))
        return unfold(out, q_BNTH), unfold(lse, q_BNTH)

    def backward_once(
        q_BNTH: Array,
        k_BKSH: Array,
        v_BKSH: Array,
        dout_BNTH: Array,
        lse_BNT: Array,
        delta_BNT: Array,
        out_BNTH: Array,
        bands: Bands,
        tile: Tile,
    ) -> tuple[Array, Array, Array]:
        """(dq, dk, dv). The library computes delta itself."""
        (band,) = bands
        arrays = q_BNTH, k_BKSH, v_BKSH, lse_BNT, out_BNTH, dout_BNTH.astype(q_BNTH.dtype)
        dq, dk, dv = differentiate(band.high < band.cols - 1, *map(fold, arrays))
        return unfold(dq, q_BNTH), unfold(dk, k_BKSH), unfold(dv, v_BKSH)

    return Passes(forward, backward, forward_once, backward_once)
