"""cuDNN attention of a pair of shards, forward and backward, through JAX's primitives (jax.nn.dot_product_attention).

Letters: B batch, N query heads, K key/value heads, T rows (queries), S columns (keys), H head_dim; M = B N and L = B K,
because batch and heads are one dimension here. The library shares key/value heads within groups.

The public function has no backward pass for a part of the keys, because that needs the log-sum-exp over all keys. Its
primitives take a log-sum-exp as an argument. They return attention and gradients in the dtype of their arguments and
the log-sum-exp in float32; the results of rectangles are merged and summed in float32 (`rectangles`).
"""

import jax.numpy as jnp
from jax import Array

import stripectl.compat as compat
from stripectl.kernels.splash import rectangles
from stripectl.kernels.splash.causal import causal_passes
from stripectl.kernels.xla.kernel import Arrays

EMPTY = rectangles.EMPTY
UNUSED = 7  # arguments for biases, lengths, offsets and pages

LIBRARY = compat.cudnn()


def settings(q_MTH: Array, causal: bool) -> dict:
    return {
        "scale": q_MTH.shape[2] ** -0.5,
        "seed": 0,
        "dropout_rate": 0.0,
        "variadic_args": (False, False),
        "mask_type": LIBRARY.masks[causal],
        "layout": LIBRARY.layout,
        "sliding_window_length": None,
        **LIBRARY.options,
    }


def attend(causal: bool, q_MTH: Array, k_LSH: Array, v_LSH: Array) -> tuple[Array, Array]:
    """(out_MTH, log-sum-exp_MT)"""
    arrays = (x[None] for x in (q_MTH, k_LSH, v_LSH))
    unused = [jnp.zeros(0, q_MTH.dtype)] * UNUSED
    out, lse = LIBRARY.forward.bind(*arrays, *unused, **settings(q_MTH, causal), is_training=True)
    return out[0], lse[0]


def differentiate(
    causal: bool, q_MTH: Array, k_LSH: Array, v_LSH: Array, lse_MT: Array, out_MTH: Array, dout_MTH: Array
) -> Arrays:
    """(dq_MTH, dk_LSH, dv_LSH)"""
    arrays = (x[None] for x in (q_MTH, k_LSH, v_LSH))
    unused = [jnp.zeros(0, q_MTH.dtype)] * UNUSED
    results = (x[None] for x in (lse_MT, out_MTH, dout_MTH))
    found = LIBRARY.backward.bind(*arrays, *unused, *results, **settings(q_MTH, causal))
    return tuple(x[0] for x in found)


forward, backward, forward_once, backward_once = causal_passes("cudnn", attend, differentiate)
