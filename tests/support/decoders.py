"""Decoders in float64, written out with whole arrays on one device, without code of the package: what steps of every
architecture are compared with.

Letters: b sequences, t and s positions, d hidden, n heads, h head_dim, f feed-forward, v vocabulary.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stripectl.core.architecture import Architecture
from stripectl.core.model import Model
from tests.support.training import MODEL

DECODERS = {
    "norms of heads": replace(MODEL, architecture=Architecture(query_key_norm="head")),
    "norms over heads": replace(MODEL, architecture=Architecture(query_key_norm="all", norms="after")),
    "norms before and after": replace(MODEL, architecture=Architecture(norms="both", scaled_embedding=True)),
    "tied embedding": replace(MODEL, architecture=Architecture(tied=True, scaled_embedding=True)),
}
EPSILON = 1e-5


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
        x = layer(x, {name: every[at] for name, every in stack.items()}, model)
    head = parameters["embedding"].T if model.architecture.tied else parameters["head"]
    logits = normed(x, parameters["norm"]) @ head
    likely = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.take_along_axis(likely, rows[:, 1:, None], -1))


def layer(x: jax.Array, own: dict[str, jax.Array], model: Model) -> jax.Array:
    before, after = (model.architecture.norms in (name, "both") for name in ("before", "after"))
    for name, branch in (("attention", attention), ("feed_forward", feed_forward)):
        result = branch(normed(x, own[f"{name}_norm"]) if before else x, own, model)
        x = x + (normed(result, own[f"{name}_end_norm"]) if after else result)
    return x


def feed_forward(y: jax.Array, own: dict[str, jax.Array], model: Model) -> jax.Array:
    return (jax.nn.silu(y @ own["gate"]) * (y @ own["up"])) @ own["down"]


def attention(y: jax.Array, own: dict[str, jax.Array], model: Model) -> jax.Array:
    q, k, v = (jnp.einsum("btd,dnh->btnh", y, own[name]) for name in ("query", "key", "value"))
    norm = model.architecture.query_key_norm
    if norm == "head":
        q, k = normed(q, own["query_norm"]), normed(k, own["key_norm"])
    if norm == "all":
        q, k = (
            normed(x.reshape(*x.shape[:2], -1), own[f"{name}_norm"]).reshape(x.shape)
            for name, x in (("query", q), ("key", k))
        )
    q, k = rotated(q), rotated(k)
    group = model.heads // model.kv_heads
    scores = jnp.einsum("btnh,bsnh->bnts", q, jnp.repeat(k, group, 2)) * model.head_dim**-0.5
    seen = np.tri(y.shape[1], dtype=bool)
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))
    out = jnp.einsum("bnts,bsnh->btnh", weights, jnp.repeat(v, group, 2))
    return jnp.einsum("btnh,nhd->btd", out, own["output"])


def normed(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * scale


def rotated(x: jax.Array) -> jax.Array:
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None, None] * 10000.0 ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)
