"""A stand-in for cuDNN's attention, with the same contract, in JAX."""

import jax
import jax.numpy as jnp

from stripectl.core.layout import UNBOUNDED


def matmul(axes: str, x, y):
    """As the library multiplies: added up in float32."""
    return jnp.einsum(axes, x, y, precision="highest", preferred_element_type=jnp.float32)


def weights(causal: bool, q_MTH, k_LSH, lse_MT=None, keys=UNBOUNDED):
    """(probabilities, log-sum-exp): causal keeps keys j <= i, both counted from the first; no key from `keys` on."""
    rows, cols, width = q_MTH.shape[1], k_LSH.shape[1], q_MTH.shape[2]
    k_MSH = jnp.repeat(k_LSH, q_MTH.shape[0] // k_LSH.shape[0], axis=0)
    s = matmul("mth,msh->mts", q_MTH, k_MSH)
    keep = jnp.arange(cols) <= jnp.arange(rows)[:, None] if causal else jnp.ones((rows, cols), bool)
    s = jnp.where(keep & (jnp.arange(cols) < keys), s * width**-0.5, -jnp.inf)
    lse = jax.scipy.special.logsumexp(s, axis=-1) if lse_MT is None else lse_MT
    return jnp.exp(s - lse[..., None]), lse


def attend(causal: bool, q_MTH, k_LSH, v_LSH, keys=UNBOUNDED):
    p, lse = weights(causal, q_MTH, k_LSH, keys=keys)
    v = jnp.repeat(v_LSH, q_MTH.shape[0] // v_LSH.shape[0], axis=0)
    return matmul("mts,msh->mth", p.astype(v.dtype), v).astype(v.dtype), lse


def differentiate(causal: bool, q_MTH, k_LSH, v_LSH, lse_MT, out_MTH, dout_MTH, keys=UNBOUNDED):
    """Delta is worked out from the output, and what is multiplied and what comes of it has the arguments' dtype."""
    group, dtype = q_MTH.shape[0] // k_LSH.shape[0], q_MTH.dtype
    k, v = (jnp.repeat(x, group, axis=0) for x in (k_LSH, v_LSH))
    delta = jnp.sum(out_MTH.astype(jnp.float32) * dout_MTH.astype(jnp.float32), axis=-1)
    p, _ = weights(causal, q_MTH, k_LSH, lse_MT, keys)
    dp = matmul("mth,msh->mts", dout_MTH, v)
    ds = (p * (dp - delta[..., None]) * q_MTH.shape[2] ** -0.5).astype(dtype)

    def shared(x):
        return x.reshape(-1, group, *x.shape[1:]).sum(1).astype(dtype)

    dk, dv = matmul("mts,mth->msh", ds, q_MTH), matmul("mts,mth->msh", p.astype(dtype), dout_MTH)
    return matmul("mts,msh->mth", ds, k).astype(dtype), shared(dk), shared(dv)
