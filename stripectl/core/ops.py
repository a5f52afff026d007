"""The arithmetic of a layer on one device's part of its arrays, as programs of layers call it, without JAX.

A program of a layer takes its *weights* by name, gathered where the layer uses them, and calls `ops` for arithmetic and
`comm` for other communication. Axes of the mesh divide the rows of hidden states, and `tensor` divides heads,
feed-forward and vocabulary (Shoeybi et al. 2019). In a *tensor-parallel region* every device of `tensor` has the same
rows and its own heads or columns. `to_tensor_parallel` enters it and `from_tensor_parallel` leaves it, with a sum over
its devices; a scheme that shards rows over `tensor` outside of these regions (Korthikanti et al. 2022) gathers rows
there, and scatters the sum.

Letters: b sequences, t rows, d hidden, n heads, h head_dim, f feed-forward, v vocabulary, all of one device.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from stripectl.core.architecture import NORM_EPSILON
from stripectl.core.comm import Array
from stripectl.core.recurrence import Recurrence

Weights = Mapping[str, Array]


class Ops(Protocol):
    """Arrays and results are in the dtype of the step, unless stated otherwise."""

    def section(self, name: str) -> AbstractContextManager[None]:
        """A scope that attributes the operations inside to a part of the step (`scopes.SECTIONS`)."""
        ...

    def keep(self, x: Array, name: str) -> Array:
        """x, which the backward pass finds under this name where the plan says so (`Plan.kept_by_name`)."""
        ...

    def to_tensor_parallel(self, x: Array) -> Array:
        """The rows of hidden states, on every device of `tensor`. The gradient is summed over them."""
        ...

    def from_tensor_parallel(self, x: Array) -> Array:
        """The sum over the devices of `tensor`."""
        ...

    def einsum(self, equation: str, x: Array, weight: Array, dtype: str | None = None) -> Array:
        """The product with a weight, accumulated in float32; a `dtype` that is given is the result's."""
        ...

    def add(self, x: Array, y: Array) -> Array: ...

    def scale(self, x: Array, factor: float) -> Array: ...

    def norm(self, x: Array, scale: Array | None = None, factor: float = 1.0, epsilon: float = NORM_EPSILON) -> Array:
        """x divided by its root mean square along the last dimension, in float32, times a scale and a factor (Zhang and
        Sennrich 2019). `epsilon` is added to the mean of squares."""
        ...

    def layer_norm(self, x: Array, scale: Array | None, bias: Array | None, epsilon: float) -> Array:
        """x less its mean, divided by the root of its variance along the last dimension, in float32, times a scale,
        plus a bias (Ba et al. 2016). `epsilon` is added to the variance."""
        ...

    def norm_over_heads(self, x: Array, scale: Array, epsilon: float = NORM_EPSILON) -> Array:
        """x (b, n, t, h) divided by the root mean square of a token's elements in all heads, of all devices of
        `tensor`, in float32, times a scale (n x h)."""
        ...

    def rotate(self, x: Array, turn: Array, factor: float = 1.0) -> Array:
        """x with rotary positions (Su et al. 2021), times a factor, in float32."""
        ...

    def add_bias(self, x: Array, bias: Array) -> Array:
        """x (b, t, f) plus a bias of f elements, or x (b, n, t, h) plus a bias of n x h."""
        ...

    def add_scaled(self, x: Array, values: Array, scale: Array) -> Array:
        """x (b, n, t, h) plus values times a number per head (n)."""
        ...

    def activate(self, activation: str, x: Array, up: Array | None = None) -> Array:
        """An activation of ACTIVATIONS, or the sigmoid, times up (Shazeer 2020)."""
        ...

    def embed(self, table: Array, tokens: Array) -> Array:
        """The row of each token, of a table whose columns are divided over `tensor`."""
        ...

    def embed_parts(self, table: Array, tokens: Array) -> Array:
        """The row of each token, of a table whose vocabulary is divided over `tensor`: the sum over its devices."""
        ...

    def cross_entropy(self, logits: Array, targets: Array) -> Array:
        """float32: the sum over rows of minus the log-probability of their targets; the vocabulary is divided over
        `tensor`."""
        ...

    def soft_cap(self, x: Array, cap: float) -> Array:
        """float32: cap * tanh(x / cap)."""
        ...

    def convolve(self, x: Array, before: Array, weight: Array) -> Array:
        """SiLU of the weighted sums of each row (b, n, t, h) and the rows before it; `before` holds the rows before the
        first, and the weight is (n, h, rows of a sum)."""
        ...

    def log_gate(self, x: Array, recurrence: Recurrence, weights: Weights) -> Array:
        """float32: the logarithm of a recurrence's gate, from its matrix's result (b, n, t, ...)."""
        ...

    def sigmoid(self, x: Array) -> Array:
        """float32."""
        ...

    def split_rows(self, x: Array, parts: int) -> Sequence[Array]:
        """Equal parts of the rows of (b, n, t, h)."""
        ...

    def join_rows(self, parts: Sequence[Array]) -> Array:
        """The inverse of `split_rows`."""
        ...

    def last_rows(self, x: Array, rows: int) -> Array: ...

    def pack(self, arrays: Sequence[Array]) -> Array:
        """Join arrays into one, which one transfer sends."""
        ...

    def unpack(self, packed: Array, like: Sequence[Array]) -> Sequence[Array]:
        """The inverse of `pack`; `like` have the shapes."""
        ...

    def zeros_like(self, x: Array) -> Array: ...

    def blockwise(
        self, program: Callable[..., Array], weights: Weights, x: Array, targets: Array | None = None
    ) -> Array:
        """program(x, targets if given, weights) for a chunk of rows at a time (Liu and Abbeel 2023), with the same
        weights: hidden states are joined, and numbers are added up."""
        ...
