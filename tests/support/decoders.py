"""Decoders in float64, written out with whole arrays on one device, without code of the package: what steps of every
architecture are compared with.

Letters: b sequences, t and s positions, d hidden, n heads, h head_dim, f feed-forward, v vocabulary.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stripectl.core.architecture import Architecture
from stripectl.core.layer_kinds import MaskRun
from stripectl.core.model import Model
from stripectl.core.rotary_scaling import RotaryScaling, YarnScaling
from tests.support.training import MODEL

DECODERS = {
    "norms of heads": replace(MODEL, architecture=Architecture(query_key_norm="head")),
    "norms over heads": replace(MODEL, architecture=Architecture(query_key_norm="all", norms="after")),
    "norms before and after": replace(MODEL, architecture=Architecture(norms="both", scaled_embedding=True)),
    "layer norms": replace(
        MODEL, architecture=Architecture(norms="both", layer_norms=True, norm_biases=True, norm_epsilon=0.03)
    ),
    "layer norms without parameters": replace(
        MODEL, architecture=Architecture(query_key_norm="all", layer_norms=True, norm_scales=False, norm_epsilon=0.3)
    ),
    "biases and gelu": replace(
        MODEL,
        architecture=Architecture(
            qkv_bias=True, output_bias=True, feed_forward_bias=True, activation="gelu", gated=False, rotary_dim=4
        ),
    ),
    "scales and caps": replace(
        MODEL,
        architecture=Architecture(attention_scale=0.5, rotary_base=300.0, activation="gelu_tanh", logit_cap=2.0),
    ),
    "YaRN": replace(
        MODEL,
        architecture=Architecture(rotary_base=300.0, rotary_scaling=YarnScaling(4.0, 24.0, 3.0, 0.2, whole=False)),
    ),
    "rotary positions in layers with windows": replace(
        MODEL,
        layers=4,
        layer_masks=(MaskRun("sliding:9", 1), MaskRun("causal", 1)),
        architecture=Architecture(rotary_layers="windows", attention_scale=0.5),
    ),
    "sinks and capped scores": replace(MODEL, sinks=True, soft_cap=0.5, architecture=Architecture(attention_scale=0.5)),
    "gates of attention": replace(MODEL, architecture=Architecture(attention_gate=True, no_feed_forward=True)),
    "windows in some layers": replace(
        MODEL,
        layers=5,  # a whole pattern, and part of another
        layer_masks=(MaskRun("sliding:9", 2), MaskRun("causal", 1)),
        architecture=Architecture(rotary_base=300.0, rotary_scaling=RotaryScaling(4.0), window_rotary_base=50.0),
    ),
    "tied embedding": replace(MODEL, architecture=Architecture(tied=True, scaled_embedding=True)),
}
LINEAR_DECODERS = {
    f"{gate} gate of linear layers": replace(
        MODEL, attention="linear", kv_heads=4, architecture=Architecture(linear_gate=gate)
    )
    for gate in ("silu", "sigmoid", "mamba2")
}

ACTIVATIONS = {
    "silu": lambda x: x / (1 + jnp.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + jax.scipy.special.erf(x / 2**0.5)),
    "gelu_tanh": lambda x: x / 2 * (1 + jnp.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
}


def oracle(parameters: Any, rows: np.ndarray, model: Model) -> tuple[float, Any]:
    """The mean loss of rows of tokens (b, t + 1), in natural order, and its gradients, in float64."""
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: jnp.asarray(x, "float64"), parameters)
        loss, gradients = jax.value_and_grad(mean_loss)(wide, rows, model)
        return float(loss), jax.tree.map(np.asarray, gradients)


def mean_loss(parameters: Any, rows: np.ndarray, model: Model) -> jax.Array:
    x = parameters["embedding"][rows[:, :-1]] * (model.hidden**0.5 if model.architecture.scaled_embedding else 1)
    ((_, stack),) = parameters["layers"].items()
    for at in range(model.layers):
        x = layer(x, {name: every[at] for name, every in stack.items()}, model, window_of(at, model))
    head = parameters["embedding"].T if model.architecture.tied else parameters["head"]
    logits = normed(x, "norm", parameters, model) @ head
    if cap := model.architecture.logit_cap:
        logits = cap * jnp.tanh(logits / cap)
    likely = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.take_along_axis(likely, rows[:, 1:, None], -1))


def window_of(at: int, model: Model) -> int | None:
    """The number of keys that a query of this layer keeps; None for all before it."""
    pattern = [run.mask for run in model.layer_masks for _ in range(run.layers)] or ["causal"]
    mask = pattern[at % len(pattern)]
    return None if mask == "causal" else int(mask.removeprefix("sliding:"))


def layer(x: jax.Array, own: dict[str, jax.Array], model: Model, window: int | None) -> jax.Array:
    before, after = (model.architecture.norms in (name, "both") for name in ("before", "after"))
    branches: dict[str, Any] = {"attention": partial(attention, window=window)}
    if not model.architecture.no_feed_forward:
        branches["feed_forward"] = feed_forward
    for name, branch in branches.items():
        result = branch(normed(x, f"{name}_norm", own, model) if before else x, own, model)
        x = x + (normed(result, f"{name}_end_norm", own, model) if after else result)
    return x


def feed_forward(y: jax.Array, own: dict[str, jax.Array], model: Model) -> jax.Array:
    act, up = ACTIVATIONS[model.architecture.activation], y @ own["up"] + own.get("up_bias", 0)
    wide = act(y @ own["gate"] + own.get("gate_bias", 0)) * up if model.architecture.gated else act(up)
    return wide @ own["down"] + own.get("down_bias", 0)


def attention(y: jax.Array, own: dict[str, jax.Array], model: Model, window: int | None) -> jax.Array:
    q, k, v = (jnp.einsum("btd,dnh->btnh", y, own[name]) for name in ("query", "key", "value"))
    if model.architecture.qkv_bias:
        biased = zip((q, k, v), ("query", "key", "value"), strict=True)
        q, k, v = (x + own[f"{name}_bias"].reshape(x.shape[2:]) for x, name in biased)
    norm = model.architecture.query_key_norm
    if norm == "head":
        q, k = (unit(x, model) * own[f"{name}_norm"] for name, x in (("query", q), ("key", k)))
    if norm == "all":
        q, k = (
            (unit(x.reshape(*x.shape[:2], -1), model) * own[f"{name}_norm"]).reshape(x.shape)
            for name, x in (("query", q), ("key", k))
        )
    if model.architecture.rotary_layers == "all" or (model.architecture.rotary_layers == "windows" and window):
        q, k = rotated(q, model, window), rotated(k, model, window)
    group = model.heads // model.kv_heads
    scores = jnp.einsum("btnh,bsnh->bnts", q, jnp.repeat(k, group, 2))
    scores *= model.architecture.attention_scale or model.head_dim**-0.5
    if model.soft_cap:
        scores = model.soft_cap * jnp.tanh(scores / model.soft_cap)
    seen = np.tri(y.shape[1], dtype=bool)
    seen &= ~np.tri(y.shape[1], k=-window, dtype=bool) if window else True
    if model.attention == "linear":
        weights = jnp.where(seen, scores * model.head_dim**0.5, 0)
    else:
        kept = jnp.where(seen, scores, -jnp.inf)
        if model.sinks:  # the score of one more key without a value
            kept = jnp.concatenate([kept, jnp.broadcast_to(own["sinks"][:, None, None], (*kept.shape[:3], 1))], -1)
        weights = jax.nn.softmax(kept)[..., : y.shape[1]]
    out = gated(jnp.einsum("bnts,bsnh->btnh", weights, jnp.repeat(v, group, 2)), y, v, own, model)
    return jnp.einsum("btnh,nhd->btd", out, own["output"]) + own.get("output_bias", 0)


def gated(out: jax.Array, y: jax.Array, v: jax.Array, own: dict[str, jax.Array], model: Model) -> jax.Array:
    if model.architecture.linear_gate == "sigmoid":
        logits = jnp.einsum("btk,knh->btnh", y @ own["output_gate_down"], own["output_gate_up"])
    elif "output_gate" in own:
        logits = jnp.einsum("btd,dnh->btnh", y, own["output_gate"])
    else:
        return out
    sigmoid = 1 / (1 + jnp.exp(-logits))
    if model.architecture.attention_gate:
        return out * sigmoid
    if model.architecture.linear_gate == "mamba2":
        wide = (out + v * own["skip"][:, None]) * logits * sigmoid
        return (unit(wide.reshape(*y.shape[:2], -1), model) * own["output_norm"]).reshape(out.shape)
    silu = model.architecture.linear_gate == "silu"
    return unit(out, model) * own["output_norm"] * (logits * sigmoid if silu else sigmoid)


def normed(x: jax.Array, name: str, own: dict[str, jax.Array], model: Model) -> jax.Array:
    x = x - x.mean(-1, keepdims=True) if model.architecture.layer_norms else x
    return unit(x, model) * own.get(name, 1) + own.get(f"{name}_bias", 0)


def unit(x: jax.Array, model: Model) -> jax.Array:
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + model.architecture.norm_epsilon)


def rotated(x: jax.Array, model: Model, window: int | None) -> jax.Array:
    parts = model.architecture
    half = (parts.rotary_dim or model.head_dim) // 2
    base, scaling, growth = parts.rotary_base, parts.rotary_scaling, 1.0
    if window and parts.window_rotary_base:
        base, scaling = parts.window_rotary_base, None
    frequencies = base ** (-np.arange(half) / half)
    if isinstance(scaling, RotaryScaling):
        frequencies /= scaling.factor
    if isinstance(scaling, YarnScaling):  # a frequency between the bounds is a mixture, linear in its number
        first, last = (
            half * np.log(scaling.length / turns / 2 / np.pi) / np.log(base) for turns in (scaling.fast, scaling.slow)
        )
        kept = np.array([min(max((last - i) / (last - first), 0), 1) for i in range(half)])
        assert any(0 < each < 1 for each in kept)
        frequencies *= kept + (1 - kept) / scaling.factor
        growth = 1 + np.log(scaling.factor) / 10
    angle = np.arange(x.shape[1])[:, None, None] * frequencies
    cos, sin = growth * np.cos(angle), growth * np.sin(angle)
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)
