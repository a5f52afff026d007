"""A parameter gathered where a layer uses it, with its gradient, inside a shard_map (`core.parameters`)."""

from collections.abc import Sequence

import jax
from jax import lax

from stripectl.core.parameters import ParameterGather
from stripectl.execute.derivatives import with_backward


def _gathered(how: ParameterGather, dtype: str, stored: jax.Array, updated: jax.Array) -> jax.Array:
    """A stored parameter gathered where it is used, in the dtype of the step; `updated` only takes its gradient."""
    del updated
    narrow = stored.astype(dtype)
    if how.stored:
        narrow = lax.all_gather(narrow, how.stored, axis=how.dimension, tiled=True)
    return narrow.astype(stored.dtype)


def _save(how: ParameterGather, dtype: str, stored: jax.Array, updated: jax.Array) -> tuple[jax.Array, None]:
    return _gathered(how, dtype, stored, updated), None


def _join(how: ParameterGather, dtype: str, _: None, gradient: jax.Array) -> tuple[None, jax.Array]:
    del how, dtype
    return None, gradient


def _scatter(how: ParameterGather, dtype: str, _: None, gradient: jax.Array) -> tuple[None, jax.Array]:
    del dtype
    if how.updated:
        gradient = lax.psum_scatter(gradient, how.updated, scatter_dimension=how.dimension, tiled=True)
    return None, sum_over(gradient, how.summed)


# JAX's transpose of the gather would scatter the gradient in the dtype of the step.
gathered_parameter = with_backward(_gathered, _save, _scatter, nondiff_argnums=(0, 1))
# Here `updated` is the whole parameter as it was gathered before: it takes the gradient, which is scattered there.
gathered_again = with_backward(_gathered, _save, _join, nondiff_argnums=(0, 1))


def sum_over(x: jax.Array, axes: Sequence[str]) -> jax.Array:
    """The sum over the devices of axes."""
    return lax.psum(x, tuple(axes)) if axes else x
