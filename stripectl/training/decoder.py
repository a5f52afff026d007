"""A decoder like LLaMA (Touvron et al. 2023): RMSNorm, rotary positions, grouped attention by a plan, SwiGLU.

Linear attention does not normalise its scores, so its output gets a norm, per head and without a scale (Qin et al.
2022, arXiv:2210.10340).

Rotary embeddings use the layout's positions, so a sequence that was permuted once at the input passes through all
layers in this order. Layers are stacked, and a scan iterates over them. The scopes opened here (`schedule.SECTIONS`)
attribute a compiled step's costs to its parts.

Letters: B batch, T positions in the layout's order, D hidden, N heads, K key/value heads, H head_dim, F feed-forward,
V vocabulary; as in `sharding` P parts of the batch, G sequences per part, S shards, R rows per shard, C rows per chunk.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from stripectl.core.model_config import Model
from stripectl.training.sharding import Dims, ParameterSharding

INITIAL = 0.02  # standard deviation of initial parameters; divided by sqrt(2 layers) at the end of a branch (GPT-2)
EPSILON = 1e-5
ROTARY_BASE = 10000.0  # Su et al. 2021; Llama 3 has 500000
Rotation = tuple[jax.Array, jax.Array]


def unit(x: jax.Array) -> jax.Array:
    """x divided by its root mean square along the last dimension, in float32."""
    wide = x.astype(jnp.float32)
    return wide * lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + EPSILON)


def normed(x_PGSRD, scale_PSD):
    """x divided by its root mean square, times a scale (Zhang and Sennrich 2019)."""
    return (unit(x_PGSRD) * scale_PSD[:, None, :, None]).astype(x_PGSRD.dtype)


class Attention(NamedTuple):
    """A layer's attention: compute(q_BNTH, k_BKTH, v_BKTH) -> out_BNTH, and whether its output gets a norm."""

    compute: Callable
    norms: bool

    def __call__(self, *arrays: jax.Array) -> jax.Array:
        out = self.compute(*arrays)
        return unit(out).astype(out.dtype) if self.norms else out


def rotation(positions_T: jax.Array, head_dim: int, base: float) -> Rotation:
    """(cosines, sines), float32 (positions, head_dim / 2), of the angles in Su et al. 2021, section 3.2.2."""
    angles = positions_T[:, None].astype(jnp.float32) * base ** (-jnp.arange(0, head_dim, 2) / head_dim)
    return jnp.cos(angles), jnp.sin(angles)


def rotated(x_BNTH: jax.Array, turn: Rotation) -> jax.Array:
    """Queries or keys rotated by their positions; a pair is a row's i-th entry and the i-th of its second half."""
    cos, sin = turn
    a, b = jnp.split(x_BNTH.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x_BNTH.dtype)


def swiglu(weights, x_PGSCD):
    """A block through norm, gate, up and down (Shazeer 2020)."""
    scale, gate, up, down = (weight.astype(x_PGSCD.dtype) for weight in weights)
    y = normed(x_PGSCD, scale)
    gate_PGSCF, up_PGSCF = (jnp.einsum("pgscd,psdf->pgscf", y, weight) for weight in (gate, up))
    return jnp.einsum("pgscf,psfd->pgscd", jax.nn.silu(gate_PGSCF) * up_PGSCF, down)


def cross_entropy(weights, x_PGSCD, targets_PGSC):
    """float32, the shape of the targets: minus the log-probability of each. Only this block's logits are in memory."""
    scale, head = (weight.astype(x_PGSCD.dtype) for weight in weights)
    y = normed(x_PGSCD, scale)
    logits_PGSCV = jnp.einsum("pgscd,psdv->pgscv", y, head, preferred_element_type=jnp.float32)
    # A masked sum instead of an index: each device of `tensor` has a part of the vocabulary, and only sums are sent.
    hit_PGSCV = jax.nn.one_hot(targets_PGSC, logits_PGSCV.shape[-1], dtype=jnp.bool_)
    return jax.nn.logsumexp(logits_PGSCV, axis=-1) - jnp.sum(jnp.where(hit_PGSCV, logits_PGSCV, 0), axis=-1)


class Layer(nnx.Module):
    """A layer's parameters in float32; `dims` of each names the dimensions by which it is sharded."""

    def __init__(self, model: Model, rngs: nnx.Rngs):
        d, last = model.hidden, INITIAL * (2 * model.layers) ** -0.5
        self.attention_norm = ones(d)
        self.query = normal(rngs, (d, model.heads, model.head_dim), ("hidden", "tensor", None))
        self.key = normal(rngs, (d, model.kv_heads, model.head_dim), ("hidden", "tensor", None))
        self.value = normal(rngs, (d, model.kv_heads, model.value_dim), ("hidden", "tensor", None))
        self.output = normal(rngs, (model.heads, model.value_dim, d), ("tensor", None, "hidden"), last)
        self.feed_forward_norm = ones(d)
        self.gate = normal(rngs, (d, model.feed_forward), ("hidden", "tensor"))
        self.up = normal(rngs, (d, model.feed_forward), ("hidden", "tensor"))
        self.down = normal(rngs, (model.feed_forward, d), ("tensor", "hidden"), last)

    def __call__(self, x_PGSRD: jax.Array, turn: Rotation, attend: Attention, place: ParameterSharding) -> jax.Array:
        """The layer's output, with the shape and sharding of its input."""
        with jax.named_scope("projections"):
            y = normed(x_PGSRD, place.copies(self.attention_norm))

            def project(parameter):
                weight = place.copies(parameter).astype(y.dtype)
                return place.join(jnp.einsum("pgsrd,psdnh->pgnsrh", y, weight), 2)

            q, k, v = rotated(project(self.query), turn), rotated(project(self.key), turn), project(self.value)
        with jax.named_scope("attention"):
            out = attend(q, k, v)
        with jax.named_scope("projections"):
            weight = place.copies(self.output).astype(y.dtype)
            out = jnp.einsum("pgnsrh,psnhd->pgsrd", place.split(out, 2), weight)
            x_PGSRD = x_PGSRD + place.laid(out, "batch", None, "sequence", "rows")
        with jax.named_scope("feed_forward"):
            copies = [place.copies(each) for each in (self.feed_forward_norm, self.gate, self.up, self.down)]
            return x_PGSRD + place.laid(place.blockwise(swiglu, copies, x_PGSRD), "batch", None, "sequence", "rows")


class Decoder(nnx.Module):
    """Embedding, a stack of layers whose parameters have a leading dimension of layers, norm and head."""

    def __init__(self, model: Model, rngs: nnx.Rngs):
        self.embedding = normal(rngs, (model.vocabulary, model.hidden), (None, "features"))
        self.layers = nnx.vmap(lambda rngs: Layer(model, rngs))(rngs.split(model.layers))
        self.norm = ones(model.hidden)
        self.head = normal(rngs, (model.hidden, model.vocabulary), ("hidden", "tensor"))

    def losses(
        self, tokens_BT, targets_BT, turn: Rotation, pattern: Sequence[Attention], place: ParameterSharding
    ) -> jax.Array:
        """float32 (batch, positions): the cross-entropy of each target, in the layout's order like the tokens. The
        attention of layers follows a pattern, which repeats."""
        with jax.named_scope("embedding"):
            take = jax.vmap(jax.vmap(lambda table, tokens: table[tokens], (0, 1), 1))  # over P, S; G and R are tokens
            x = take(place.copies(self.embedding), place.split(tokens_BT)).astype(place.dtype)
        definition, stacked = nnx.split(self.layers)

        def through(attend):
            return place.remat(lambda x, state: nnx.merge(definition, state)(x, turn, attend, place))

        def turned(x, states):
            for index, attend in enumerate(pattern):
                state = states if len(pattern) == 1 else jax.tree.map(lambda every, at=index: every[at], states)
                x = through(attend)(x, state)
            return x, None

        if len(pattern) > 1:
            stacked = jax.tree.map(lambda every: every.reshape(-1, len(pattern), *every.shape[1:]), stacked)
        x, _ = lax.scan(turned, place.laid(x, "batch", None, "sequence", "rows"), stacked)
        with jax.named_scope("head"):
            copies = [place.copies(self.norm), place.copies(self.head)]
            return place.join(place.blockwise(cross_entropy, copies, x, place.split(targets_BT)))


def ones(size: int) -> Any:
    return nnx.Param(jnp.ones(size), dims=("hidden",))


def normal(rngs: nnx.Rngs, shape: tuple[int, ...], dims: Dims, deviation: float = INITIAL) -> Any:
    return nnx.Param(deviation * jax.random.normal(rngs.params(), shape), dims=dims)
