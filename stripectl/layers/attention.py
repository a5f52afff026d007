"""The attention of a layer: a norm, projections to queries, keys and values, attention by a plan, and the output's
projection, added to the hidden states.

Linear attention does not normalise its scores, so its output gets a norm, per head and without a scale (Qin et al.
2022, arXiv:2210.10340).

A layer with a recurrence has no rotary positions (as in Qwen3-Next, Kimi-Linear and Mamba-2). Its gates come from the
layer's input, and with the delta rule its queries and keys have norm 1. Where the model has `d_conv`, a short
convolution precedes this norm. Layers of softmax attention may have norms of queries and keys before their rotation.

Letters: as in `core.ops`; k elements of a gate's bottleneck.
"""

from collections.abc import Callable
from typing import NamedTuple

from stripectl.core.comm import Array, Shifts
from stripectl.core.kept import Kept
from stripectl.core.model import Model
from stripectl.core.ops import Ops, Weights
from stripectl.core.parameters import INITIAL, Parameter, bias_of
from stripectl.core.plan import Plan
from stripectl.core.recurrence import LOG_GATE, WRITE
from stripectl.core.scopes import ATTENTION, PROJECTIONS
from stripectl.core.workload import Workload
from stripectl.layers.norm import norm_parameters, normed
from stripectl.layers.short_convolution import short_convolution

GATE_OFFSET = -4.0  # of initial gates: softplus(-4) is 0.018, between 0.001 and 0.1 (Mamba-2)


class AttentionLayer(NamedTuple):
    """A layer's attention: the sizes of the model if all layers were such, the plan of such layers, and
    attend(q, k, v, *gates, sinks if any) -> out of arrays (b, n, t, h). A layer with `rotary` positions rotates queries
    and keys by `turn`, the rotation of the rows' positions."""

    sizes: Model
    plan: Plan
    attend: Callable[..., Array]
    rotary: bool
    turn: Array


def attention_parameters(sizes: Model) -> dict[str, Parameter]:
    """The parameters of a layer's attention, by name."""
    return projection_parameters(sizes) | branch_parameters(sizes)


def branch_parameters(sizes: Model) -> dict[str, Parameter]:
    """The parameters of a layer's attention in addition to its projections."""
    found = gate_parameters(sizes) | convolution_parameters(sizes) | query_key_norm_parameters(sizes)
    return found | output_gate_parameters(sizes) | sink_parameters(sizes)


def sink_parameters(sizes: Model) -> dict[str, Parameter]:
    """The sinks of softmax attention."""
    return {"sinks": Parameter((sizes.heads,), ("tensor",))} if sizes.sinks else {}


def projection_parameters(sizes: Model) -> dict[str, Parameter]:
    """The norms before and after a layer's attention, and its projections."""
    d, keys = sizes.hidden, sizes.query_heads if sizes.gated else sizes.kv_heads
    return {
        **(norm_parameters("attention_norm", sizes) if sizes.architecture.norms_before else {}),
        **(norm_parameters("attention_end_norm", sizes) if sizes.architecture.norms_after else {}),
        **projection_biases(sizes),
        "query": Parameter((d, sizes.query_heads, sizes.head_dim), ("hidden", "tensor", None)),
        "key": Parameter((d, keys, sizes.head_dim), ("hidden", "tensor", None)),
        "value": Parameter((d, sizes.kv_heads, sizes.value_dim), ("hidden", "tensor", None)),
        "output": Parameter((sizes.heads, sizes.value_dim, d), ("tensor", None, "hidden"), last_deviation(sizes)),
    }


def projection_biases(sizes: Model) -> dict[str, Parameter]:
    """The biases of the projections of a layer of softmax attention."""
    architecture, h = sizes.architecture, sizes.head_dim
    if sizes.attention == "linear":
        return {}
    of = {"query_bias": sizes.heads * h, "key_bias": sizes.kv_heads * h, "value_bias": sizes.kv_heads * sizes.value_dim}
    found = {name: bias_of(size, "tensor") for name, size in of.items()} if architecture.qkv_bias else {}
    return found | ({"output_bias": bias_of(sizes.hidden, "hidden")} if architecture.output_bias else {})


def last_deviation(sizes: Model) -> float:
    """The standard deviation of the last matrix of a branch."""
    return INITIAL * (2 * sizes.layers) ** -0.5


def gate_parameters(sizes: Model) -> dict[str, Parameter]:
    """The parameters of a recurrence's gates (`Recurrence.gate_activation`)."""
    d, heads, size, recurrence = sizes.hidden, sizes.heads, sizes.head_dim, sizes.gated
    found = dict[str, Parameter]()
    if recurrence is None:
        return found
    if recurrence.gate == "scalar":
        found["log_gate"] = Parameter((d, heads), ("hidden", "tensor"))
    if recurrence.gate == "vector":
        found["log_gate_down"] = Parameter((d, size), ("hidden", None), partial=True)
        found["log_gate_up"] = Parameter((size, heads, size), (None, "tensor", None))
    if recurrence.gate_activation == "softplus":
        found["gate_rate"] = Parameter((heads,), ("tensor",), equal=1.0)
        found["gate_offset"] = Parameter((heads,), ("tensor",), equal=GATE_OFFSET)
    if recurrence.delta:
        found["write"] = Parameter((d, heads), ("hidden", "tensor"))
    return found


def convolution_parameters(sizes: Model) -> dict[str, Parameter]:
    """The weights of the short convolutions of queries, keys and values."""
    if not sizes.d_conv:
        return {}
    keys, values = (sizes.query_heads, sizes.head_dim), (sizes.heads, sizes.value_dim)
    of = {"query_convolution": keys, "key_convolution": keys, "value_convolution": values}
    return {
        name: Parameter((*shape, sizes.d_conv), ("tensor", None, None), sizes.d_conv**-0.5)
        for name, shape in of.items()
    }


def query_key_norm_parameters(sizes: Model) -> dict[str, Parameter]:
    """The scales of the norms of queries and keys."""
    kind = sizes.architecture.query_key_norm
    if kind == "none" or sizes.attention == "linear":
        return {}
    of = {"query_norm": sizes.heads, "key_norm": sizes.kv_heads}
    if kind == "head":
        return {name: Parameter((sizes.head_dim,), (None,), equal=1.0, partial=True) for name in of}
    return {name: Parameter((heads * sizes.head_dim,), ("tensor",), equal=1.0) for name, heads in of.items()}


def output_gate_parameters(sizes: Model) -> dict[str, Parameter]:
    """The parameters of the gate of attention's output, and of the norm that goes with it."""
    d, heads, size, kind = sizes.hidden, sizes.heads, sizes.value_dim, sizes.architecture.linear_gate
    whole = {"output_gate": Parameter((d, heads, size), ("hidden", "tensor", None))}
    if sizes.attention != "linear":
        return whole if sizes.architecture.attention_gate else {}
    through = {
        "output_gate_down": Parameter((d, size), ("hidden", None), partial=True),
        "output_gate_up": Parameter((size, heads, size), (None, "tensor", None)),
    }
    per_head = {"output_norm": Parameter((size,), (None,), equal=1.0, partial=True)}
    over_heads = {"output_norm": Parameter((heads * size,), ("tensor",), equal=1.0)}
    skip = {"skip": Parameter((heads,), ("tensor",), equal=1.0)}
    return {
        "none": {},
        "silu": whole | per_head,
        "sigmoid": through | per_head,
        "mamba2": whole | over_heads | skip,
    }[kind]


def gated_output(out: Array, y: Array, values: Array, weights: Weights, sizes: Model, ops: Ops) -> Array:
    """The output of attention (b, n, t, h) with its norm and gate; y is the layer's input after its norm."""
    kind = sizes.architecture.linear_gate if sizes.attention == "linear" else "sigmoid"
    parameters, epsilon = output_gate_parameters(sizes), sizes.architecture.norm_epsilon
    if not parameters:
        return ops.norm(out, epsilon=epsilon) if sizes.attention == "linear" else out
    if "output_gate" in parameters:
        gate = ops.einsum("btd,dnh->bnth", y, weights["output_gate"])
    else:
        narrow = ops.einsum("btd,dk->btk", y, weights["output_gate_down"])
        gate = ops.einsum("btk,knh->bnth", narrow, weights["output_gate_up"])
    if kind == "mamba2":
        whole = ops.add_scaled(out, values, weights["skip"])
        return ops.norm_over_heads(ops.activate("silu", gate, whole), weights["output_norm"], epsilon)
    out = ops.norm(out, weights["output_norm"], epsilon=epsilon) if "output_norm" in parameters else out
    return ops.activate(kind, gate, out)


def attention(x: Array, weights: Weights, layer: AttentionLayer, ops: Ops, comm: Shifts) -> Array:
    """Hidden states after the layer's attention."""
    sizes = layer.sizes
    with ops.section(PROJECTIONS):
        x = ops.keep(x, Kept.INPUTS)
        own = normed(x, "attention_norm", weights, sizes, ops) if sizes.architecture.norms_before else x
        y = ops.to_tensor_parallel(own)
        q, k, v = (ops.einsum("btd,dnh->bnth", y, weights[name]) for name in ("query", "key", "value"))
        biases = projection_biases(sizes)
        if "query_bias" in biases:
            names = ("query_bias", "key_bias", "value_bias")
            q, k, v = (ops.add_bias(x, weights[name]) for x, name in zip((q, k, v), names, strict=True))
        gates = gates_of(y, weights, layer, ops)
        if sizes.d_conv:
            convolutions = [weights[name] for name in convolution_parameters(sizes)]
            q, k, v = short_convolution((q, k, v), convolutions, layer.plan, ops, comm)
        if query_key_norm_parameters(sizes):
            norm = ops.norm if sizes.architecture.query_key_norm == "head" else ops.norm_over_heads
            epsilon = sizes.architecture.norm_epsilon
            q, k = (norm(each, weights[f"{name}_norm"], epsilon=epsilon) for each, name in ((q, "query"), (k, "key")))
        if layer.rotary:
            q, k = ops.rotate(q, layer.turn, query_factor(sizes)), ops.rotate(k, layer.turn)
        elif query_factor(sizes) != 1:
            q = ops.scale(q, query_factor(sizes))
        if sizes.gated and sizes.gated.delta:
            q, k = (ops.norm(each, factor=sizes.head_dim**-0.5) for each in (q, k))
        q, k, v = (
            ops.keep(each, name) for each, name in zip((q, k, v), (Kept.QUERY, Kept.KEY, Kept.VALUE), strict=True)
        )
    with ops.section(ATTENTION):
        out = layer.attend(q, k, v, *gates, *([weights["sinks"]] if sizes.sinks else []))
    with ops.section(PROJECTIONS):
        out = gated_output(out, y, v, weights, sizes, ops)
        out = ops.from_tensor_parallel(ops.einsum("bnth,nhd->btd", out, weights["output"]))
        out = ops.add_bias(out, weights["output_bias"]) if "output_bias" in biases else out
        out = ops.keep(out, Kept.PROJECTION)
        return ops.add(
            x, normed(out, "attention_end_norm", weights, sizes, ops) if sizes.architecture.norms_after else out
        )


def has_rotary_positions(layers: Workload) -> bool:
    """Whether layers that are all of one kind have rotary positions: layers with a recurrence do not."""
    if layers.attention == "linear":
        return layers.gated is None
    return layers.architecture.rotary_layers in ("all", *["windows"] * layers.has_windows)


def query_factor(sizes: Model) -> float:
    """The factor of queries that gives scores the scale of the model, where attention takes head_dim^-0.5."""
    scale = sizes.architecture.attention_scale
    return 1.0 if scale is None or sizes.attention == "linear" else scale * sizes.head_dim**0.5


def gates_of(y: Array, weights: Weights, layer: AttentionLayer, ops: Ops) -> list[Array]:
    """float32 (b, n, t, ...): the gates from a layer's input, in the order of the recurrence."""
    recurrence, size = layer.sizes.gated, layer.sizes.head_dim
    found = dict[str, Array]()
    for name in recurrence.gate_shapes(size) if recurrence else ():
        if name == WRITE:
            found[name] = ops.sigmoid(ops.einsum("btd,dn->bnt", y, weights["write"]))
        elif recurrence and recurrence.gate == "scalar":
            found[name] = ops.log_gate(ops.einsum("btd,dn->bnt", y, weights[LOG_GATE]), recurrence, weights)
        elif recurrence:
            narrow = ops.einsum("btd,dk->btk", y, weights["log_gate_down"])
            logits = ops.einsum("btk,knh->bnth", narrow, weights["log_gate_up"])
            found[name] = ops.log_gate(logits, recurrence, weights)
    return [*found.values()]
