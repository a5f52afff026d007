"""A decoder on one device's part of its arrays: embedding, layers and head (`layers`), bound to JAX.

Layers are stacked, and a scan iterates over them. Rotary embeddings use the layout's positions, so a sequence that was
permuted once at the input passes through all layers in this order. The function whose values `remat` chooses gathers
the parameters of its layer, so that no gathered parameter is kept for the backward pass.

Letters: B batch, T rows, D hidden.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from stripectl.core import scopes
from stripectl.core.layer_groups import layer_groups, segments
from stripectl.core.layer_kinds import LayerKind
from stripectl.core.model import Model
from stripectl.core.parameters import Parameter
from stripectl.core.plan import Plan
from stripectl.core.workload import SINK_DTYPE, Workload
from stripectl.execute.attention import plan_attention
from stripectl.execute.comm import JaxComm
from stripectl.execute.layout_switch import from_layout, to_layout
from stripectl.execute.ops import JaxOps
from stripectl.execute.rotation import Rotation, rotation
from stripectl.layers.attention import AttentionLayer, has_rotary_positions
from stripectl.layers.decoder import ALIKE, decoder_layer, layer_stacks
from stripectl.layers.embedding import embedding, embedding_parameters
from stripectl.layers.head import head_parameters, head_weights, loss
from stripectl.training.order import positions
from stripectl.training.sharding import ParameterSharding, StoredWeights

STACKS = "layers"  # the name of the parameters of layers


def initial_parameters(model: Model, rngs: nnx.Rngs) -> nnx.State:
    """The parameters of a decoder in float32. `dims` of each names the dimensions by which it is sharded; parameters of
    layers have a leading dimension of layers."""

    def drawn(table: Mapping[str, Parameter], rngs: nnx.Rngs) -> dict[str, Any]:
        return {name: nnx.Param(initial(each, rngs), dims=each.dims) for name, each in table.items()}

    def stack(count: int, table: Mapping[str, Parameter]) -> dict[str, Any]:
        values = jax.vmap(lambda key: {name: x[...] for name, x in drawn(table, nnx.Rngs(params=key)).items()})(
            jax.random.split(rngs.params(), count)
        )
        return {name: nnx.Param(values[name], dims=each.dims) for name, each in table.items()}

    first = drawn(embedding_parameters(model), rngs)
    layers = {name: stack(*each) for name, each in layer_stacks(model).items()}
    return nnx.State({**first, STACKS: layers, **drawn(head_parameters(model), rngs)})


def initial(parameter: Parameter, rngs: nnx.Rngs) -> jax.Array:
    """The initial values of a parameter."""
    if parameter.equal is not None:
        return jnp.full(parameter.shape, parameter.equal)
    return parameter.deviation * jax.random.normal(rngs.params(), parameter.shape)


@dataclass(frozen=True)
class Decoder:
    """The program of a workload's model on one device, under a plan that names its tiles."""

    workload: Workload
    plan: Plan
    place: ParameterSharding
    rotary_base: float | None  # in place of the model's

    @cached_property
    def ops(self) -> JaxOps:
        return JaxOps(self.plan, self.workload.dtype)

    @cached_property
    def comm(self) -> JaxComm:
        return JaxComm(self.plan)

    @cached_property
    def orders(self) -> dict[str, np.ndarray]:
        """The position of each row, by kind of attention, where its layout is not the tokens'."""
        length = self.workload.seq_len
        return {
            own.attention: positions(plan, length)
            for _, own, plan in layer_groups(self.workload, self.plan)
            if plan.layout != self.plan.layout and plan.shards > 1
        }

    def loss(
        self,
        weights: StoredWeights,
        tokens_BT: jax.Array,
        targets_BT: jax.Array,
        positions_T: jax.Array,
        others: Mapping[str, jax.Array],
    ) -> jax.Array:
        """float32: the sum of the cross-entropy of a device's targets. Positions are of its rows, in the layout of the
        tokens, and of `orders`."""
        model = self.workload.sizes
        table = dict(self.place.gathered(embedding_parameters(model), weights))
        x = embedding(tokens_BT, table, model, self.ops)
        layers = {
            own.layer_kinds[0]: AttentionLayer(
                own.sizes,
                plan,
                attention_of_layer(plan, own),
                has_rotary_positions(own),
                self.rotation(own, others.get(own.attention, positions_T)),
            )
            for _, own, plan in layer_groups(self.workload, self.plan)
        }
        used = Counter[str]()
        for body, turns in segments(self.workload.layer_kinds):
            x = self.segment(x, body, turns, weights, layers, used)
        return loss(x, targets_BT, self.place.gathered(head_weights(model), weights, table), model, self.ops)

    def rotation(self, layers: Workload, positions_T: jax.Array) -> Rotation:
        """The rotary angles of layers that are all of one kind."""
        parts = layers.sizes.architecture
        base, scaling = parts.rotary_base, parts.rotary_scaling
        if layers.has_windows and parts.window_rotary_base is not None:
            base, scaling = parts.window_rotary_base, None
        if self.rotary_base is not None:
            base = self.rotary_base
        return rotation(positions_T, parts.rotary_dim or layers.sizes.head_dim, base, scaling)

    def segment(
        self,
        x: jax.Array,
        body: Sequence[LayerKind],
        turns: int,
        weights: StoredWeights,
        layers: Mapping[LayerKind, AttentionLayer],
        used: Counter[str],
    ) -> jax.Array:
        """x after the next layers, in the order of the tokens: a scan repeats a sequence of kinds of layers. `used`
        counts the layers of each stack that ran."""
        each = Counter(map(self.stack_of, body))

        def turn_of(x: jax.Array, own: Mapping[str, StoredWeights]) -> tuple[jax.Array, None]:
            done, layout = Counter[str](), self.plan.layout
            for kind in body:
                x, layout = self.moved(x, layout, layers[kind].plan.layout), layers[kind].plan.layout
                name = self.stack_of(kind)
                of_layer = own[name]
                if each[name] > 1:
                    of_layer = jax.tree.map(lambda every, at=done[name]: every[at], of_layer)
                done[name] += 1
                x = self.place.remat(partial(self.layer, layers[kind]))(x, of_layer)
            return self.moved(x, layout, self.plan.layout), None

        next_layers = {name: next_of(weights, name, used[name], count, turns) for name, count in each.items()}
        used.update({name: turns * count for name, count in each.items()})
        x, _ = lax.scan(turn_of, x, next_layers)
        return x

    def layer(self, layer: AttentionLayer, x: jax.Array, weights: StoredWeights) -> jax.Array:
        """x after a layer."""
        return decoder_layer(x, partial(self.place.gathered, weights=weights), layer, self.ops, self.comm)

    @cached_property
    def stacks(self) -> frozenset[str]:
        return frozenset(layer_stacks(self.workload.sizes))

    def stack_of(self, kind: LayerKind) -> str:
        return ALIKE if ALIKE in self.stacks else kind.attention

    def moved(self, x: jax.Array, layout: str, wanted: str) -> jax.Array:
        """x in the layout of the next layer."""
        if layout == wanted or self.plan.shards == 1:
            return x
        with jax.named_scope(scopes.PROJECTIONS):
            for move, name in ((from_layout, layout), (to_layout, wanted)):
                x = x if name == self.plan.layout else move(x, name, "ring", self.plan.shards, 1)
            return x


def attention_of_layer(plan: Plan, workload: Workload) -> Callable:
    """attend(q, k, v, *gates, sinks_N if any) -> out of a layer on one device."""
    attend = plan_attention(plan, workload, layer=True)
    if not workload.sinks:
        return attend
    return lambda *arrays: attend(*arrays[:-1], arrays[-1].astype(SINK_DTYPE)[None, :, None])


def next_of(weights: StoredWeights, stack: str, first: int, count: int, turns: int) -> StoredWeights:
    """The parameters of the next layers of a stack, of which each turn takes `count`."""

    def of_turns(every: jax.Array) -> jax.Array:
        part = every[first : first + turns * count]
        return part if count == 1 else part.reshape(turns, count, *every.shape[1:])

    return StoredWeights(*(part and jax.tree.map(of_turns, part[STACKS][stack]) for part in weights))
