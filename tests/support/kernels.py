"""Kernels of softmax attention against dense attention, differentiated by JAX."""

import jax
import jax.numpy as jnp
import numpy as np

from stripectl.core.kernel import kernels
from stripectl.core.layout import MaskBlock, Tile

ROWS, COLS, HEADS, KV_HEADS, HEAD_DIM = 24, 36, 4, 2, 8


def dense(q, k, v, keep):
    """(out, log-sum-exp) with whole rows of scores; rows that keep nothing give 0 and the log of nothing."""
    k, v = (jnp.repeat(x, HEADS // KV_HEADS, axis=1) for x in (k, v))
    s = jnp.where(keep, jnp.einsum("bnth,bnsh->bnts", q, k, precision="highest") * HEAD_DIM**-0.5, -1e30)
    lse = jax.scipy.special.logsumexp(s, axis=-1)
    p = jnp.where(keep, jnp.exp(s - lse[..., None]), 0)
    return jnp.einsum("bnts,bnsh->bnth", p, v, precision="highest"), lse


@jax.jit
def differentiated(q, k, v, keep, dout, dlse):
    """Of dense attention: (out, log-sum-exp), and the gradients of q, k and v."""
    found, transpose = jax.vjp(lambda q, k, v: dense(q, k, v, keep), q, k, v)
    return found, transpose((dout, dlse))


def check_rectangles(name: str, bands: list[MaskBlock], tile: Tile) -> None:
    """Rectangles of a pair of shards, which do not overlap."""
    module, rng = kernels[name].load(), np.random.default_rng(0)
    rows, cols = max(b.row + b.rows for b in bands), max(b.col + b.cols for b in bands)
    q, dout = (rng.standard_normal((2, HEADS, rows, HEAD_DIM), np.float32) for _ in range(2))
    k, v = (rng.standard_normal((2, KV_HEADS, cols, HEAD_DIM), np.float32) for _ in range(2))
    keep = np.zeros((2, HEADS, rows, cols), bool)
    for band in bands:
        distance = np.arange(band.cols) - np.arange(band.rows)[:, None]
        own = np.broadcast_to((distance >= band.low) & (distance <= band.high), (2, HEADS, band.rows, band.cols))
        if band.limits is not None:
            first, end = (np.asarray(limit)[:, None, :, None] for limit in band.limits)
            own = own & (np.arange(band.cols) >= first) & (np.arange(band.cols) < end)
        keep[..., band.row : band.row + band.rows, band.col : band.col + band.cols] = own
    live = keep.any(-1)
    dlse = rng.standard_normal((2, HEADS, rows), np.float32) * live

    zeros, rows_of_zeros = np.zeros(q.shape, np.float32), np.zeros(q.shape[:3], np.float32)
    empty = zeros, np.full(q.shape[:3], module.EMPTY, np.float32), rows_of_zeros
    acc, top, total = map(np.asarray, jax.jit(lambda *x: module.forward(*x, bands, tile))(q, k, v, empty))
    some = np.where(total > 0, total, 1)
    out, lse = acc / some[..., None], top + np.log(some)
    (expected, expected_lse), references = jax.tree.map(np.asarray, differentiated(q, k, v, keep, dout, dlse))
    assert np.allclose(out, expected, atol=2e-6)
    assert np.allclose(lse[live], expected_lse[live], atol=2e-6)

    delta = np.sum(dout * out, -1) - dlse
    grads = jax.jit(lambda *x: module.backward(*x, bands, tile))(q, k, v, dout, lse, delta, zeros)
    for gradient, reference in zip(grads, references, strict=True):
        assert np.max(np.abs(gradient - reference)) <= 2e-6 * np.max(np.abs(reference)) + 1e-7
