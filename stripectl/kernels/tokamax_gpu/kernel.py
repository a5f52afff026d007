"""tokamax's attention for Hopper GPUs, written in Pallas for Mosaic GPU, of a pair of shards, forward and backward.

Letters: B batch, N query heads, K key/value heads, T rows (queries), S columns (keys), H head_dim; M = B N and L = B K,
because batch and heads are one dimension here. The library shares key/value heads within groups.

The library's arrays have rows before heads. Its backward pass takes the maximum and the sum of exponentials of each
row, and gets the log-sum-exp and 1. It returns attention and gradients in the dtype of its arguments; the results
of rectangles are merged and summed in float32 (`rectangles`).

The library runs pairs without a mask in a persistent kernel: as many blocks of threads as multiprocessors. A program
that is compiled without a GPU has a block of threads per row of tiles instead; its memory and collectives are the same.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.extend.backend import get_default_device
from jax.lax import DotAlgorithmPreset

import stripectl.compat as compat
from stripectl.kernels.splash import rectangles
from stripectl.kernels.splash.causal import causal_passes
from stripectl.kernels.splash.rectangles import NOTHING
from stripectl.kernels.xla.kernel import Arrays

EMPTY = rectangles.EMPTY
PRECISION = (DotAlgorithmPreset.BF16_BF16_F32,) * 2  # of scores and of the output

LIBRARY = compat.tokamax_gpu()


def settings(causal: bool, q_MTH: Array) -> dict:
    return {"is_causal": causal, "logits_scale": q_MTH.shape[2] ** -0.5, "logits_soft_cap": None}


def call_of(causal: bool, *arrays: Array | None) -> Any:
    """A call as the library describes it to the function that chooses the blocks of an untuned call."""
    options = {"bias": None, "mask": LIBRARY.Mask(is_causal=causal), "q_indices": None, "k_indices": None}
    return SimpleNamespace(op=None, args=arrays, kwargs={**options, "precision": PRECISION, "return_residuals": True})


def rows_first(*arrays: Array) -> Arrays:
    return tuple(x.swapaxes(0, 1) for x in arrays)


def key_limit(keys: int, block: int) -> Array | None:
    """The number of keys that queries may see, where the last block has others too."""
    return jnp.full((1, 1), keys, jnp.int32) if keys % block else None


def attend(causal: bool, q_MTH: Array, k_LSH: Array, v_LSH: Array) -> tuple[Array, Array]:
    """(out_MTH, log-sum-exp_MT)"""
    q, k, v = rows_first(q_MTH, k_LSH, v_LSH)
    blocks = LIBRARY.forward.get_heuristics_config(call_of(causal, q, k, v), False)
    if get_default_device().platform != "gpu":  # a persistent kernel asks this device for its multiprocessors
        blocks = replace(blocks, persistent=False)
    behind = [(0, -k.shape[0] % blocks.block_kv), (0, 0), (0, 0)]
    out, (most, total) = LIBRARY.forward.flash_attention_kernel(
        *(q, jnp.pad(k, behind), jnp.pad(v, behind), None, None, None),
        key_limit(k.shape[0], blocks.block_kv),
        **settings(causal, q_MTH),
        out_dtype=q.dtype,
        normalize_output=True,
        return_residuals=True,
        use_stable_softmax=True,
        rescale_threshold=1.0,
        config=blocks,
    )
    return out.swapaxes(0, 1), jnp.where(total > 0, most + jnp.log(total), NOTHING)


def differentiate(
    causal: bool, q_MTH: Array, k_LSH: Array, v_LSH: Array, lse_MT: Array, out_MTH: Array, dout_MTH: Array
) -> Arrays:
    """(dq_MTH, dk_LSH, dv_LSH)"""
    q, k, v, out, dout = rows_first(q_MTH, k_LSH, v_LSH, out_MTH, dout_MTH)
    blocks = LIBRARY.backward.get_heuristics_config(call_of(causal, None, out, dout, q, k, v))
    dq, dk, dv, _ = LIBRARY.backward.flash_attention_vjp_kernel(
        *(q, k, v, (lse_MT, jnp.ones_like(lse_MT)), out, dout, None, None, None),
        key_limit(k.shape[0], blocks.block_kv_dq),
        **settings(causal, q_MTH),
        ds_dtype=None,
        config=blocks,
    )
    return rows_first(dq, dk, dv)


forward, backward, forward_once, backward_once = causal_passes("tokamax_gpu", attend, differentiate)
