"""Rotary positions (Su et al. 2021): queries and keys are rotated by angles that grow with their positions."""

import jax
import jax.numpy as jnp

from stripectl.core import scopes
from stripectl.core.rotary_scaling import Scaling

Rotation = tuple[jax.Array, jax.Array]


def rotation(positions: jax.Array, head_dim: int, base: float, scaling: Scaling | None = None) -> Rotation:
    """(cosines, sines), float32 (..., positions, head_dim / 2), of the angles in Su et al. 2021, section 3.2.2; with a
    scaling, times its factor."""
    frequencies = base ** (-jnp.arange(0, head_dim, 2) / head_dim)
    if scaling is not None:
        frequencies *= scaling.factors(head_dim // 2, base).astype("float32")
    angles = positions[..., None].astype(jnp.float32) * frequencies
    turn = jnp.cos(angles), jnp.sin(angles)
    return turn if scaling is None else (turn[0] * scaling.mscale, turn[1] * scaling.mscale)


def rotated(x: jax.Array, turn: Rotation, factor: float = 1.0) -> jax.Array:
    """x (..., head_dim) rotated by angles that broadcast with its halves, times a factor; a pair is a row's i-th entry
    and the i-th of its second half. Where there are fewer angles, only the first elements of a row are rotated."""
    cos, sin = turn
    with jax.named_scope(scopes.ROTARY):
        wide = x.astype(jnp.float32) if factor == 1.0 else x.astype(jnp.float32) * factor
        half = cos.shape[-1]
        a, b, rest = jnp.split(wide, [half, 2 * half], axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1).astype(x.dtype)
