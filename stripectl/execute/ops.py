"""`ops` with JAX: the arithmetic of layers on one device's part inside a shard_map.

Letters: B batch, T rows, D hidden, N heads, H head_dim, F feed-forward, V vocabulary, all of one device.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from stripectl.core import scopes
from stripectl.core.architecture import NORM_EPSILON
from stripectl.core.mesh import HEAD_AXES
from stripectl.core.ops import Weights
from stripectl.core.plan import Plan
from stripectl.core.recurrence import Recurrence
from stripectl.core.scheme import schemes
from stripectl.execute.attend import recompute_in_backward
from stripectl.execute.convolution import convolved
from stripectl.execute.derivatives import with_backward
from stripectl.execute.rotation import Rotation, rotated

(TENSOR,) = HEAD_AXES
GLA_TEMPERATURE = 16  # Yang et al. 2023, section 4.4
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": jax.nn.gelu,
    "sigmoid": jax.nn.sigmoid,
}
ROWS, COLUMNS = 1, 2  # dimensions of hidden states (B, T, D)
HEADS, HEAD_DIM = 1, 3  # dimensions of (B, N, T, H)


@dataclass(frozen=True)
class JaxOps:
    """The arithmetic of a plan's layers in a dtype."""

    plan: Plan
    dtype: str

    def section(self, name: str) -> AbstractContextManager:
        return jax.named_scope(name)

    @property
    def devices(self) -> int:
        """The number of devices that divide heads, feed-forward and vocabulary."""
        return self.plan.size(TENSOR)

    @property
    def shards_rows(self) -> bool:
        """Whether they divide the rows of hidden states too."""
        return bool(schemes[self.plan.scheme].row_axes) and self.devices > 1

    def keep(self, x: jax.Array, name: str) -> jax.Array:
        return checkpoint_name(x, name) if name in self.plan.kept_by_name else x

    def to_tensor_parallel(self, x: jax.Array) -> jax.Array:
        if self.shards_rows:
            return lax.all_gather(x, TENSOR, axis=ROWS, tiled=True)
        return sum_gradients(x) if self.devices > 1 else x

    def from_tensor_parallel(self, x: jax.Array) -> jax.Array:
        if self.shards_rows:
            return lax.psum_scatter(x, TENSOR, scatter_dimension=ROWS, tiled=True)
        return sum_results(x) if self.devices > 1 else x

    def einsum(self, equation: str, x: jax.Array, weight: jax.Array, dtype: str | None = None) -> jax.Array:
        return jnp.einsum(equation, x, weight.astype(x.dtype), preferred_element_type=dtype)

    def add(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return x + y

    def scale(self, x: jax.Array, factor: float) -> jax.Array:
        return x * factor

    def norm(
        self, x: jax.Array, scale: jax.Array | None = None, factor: float = 1.0, epsilon: float = NORM_EPSILON
    ) -> jax.Array:
        with jax.named_scope(scopes.NORM):
            unit = of_unit_size(x.astype(jnp.float32), epsilon)
            unit = unit if factor == 1.0 else unit * factor
            return (unit if scale is None else unit * scale).astype(x.dtype)

    def layer_norm(self, x: jax.Array, scale: jax.Array | None, bias: jax.Array | None, epsilon: float) -> jax.Array:
        with jax.named_scope(scopes.NORM):
            wide = x.astype(jnp.float32)
            unit = of_unit_size(wide - jnp.mean(wide, -1, keepdims=True), epsilon)
            unit = unit if scale is None else unit * scale
            return (unit if bias is None else unit + bias).astype(x.dtype)

    def norm_over_heads(self, x: jax.Array, scale: jax.Array, epsilon: float = NORM_EPSILON) -> jax.Array:
        with jax.named_scope(scopes.NORM):
            wide = x.astype(jnp.float32)
            total = jnp.sum(wide**2, (HEADS, HEAD_DIM), keepdims=True)
            if self.devices > 1:  # each device uses the sum for other heads, so its gradient is a sum too
                total = sum_gradients(sum_results(total))
            _, heads, _, size = x.shape
            unit = wide * lax.rsqrt(total / (self.devices * heads * size) + epsilon)
            return (unit * scale.reshape(heads, 1, size)).astype(x.dtype)

    def rotate(self, x: jax.Array, turn: Rotation, factor: float = 1.0) -> jax.Array:
        return rotated(x, turn, factor)

    def add_bias(self, x: jax.Array, bias: jax.Array) -> jax.Array:
        shape = (x.shape[HEADS], 1, x.shape[HEAD_DIM]) if x.ndim > HEAD_DIM else bias.shape
        return x + bias.reshape(shape).astype(x.dtype)

    def add_scaled(self, x: jax.Array, values: jax.Array, scale: jax.Array) -> jax.Array:
        return x + values * scale.reshape(-1, 1, 1).astype(x.dtype)

    def activate(self, activation: str, x: jax.Array, up: jax.Array | None = None) -> jax.Array:
        found = ACTIVATIONS[activation](x)
        return found if up is None else found * up

    def embed(self, table: jax.Array, tokens: jax.Array) -> jax.Array:
        found = table[tokens].astype(self.dtype)
        if self.shards_rows:
            return lax.all_to_all(found, TENSOR, ROWS, COLUMNS, tiled=True)
        return join_columns(found) if self.devices > 1 else found

    def embed_parts(self, table: jax.Array, tokens: jax.Array) -> jax.Array:
        if self.devices == 1:
            return table[tokens].astype(self.dtype)
        rows = table.shape[0]
        at = tokens - lax.axis_index(TENSOR) * rows
        own = (at >= 0) & (at < rows)
        found = jnp.where(own[..., None], table[jnp.clip(at, 0, rows - 1)], 0)
        return self.from_tensor_parallel(found.astype(self.dtype))

    def cross_entropy(self, logits: jax.Array, targets: jax.Array) -> jax.Array:
        columns = logits.shape[-1]
        first = lax.axis_index(TENSOR) * columns if self.devices > 1 else 0
        # A masked sum instead of an index, whose gradient would be a scatter.
        hit = jax.nn.one_hot(targets - first, columns, dtype=jnp.bool_)
        score, total = jnp.sum(jnp.where(hit, logits, 0), -1), jax.nn.logsumexp(logits, -1)
        if self.devices > 1:
            largest = lax.pmax(lax.stop_gradient(total), TENSOR)
            score, part = sum_results((score, jnp.exp(total - largest)))
            total = largest + jnp.log(part)
        return jnp.sum(total - score)

    def soft_cap(self, x: jax.Array, cap: float) -> jax.Array:
        return cap * jnp.tanh(x.astype(jnp.float32) / cap)

    def convolve(self, x: jax.Array, before: jax.Array, weight: jax.Array) -> jax.Array:
        return convolved(x, before, weight)

    def log_gate(self, x: jax.Array, recurrence: Recurrence, weights: Weights) -> jax.Array:
        wide = x.astype(jnp.float32)
        if recurrence.gate_activation != "softplus":
            return jax.nn.log_sigmoid(wide) / GLA_TEMPERATURE
        per_head = (-1, *(1,) * (x.ndim - 2))
        rate, offset = (weights[name].reshape(per_head) for name in ("gate_rate", "gate_offset"))
        return -jnp.exp(rate) * jax.nn.softplus(wide + offset)

    def sigmoid(self, x: jax.Array) -> jax.Array:
        return jax.nn.sigmoid(x.astype(jnp.float32))

    def split_rows(self, x: jax.Array, parts: int) -> Sequence[jax.Array]:
        return jnp.split(x, parts, axis=2)

    def join_rows(self, parts: Sequence[jax.Array]) -> jax.Array:
        return jnp.concatenate([*parts], 2)

    def last_rows(self, x: jax.Array, rows: int) -> jax.Array:
        return x[:, :, -rows:]

    def pack(self, arrays: Sequence[jax.Array]) -> jax.Array:
        return jnp.concatenate([x.reshape(x.shape[0], -1) for x in arrays], 1)

    def unpack(self, packed: jax.Array, like: Sequence[jax.Array]) -> Sequence[jax.Array]:
        found, at = [], 0
        for x in like:
            size = x.size // x.shape[0]
            found.append(packed[:, at : at + size].reshape(x.shape))
            at += size
        return found

    def zeros_like(self, x: jax.Array) -> jax.Array:
        return jnp.zeros_like(x)

    def blockwise(
        self, program: Callable[..., jax.Array], weights: Weights, x: jax.Array, targets: jax.Array | None = None
    ) -> jax.Array:
        rows, parts = x.shape[ROWS], self.devices if self.shards_rows else 1
        chunk = self.plan.chunk_rows(rows * parts) // parts
        if chunk == rows:
            return program(x, *([] if targets is None else [targets]), weights)

        def cut(x: jax.Array, parts: int) -> jax.Array:
            """(chunks, B, rows of a chunk, ...), where parts of the rows lie on other devices."""
            batch, _, *rest = x.shape
            x = jnp.moveaxis(x.reshape(batch, parts, rows // chunk, chunk, *rest), 2, 0)
            return x.reshape(rows // chunk, batch, parts * chunk, *rest)

        gathered = dict(weights)  # once for all chunks
        again = recompute_in_backward(lambda blocks, weights: program(*blocks, weights))
        # Every device of `tensor` has the targets of all rows, in the order in which their hidden states are gathered.
        given = [cut(x, 1), *([] if targets is None else [cut(targets, parts)])]
        _, out = lax.scan(lambda _, blocks: (None, again(blocks, gathered)), None, given)
        if out.ndim == 1:
            return jnp.sum(out)
        return jnp.moveaxis(out, 0, 1).reshape(x.shape)


def of_unit_size(x: jax.Array, epsilon: float) -> jax.Array:
    """x divided by the root mean square along its last dimension."""
    return x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + epsilon)


def over_tensor(collective: Callable, x: jax.Array) -> jax.Array:
    return jax.tree.map(lambda leaf: collective(leaf, TENSOR), x)


def same(x: jax.Array) -> jax.Array:
    return x


# A value that every device of `tensor` has is one value: its gradient is not a sum of their gradients, as JAX's own
# transpose of a psum would have it.
sum_results = with_backward(
    partial(over_tensor, lax.psum), lambda x: (over_tensor(lax.psum, x), None), lambda _, given: (given,)
)
sum_gradients = with_backward(same, lambda x: (x, None), lambda _, given: (over_tensor(lax.psum, given),))


def _join_columns(x: jax.Array) -> jax.Array:
    return lax.all_gather(x, TENSOR, axis=COLUMNS, tiled=True)


def _own_columns(_: None, given: jax.Array) -> tuple[jax.Array]:
    columns = given.shape[COLUMNS] // lax.axis_size(TENSOR)
    return (lax.dynamic_slice_in_dim(given, lax.axis_index(TENSOR) * columns, columns, COLUMNS),)


join_columns = with_backward(_join_columns, lambda x: (_join_columns(x), None), _own_columns)
