"""Rotary positions of queries and keys in your own program.

Letters: B batch, T positions in the layout's order, N heads, H head_dim.
"""

import jax
import jax.numpy as jnp
import numpy as np

from stripectl.core.architecture import ROTARY_BASE
from stripectl.errors import BadInput
from stripectl.execute.rotation import rotated, rotation
from stripectl.execute.settings import own_settings
from stripectl.training.arguments import check_array


@own_settings
def rotary(x_BTNH: jax.Array, positions: jax.Array | np.ndarray, *, base: float = ROTARY_BASE) -> jax.Array:
    """Queries or keys with rotary positions, for `sequence_parallel_attention`.

    Args:
        x_BTNH: (batch, positions, heads, head_dim), in the plan's layout; head_dim is even. A pair is an entry of the
            first half of a head and the entry at the same place of its second half, as in Llama's weights by Hugging
            Face.
        positions: int (positions,), what `stripectl.positions` returns, or (batch, positions); inside your own
            shard_map one device's part, like x.
        base: the base of the angles, `rope_theta` in a config.json: 10000, and 500000 for Llama 3.

    Returns:
        The shape and dtype of x, computed in float32.

    Raises:
        BadInput: shapes or dtypes do not fit together.
    """
    check_array("x", x_BTNH)
    check_array("positions", positions)
    if x_BTNH.ndim != 4 or x_BTNH.shape[3] % 2:
        raise BadInput(
            f"cannot rotate x because it needs the shape (batch, positions, heads, an even head_dim), not "
            f"{x_BTNH.shape}. Try heads of {-(-x_BTNH.shape[-1] // 2) * 2} elements, of an array with four dimensions."
        )
    if positions.shape not in (x_BTNH.shape[1:2], x_BTNH.shape[:2]):
        raise BadInput(
            f"cannot rotate x because positions have shape {positions.shape}, and x has the positions "
            f"{x_BTNH.shape[1:2]}. Try positions=stripectl.positions(plan, {x_BTNH.shape[1]}, mesh)."
        )
    if not jnp.issubdtype(positions.dtype, jnp.integer):
        raise BadInput(f"cannot rotate x because positions are {positions.dtype}. Try positions.astype('int32').")
    if not base > 0:
        raise BadInput(f"cannot rotate x because base must be positive, not {base!r}. Try base={ROTARY_BASE:.0f}.")
    cos, sin = rotation(jnp.asarray(positions), x_BTNH.shape[3], base)
    return rotated(x_BTNH, (cos[..., None, :], sin[..., None, :]))
