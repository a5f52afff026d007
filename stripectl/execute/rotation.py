"""Rotary positions (Su et al. 2021): queries and keys are rotated by angles that grow with their positions."""

import jax
import jax.numpy as jnp

from stripectl.core import scopes

ROTARY_BASE = 10000.0  # Su et al. 2021; Llama 3 has 500000
Rotation = tuple[jax.Array, jax.Array]


def rotation(positions: jax.Array, head_dim: int, base: float) -> Rotation:
    """(cosines, sines), float32 (..., positions, head_dim / 2), of the angles in Su et al. 2021, section 3.2.2."""
    angles = positions[..., None].astype(jnp.float32) * base ** (-jnp.arange(0, head_dim, 2) / head_dim)
    return jnp.cos(angles), jnp.sin(angles)


def rotated(x: jax.Array, turn: Rotation) -> jax.Array:
    """x (..., head_dim) rotated by angles that broadcast with its halves; a pair is a row's i-th entry and the i-th of
    its second half."""
    cos, sin = turn
    with jax.named_scope(scopes.ROTARY):
        a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)
