"""`core.layout_switch` in JAX: the rows of one device move between two layouts, inside a shard_map."""

import jax
import jax.numpy as jnp
from jax import lax

from stripectl.core.layout_switch import half_destinations


def to_layout(x: jax.Array, layout: str, axis: str, shards: int, dim: int) -> jax.Array:
    """Rows from the contiguous layout, along dimension `dim`, in another layout."""
    if layout == "striped":
        return _exchanged(x, axis, shards, dim)
    halves = [
        lax.ppermute(half, axis, [*enumerate(there)])
        for half, there in zip(jnp.split(x, 2, dim), half_destinations(shards), strict=True)
    ]
    return _in_turn(halves, axis, dim)


def from_layout(x: jax.Array, layout: str, axis: str, shards: int, dim: int) -> jax.Array:
    """The inverse of `to_layout`."""
    if layout == "striped":
        rows = x.shape[dim] // shards
        shape = (*x.shape[:dim], shards, rows, *x.shape[dim + 1 :])
        moved = lax.all_to_all(x.reshape(shape), axis, dim, dim + 1, tiled=True)
        return moved.reshape(*x.shape[:dim], shards, rows, *x.shape[dim + 1 :]).swapaxes(dim, dim + 1).reshape(x.shape)
    first, second = jnp.split(_in_turn(jnp.split(x, 2, dim), axis, dim), 2, dim)
    halves = [
        lax.ppermute(half, axis, [(place, i) for i, place in enumerate(there)])
        for half, there in zip((first, second), half_destinations(shards), strict=True)
    ]
    return jnp.concatenate(halves, dim)


def _exchanged(x: jax.Array, axis: str, shards: int, dim: int) -> jax.Array:
    """x after an all-to-all that sends row i of a shard to device i mod N."""
    rows = x.shape[dim] // shards
    dealt = x.reshape(*x.shape[:dim], rows, shards, *x.shape[dim + 1 :])
    return lax.all_to_all(dealt, axis, dim + 1, dim, tiled=True).reshape(x.shape)


def _in_turn(halves: list[jax.Array], axis: str, dim: int) -> jax.Array:
    """The halves in order on even devices and exchanged on odd devices, because chunk i comes before chunk 2N-1-i."""
    first, second = halves
    even = lax.axis_index(axis) % 2 == 0
    return jnp.concatenate([jnp.where(even, first, second), jnp.where(even, second, first)], dim)
