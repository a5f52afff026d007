"""The arithmetic of a short convolution (`layers.short_convolution`), with a backward pass of its own.

Letters: B batch, N heads, T rows, H elements of a head, D tokens of the convolution.
"""

import jax
import jax.numpy as jnp
from jax import lax


def sums_of_tokens(wide_BNTH: jax.Array, weight_NHD: jax.Array, rows: int) -> jax.Array:
    """The weighted sums of each row and the rows before it."""
    first, *others = (
        wide_BNTH[:, :, at : at + rows] * weight_NHD[:, None, :, at] for at in range(weight_NHD.shape[-1])
    )
    return sum(others, first)


@jax.custom_vjp
def convolved(x_BNTH: jax.Array, before: jax.Array, weight_NHD: jax.Array) -> jax.Array:
    """SiLU of the sums over the last tokens, in float32; `before` holds the rows before the first."""
    wide = jnp.concatenate([before, x_BNTH], 2).astype(jnp.float32)
    return jax.nn.silu(sums_of_tokens(wide, weight_NHD, x_BNTH.shape[2])).astype(x_BNTH.dtype)


def convolved_forward(x_BNTH: jax.Array, before: jax.Array, weight_NHD: jax.Array) -> tuple:
    return convolved(x_BNTH, before, weight_NHD), (x_BNTH, before, weight_NHD)


def convolved_backward(saved: tuple, dout_BNTH: jax.Array) -> tuple:
    """The gradient of a row is a sum over the next tokens. JAX's transpose would hold a float32 array per token, and
    without the barrier the compiler would keep the float32 arrays of the forward pass."""
    (x_BNTH, before, weight_NHD), dout_BNTH = lax.optimization_barrier((saved, dout_BNTH))
    rows, halo = x_BNTH.shape[2], before.shape[2]
    wide = jnp.concatenate([before, x_BNTH], 2).astype(jnp.float32)
    _, through_silu = jax.vjp(jax.nn.silu, sums_of_tokens(wide, weight_NHD, rows))
    (dtotal,) = through_silu(dout_BNTH.astype(jnp.float32))
    padded = jnp.pad(dtotal, ((0, 0), (0, 0), (halo, halo), (0, 0)))
    dwide = sums_of_tokens(padded, weight_NHD[:, :, ::-1], rows + halo)
    dweight = [jnp.sum(wide[:, :, at : at + rows] * dtotal, (0, 2)) for at in range(halo + 1)]
    return dwide[:, :, halo:].astype(x_BNTH.dtype), dwide[:, :, :halo].astype(before.dtype), jnp.stack(dweight, -1)


convolved.defvjp(convolved_forward, convolved_backward)
