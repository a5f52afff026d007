"""A scheme bound to JAX: `attend` to a kernel and `comm` to lax, for one device's part inside a shard_map.

Arrays are q_BNTH, k_BKSH, v_BKSH, dout_BNTH: batch, heads (or key/value heads), positions in the layout's order,
head_dim. Every collective of the program is in `Comm`.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from stripectl.kernels import kernels
from stripectl.layout import Layout, Rectangle, Tile, Window, layouts
from stripectl.plan import Plan
from stripectl.scheme import Scheme, schemes

ATTENTION = "attention"  # what jax.checkpoint's policies call a shard's output and log-sum-exp


class Saved(NamedTuple):
    """What the backward pass needs of the queries' side."""

    q_BNTH: jax.Array
    dout_BNTH: jax.Array
    lse_BNT: jax.Array
    delta_BNT: jax.Array


@dataclass(frozen=True)
class Comm:
    """The collectives of a scheme over the axes of a mesh. Each call opens a scope of its own, by which a profile knows
    the transfers that belong together."""

    plan: Plan
    calls: Iterator[int] = field(default_factory=itertools.count)

    def size(self, axis: str) -> int:
        return self.plan.size(axis)

    def index(self, axis: str):
        return lax.axis_index(axis) if self.size(axis) > 1 else 0

    def shift(self, x, axis: str, what: str = ""):
        size = self.size(axis)
        if size == 1:
            return x
        ring = [(i, (i + 1) % size) for i in range(size)]
        with jax.named_scope(f"shift_{what}_{next(self.calls)}"):
            return jax.tree.map(lambda leaf: lax.ppermute(leaf, axis, ring), x)

    def all_gather(self, x, axis: str, what: str = ""):
        if self.size(axis) == 1:
            return jax.tree.map(lambda leaf: leaf[None], x)
        with jax.named_scope(f"all_gather_{what}_{next(self.calls)}"):
            return jax.tree.map(lambda leaf: lax.all_gather(leaf, axis), x)

    def select(self, stacked, index):
        return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, index, keepdims=False), stacked)

    def loop(self, first: int, last: int, body: Callable, state):
        if first >= last:
            return state
        return lax.fori_loop(first, last, body, state, unroll=min(self.plan.unroll, last - first))


@dataclass(frozen=True, eq=False)
class Attend:
    """A kernel bound to a layout and tiles."""

    kernel: ModuleType
    layout: Layout
    shards: int
    window: Window
    tiles: Mapping[str, Tile]

    def bands(self, me, src, rows: int) -> list[Rectangle]:
        return self.layout.bands(me, src, self.shards, rows, self.window)

    def empty(self, q):
        rows = q.shape[:3]
        return jnp.zeros(q.shape, jnp.float32), jnp.full(rows, self.kernel.EMPTY, jnp.float32), jnp.zeros(rows)

    def query(self, q):
        return q.astype(jnp.float32)

    def __call__(self, q, kv, me, src, *, into):
        with jax.named_scope("attend_forward"):
            return meet(self, q, kv, me, src, into)

    def backward(self, saved: Saved, kv, me, src, *, into):
        q, dout, lse, delta = saved
        bands = self.bands(me, src, q.shape[2])
        with jax.named_scope("attend_backward"):
            dq, dk, dv = self.kernel.backward(q, *kv, dout, lse, delta, into, bands, self.tiles["backward"])
        return dq, (dk, dv)

    def zeros(self, saved: Saved):
        return jnp.zeros(saved.q_BNTH.shape, jnp.float32)

    def add(self, a, b):
        return jax.tree.map(jnp.add, a, b)

    def finish(self, state):
        """(out, log-sum-exp) in float32; queries that met no key give 0 and the log of nothing."""
        out, maximum, total = state
        total = jnp.where(total > 0, total, 1)
        return out / total[..., None], maximum + jnp.log(total)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def meet(attend: Attend, q, kv, me, src, state):
    q = q.astype(kv[0].dtype)
    return attend.kernel.forward(q, *kv, state, attend.bands(me, src, q.shape[2]), attend.tiles["forward"])


def _meet_forward(attend, q, kv, me, src, state):
    after: Any = meet(attend, q, kv, me, src, state)
    return after, (q, kv, me, src, state[1], after[1])


def _meet_backward(attend, residuals, cotangents):
    """The gradients of a state. What it stands for does not depend on its maximum, so the maximum is a constant here:
    the pair's gradients are attention's with the maximum for the log-sum-exp and minus dsum for delta."""
    q, kv, me, src, before, after = residuals
    dout, _, dsum = cotangents
    saved = Saved(q.astype(kv[0].dtype), dout.astype(kv[0].dtype), after, -dsum)
    dq, dkv = attend.backward(saved, kv, me, src, into=attend.zeros(saved))
    decay = jnp.exp(before - after)
    dkv = jax.tree.map(lambda gradient, x: gradient.astype(x.dtype), dkv, kv)
    return dq.astype(q.dtype), dkv, None, None, (dout * decay[..., None], jnp.zeros_like(before), dsum * decay)


meet.defvjp(_meet_forward, _meet_backward)


def attention(scheme: Scheme, attend: Attend, comm: Comm) -> Callable:
    """attention(q, k, v) -> out on one shard, differentiable: by the scheme's own backward, or by transposition."""

    def forward(q, k, v):
        out, lse = attend.finish(scheme.forward(q, (k, v), attend, comm))
        return out.astype(q.dtype), lse

    if scheme.backward is None:
        return lambda q, k, v: forward(q, k, v)[0]
    written = scheme.backward

    @jax.custom_vjp
    def attention(q, k, v):
        return forward(q, k, v)[0]

    def save(q, k, v):
        out, lse = (checkpoint_name(x, ATTENTION) for x in forward(q, k, v))
        return out, (q, k, v, out, lse)

    def backward(residuals, dout):
        q, k, v, out, lse = residuals
        delta = jnp.sum(dout.astype(jnp.float32) * out.astype(jnp.float32), axis=-1)
        dq, (dk, dv) = written(Saved(q, dout, lse, delta), (k, v), attend, comm)
        return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype)

    attention.defvjp(save, backward)
    return attention


def bound(plan: Plan, window: Window) -> Callable:
    """attention(q, k, v) -> out of a plan, which has its tile, on one shard of each array."""
    tiles, kernel = plan.tiles, kernels[plan.kernel].load()
    attend = Attend(kernel, layouts[plan.layout], plan.shards, window, tiles)
    return attention(schemes[plan.scheme], attend, Comm(plan))
