"""A decoder like LLaMA (Touvron et al. 2023): RMSNorm, rotary positions, grouped attention by a plan, SwiGLU.

Linear attention does not normalise its scores, so its output gets a norm, per head and without a scale (Qin et al.
2022, arXiv:2210.10340).

A layer with a recurrence has no rotary positions (as in Qwen3-Next, Kimi-Linear and Mamba-2). Its gates come from the
layer's input, and with the delta rule its queries and keys have norm 1. Where the model has `d_conv`, a short
convolution precedes this norm.

Rotary embeddings use the layout's positions, so a sequence that was permuted once at the input passes through all
layers in this order. Layers are stacked, and a scan iterates over them. The scopes opened here (`scopes.SECTIONS`)
attribute a compiled step's costs to its parts.

Letters: B batch, T positions in the layout's order, D hidden, N heads, K key/value heads, H head_dim, F feed-forward,
V vocabulary; as in `sharding` P parts of the batch, G sequences per part, S shards, R rows per shard, C rows per chunk.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from stripectl.core import scopes
from stripectl.core.layer_groups import segments
from stripectl.core.model import Model
from stripectl.training.rotary import Rotation, rotated
from stripectl.training.sharding import Dims, ParameterSharding
from stripectl.training.short_convolution import short_convolution

INITIAL = 0.02  # standard deviation of initial parameters; divided by sqrt(2 layers) at the end of a branch (GPT-2)
EPSILON = 1e-5
GATE_OFFSET = -4.0  # of initial gates: softplus(-4) is 0.018, between 0.001 and 0.1 (Mamba-2)
GLA_TEMPERATURE = 16  # Yang et al. 2023, section 4.4
ALIKE = "every"  # the name of the only stack of layers


def unit(x: jax.Array) -> jax.Array:
    """x divided by its root mean square along the last dimension, in float32."""
    with jax.named_scope(scopes.NORM):
        wide = x.astype(jnp.float32)
        return wide * lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + EPSILON)


def normed(x_PGSRD: jax.Array, scale_PSD: jax.Array) -> jax.Array:
    """x divided by its root mean square, times a scale (Zhang and Sennrich 2019)."""
    with jax.named_scope(scopes.NORM):
        return (unit(x_PGSRD) * scale_PSD[:, None, :, None]).astype(x_PGSRD.dtype)


class Attention(NamedTuple):
    """A layer's attention: compute(q_BNTH, k_BKTH, v_BKTH, gates if any) -> out_BNTH, and whether its output gets a
    norm. Where its layout is not the tokens': the rotation of its positions, and how hidden states move there and
    back."""

    compute: Callable
    norms: bool
    turn: Rotation | None = None
    switch: tuple[Callable, Callable] | None = None

    def __call__(self, *arrays: jax.Array) -> jax.Array:
        out = self.compute(*arrays)
        return unit(out).astype(out.dtype) if self.norms else out


def swiglu(weights: Sequence[jax.Array], x_PGSCD: jax.Array) -> jax.Array:
    """A block through norm, gate, up and down (Shazeer 2020)."""
    scale, gate, up, down = (weight.astype(x_PGSCD.dtype) for weight in weights)
    y = normed(x_PGSCD, scale)
    gate_PGSCF, up_PGSCF = (jnp.einsum("pgscd,psdf->pgscf", y, weight) for weight in (gate, up))
    return jnp.einsum("pgscf,psfd->pgscd", jax.nn.silu(gate_PGSCF) * up_PGSCF, down)


def cross_entropy(weights: Sequence[jax.Array], x_PGSCD: jax.Array, targets_PGSC: jax.Array) -> jax.Array:
    """float32, the shape of the targets: minus the log-probability of each. Only this block's logits are in memory."""
    scale, head = (weight.astype(x_PGSCD.dtype) for weight in weights)
    y = normed(x_PGSCD, scale)
    logits_PGSCV = jnp.einsum("pgscd,psdv->pgscv", y, head, preferred_element_type=jnp.float32)
    # A masked sum instead of an index: each device of `tensor` has a part of the vocabulary, and only sums are sent.
    hit_PGSCV = jax.nn.one_hot(targets_PGSC, logits_PGSCV.shape[-1], dtype=jnp.bool_)
    return jax.nn.logsumexp(logits_PGSCV, axis=-1) - jnp.sum(jnp.where(hit_PGSCV, logits_PGSCV, 0), axis=-1)


def normalised(x_BNTH: jax.Array) -> jax.Array:
    """x with norm 1 along the last dimension."""
    return (unit(x_BNTH) * x_BNTH.shape[-1] ** -0.5).astype(x_BNTH.dtype)


class Gates(nnx.Module):
    """The parameters of a recurrence's gates (`Recurrence.gate_activation`)."""

    def __init__(self, model: Model, rngs: nnx.Rngs) -> None:
        d, heads, size, recurrence = model.hidden, model.heads, model.head_dim, model.gated
        assert recurrence
        self.recurrence = recurrence
        if recurrence.gate == "scalar":
            self.gate = normal(rngs, (d, heads), ("hidden", "tensor"))
        if recurrence.gate == "vector":
            self.gate_down = normal(rngs, (d, size), ("hidden", None))
            self.gate_up = normal(rngs, (size, heads, size), (None, "tensor", None))
        if recurrence.gate_activation == "softplus":
            self.rate = nnx.Param(jnp.ones(heads), dims=("tensor",))
            self.offset = nnx.Param(jnp.full(heads, GATE_OFFSET), dims=("tensor",))
        if recurrence.delta:
            self.write = normal(rngs, (d, heads), ("hidden", "tensor"))

    def __call__(self, y_PGSRD: jax.Array, place: ParameterSharding) -> list[jax.Array]:
        """float32 (batch, heads, positions, ...): the gates from a layer's input, in the order of the recurrence."""

        def product(equation: str, x: jax.Array, parameter: Any) -> jax.Array:
            return jnp.einsum(equation, x, place.copies(parameter).astype(x.dtype))

        def per_head(parameter: Any, like: jax.Array) -> jax.Array:
            """(P, 1, N, S, 1, ...) of a parameter of heads."""
            wide = jnp.swapaxes(place.copies(parameter), 1, 2)[:, None, :, :, None]
            return wide.reshape(*wide.shape, *(1,) * (like.ndim - wide.ndim))

        found = []
        if self.recurrence.gate != "none":
            if self.recurrence.gate == "scalar":
                x = product("pgsrd,psdn->pgnsr", y_PGSRD, self.gate)
            else:
                narrow = product("pgsrd,psdk->pgsrk", y_PGSRD, self.gate_down)
                x = product("pgsrk,psknh->pgnsrh", narrow, self.gate_up)
            x = x.astype(jnp.float32)
            if self.recurrence.gate_activation == "softplus":
                found.append(-jnp.exp(per_head(self.rate, x)) * jax.nn.softplus(x + per_head(self.offset, x)))
            else:
                found.append(jax.nn.log_sigmoid(x) / GLA_TEMPERATURE)
        if self.recurrence.delta:
            found.append(jax.nn.sigmoid(product("pgsrd,psdn->pgnsr", y_PGSRD, self.write).astype(jnp.float32)))
        return [place.join(x, 2) for x in found]


class Layer(nnx.Module):
    """A layer's parameters in float32; `dims` of each names the dimensions by which it is sharded."""

    def __init__(self, model: Model, rngs: nnx.Rngs) -> None:
        d, last = model.hidden, INITIAL * (2 * model.layers) ** -0.5
        self.attention_norm = ones(d)
        keys = model.query_heads if model.gated else model.kv_heads
        self.query = normal(rngs, (d, model.query_heads, model.head_dim), ("hidden", "tensor", None))
        self.key = normal(rngs, (d, keys, model.head_dim), ("hidden", "tensor", None))
        self.value = normal(rngs, (d, model.kv_heads, model.value_dim), ("hidden", "tensor", None))
        self.output = normal(rngs, (model.heads, model.value_dim, d), ("tensor", None, "hidden"), last)
        self.feed_forward_norm = ones(d)
        self.gate = normal(rngs, (d, model.feed_forward), ("hidden", "tensor"))
        self.up = normal(rngs, (d, model.feed_forward), ("hidden", "tensor"))
        self.down = normal(rngs, (model.feed_forward, d), ("tensor", "hidden"), last)
        self.gates = Gates(model, rngs) if model.gated else None
        self.convolutions = nnx.List(convolutions(model, rngs)) if model.d_conv else None

    def __call__(self, x_PGSRD: jax.Array, turn: Rotation, attend: Attention, place: ParameterSharding) -> jax.Array:
        """The layer's output, with the shape and sharding of its input."""
        with jax.named_scope(scopes.PROJECTIONS):
            y = normed(x_PGSRD, place.copies(self.attention_norm))

            def project(parameter: Any) -> jax.Array:
                weight = place.copies(parameter).astype(y.dtype)
                return place.join(jnp.einsum("pgsrd,psdnh->pgnsrh", y, weight), 2)

            q, k, v = (project(each) for each in (self.query, self.key, self.value))
            gates = self.gates(y, place) if self.gates else []
            if self.convolutions is not None:
                q, k, v = short_convolution((q, k, v), [place.copies(each) for each in self.convolutions], place)
            if not self.gates:
                q, k = rotated(q, turn), rotated(k, turn)
            elif self.gates.recurrence.delta:
                q, k = normalised(q), normalised(k)
        with jax.named_scope(scopes.ATTENTION):
            out = attend(q, k, v, *gates)
        with jax.named_scope(scopes.PROJECTIONS):
            weight = place.copies(self.output).astype(y.dtype)
            out = jnp.einsum("pgnsrh,psnhd->pgsrd", place.split(out, 2), weight)
            x_PGSRD = x_PGSRD + place.laid(out, "batch", None, "sequence", "rows")
        with jax.named_scope(scopes.FEED_FORWARD):
            copies = [place.copies(each) for each in (self.feed_forward_norm, self.gate, self.up, self.down)]
            return x_PGSRD + place.laid(place.blockwise(swiglu, copies, x_PGSRD), "batch", None, "sequence", "rows")


class LayerStacks:
    """The stacks of a decoder's layers, which run segment by segment: a segment is a sequence of kinds of layers, which
    a scan repeats. `used` counts the layers of each stack that ran."""

    def __init__(
        self, layers: nnx.Dict, turn: Rotation, attention: Mapping[str, Attention], place: ParameterSharding
    ) -> None:
        self.stacks = {name: nnx.split(stack) for name, stack in layers.items()}
        self.used = Counter[str]()
        self.turn, self.attention, self.place = turn, attention, place

    def segment(self, x: jax.Array, body: Sequence[str], turns: int) -> jax.Array:
        """x after the next layers, in the order of the tokens."""
        each = Counter(map(self.stack_of, body))

        def turn_of(x: jax.Array, states: Mapping[str, nnx.State]) -> tuple[jax.Array, None]:
            done, switched = Counter[str](), None
            for kind in body:
                x, switched = self.moved(x, switched, self.attention[kind].switch), self.attention[kind].switch
                name = self.stack_of(kind)
                state = states[name]
                if each[name] > 1:
                    state = jax.tree.map(lambda every, at=done[name]: every[at], state)
                done[name] += 1
                x = self.through(kind)(x, state)
            return self.moved(x, switched, None), None

        states = {name: self.next_layers(name, count, turns) for name, count in each.items()}
        self.used.update({name: turns * count for name, count in each.items()})
        x, _ = lax.scan(turn_of, x, states)
        return x

    def next_layers(self, name: str, count: int, turns: int) -> nnx.State:
        """The parameters of the next layers of a stack, of which each turn takes `count`."""
        first = self.used[name]

        def of_turns(every: jax.Array) -> jax.Array:
            part = every[first : first + turns * count]
            return part if count == 1 else part.reshape(turns, count, *every.shape[1:])

        return jax.tree.map(of_turns, self.stacks[name][1])

    def stack_of(self, kind: str) -> str:
        return ALIKE if ALIKE in self.stacks else kind

    def through(self, kind: str) -> Callable:
        """(x, the parameters of a layer) -> x after the layer."""
        definition, _ = self.stacks[self.stack_of(kind)]
        attend = self.attention[kind]
        own = attend.turn or self.turn
        return self.place.remat(lambda x, state: nnx.merge(definition, state)(x, own, attend, self.place))

    def moved(self, x: jax.Array, switched: Sequence[Callable] | None, wanted: Sequence[Callable] | None) -> jax.Array:
        """x in the layout of the next layer, or of the tokens."""
        if switched is wanted:
            return x
        with jax.named_scope(scopes.PROJECTIONS):
            x = switched[1](x) if switched else x
            return wanted[0](x) if wanted else x


class Decoder(nnx.Module):
    """Embedding, layers, norm and head. The parameters of layers have a leading dimension of layers, in one stack, or
    in one per kind of layer where a recurrence or other heads give them other shapes."""

    def __init__(self, model: Model, rngs: nnx.Rngs) -> None:
        self.embedding = normal(rngs, (model.vocabulary, model.hidden), (None, "features"))
        apart = model.linear_heads is not None or model.of_kind("linear").gated is not None
        stacks = {own.attention: (own, count) for count, own in model.kinds}
        stacks = stacks if apart and len(stacks) > 1 else {ALIKE: (model, model.layers)}

        def stack(own: Model, count: int) -> Any:
            return nnx.vmap(lambda rngs: Layer(own, rngs))(rngs.split(count))

        self.layers = nnx.Dict({name: stack(*each) for name, each in stacks.items()})
        self.norm = ones(model.hidden)
        self.head = normal(rngs, (model.hidden, model.vocabulary), ("hidden", "tensor"))

    def losses(
        self,
        tokens_BT: jax.Array,
        targets_BT: jax.Array,
        turn: Rotation,
        attention: Mapping[str, Attention],
        kinds: Sequence[str],
        place: ParameterSharding,
    ) -> jax.Array:
        """float32 (batch, positions): the cross-entropy of each target, in the layout's order like the tokens; `kinds`
        has the kind of attention of each layer."""
        with jax.named_scope(scopes.EMBEDDING):
            take = jax.vmap(jax.vmap(lambda table, tokens: table[tokens], (0, 1), 1))  # over P, S; G and R are tokens
            x = take(place.copies(self.embedding), place.split(tokens_BT)).astype(place.dtype)
        x = place.laid(x, "batch", None, "sequence", "rows")
        stacks = LayerStacks(self.layers, turn, attention, place)
        for body, turns in segments(kinds):
            x = stacks.segment(x, body, turns)
        with jax.named_scope(scopes.HEAD):
            copies = [place.copies(self.norm), place.copies(self.head)]
            return place.join(place.blockwise(cross_entropy, copies, x, place.split(targets_BT)))


def convolutions(model: Model, rngs: nnx.Rngs) -> list[Any]:
    """The weights of the short convolutions of queries, keys and values: (heads, elements of a head, d_conv)."""
    assert model.d_conv
    sizes = (model.query_heads, model.head_dim), (model.query_heads, model.head_dim), (model.heads, model.value_dim)
    deviation = model.d_conv**-0.5
    return [normal(rngs, (*each, model.d_conv), ("tensor", None, None), deviation) for each in sizes]


def ones(size: int) -> Any:
    return nnx.Param(jnp.ones(size), dims=("hidden",))


def normal(rngs: nnx.Rngs, shape: tuple[int, ...], dims: Dims, deviation: float = INITIAL) -> Any:
    return nnx.Param(deviation * jax.random.normal(rngs.params(), shape), dims=dims)
