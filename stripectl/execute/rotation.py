"""Rotary positions (Su et al. 2021): queries and keys are rotated by angles that grow with their positions."""

import jax
import jax.numpy as jnp
import numpy as np

from stripectl.core import scopes
from stripectl.core.rotary_scaling import RotaryScaling, Scaling, YarnScaling

Rotation = tuple[jax.Array, jax.Array]


def rotation(positions: jax.Array, head_dim: int, base: float, scaling: Scaling | None = None) -> Rotation:
    """(cosines, sines), float32 (..., positions, head_dim / 2), of the angles in Su et al. 2021, section 3.2.2; with
    YaRN times its factor."""
    frequencies = base ** (-jnp.arange(0, head_dim, 2) / head_dim)
    if isinstance(scaling, YarnScaling):
        frequencies *= yarn_factors(head_dim // 2, base, scaling)
    elif scaling is not None:
        frequencies = scaled(frequencies, scaling)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    growth = scaling.growth if isinstance(scaling, YarnScaling) else 1.0
    return jnp.cos(angles) * growth, jnp.sin(angles) * growth


def scaled(frequencies: jax.Array, scaling: RotaryScaling) -> jax.Array:
    """Frequencies of rotary angles with a scaling."""
    factor, low, high, length = scaling
    if low is None or high is None or length is None:
        return frequencies / factor
    turns = length * frequencies / (2 * jnp.pi)  # in these positions
    kept = jnp.clip((turns - low) / (high - low), 0, 1)
    return frequencies * (kept + (1 - kept) / factor)


def yarn_factors(number: int, base: float, scaling: YarnScaling) -> np.ndarray:
    """The factor of each of `number` frequencies (Peng et al. 2023, section 3.2)."""
    turns = np.array([scaling.fast, scaling.slow])
    first, last = number * np.log(scaling.length / (2 * np.pi * turns)) / np.log(base)  # which turn so often
    if scaling.whole:
        first, last = np.floor(first), np.ceil(last)
    first, last = max(first, 0.0), min(last, 2 * number - 1.0)
    divided = np.clip((np.arange(number) - first) / max(last - first, 1e-3), 0, 1)
    return 1 - divided + divided / scaling.factor


def rotated(x: jax.Array, turn: Rotation, factor: float = 1.0) -> jax.Array:
    """x (..., head_dim) rotated by angles that broadcast with its halves, times a factor; a pair is a row's i-th entry
    and the i-th of its second half. Where there are fewer angles, only the first elements of a row are rotated."""
    cos, sin = turn
    with jax.named_scope(scopes.ROTARY):
        wide = x.astype(jnp.float32) if factor == 1.0 else x.astype(jnp.float32) * factor
        half = cos.shape[-1]
        a, b, rest = jnp.split(wide, [half, 2 * half], axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1).astype(x.dtype)
