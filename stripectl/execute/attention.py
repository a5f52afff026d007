"""A plan's attention on one device's part, differentiable: a scheme that uses `attend` and `comm`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from stripectl.core.kept import Kept
from stripectl.core.kernel import kernels
from stripectl.core.mesh import HEAD_AXES
from stripectl.core.plan import STATES, Plan
from stripectl.core.scheme import Scheme, schemes
from stripectl.core.sequence_sharding import calls_once, sequence_sharding
from stripectl.core.workload import Workload
from stripectl.execute.attend import JaxAttend, KeysValues, Saved
from stripectl.execute.comm import JaxComm
from stripectl.execute.derivatives import first_order_only, with_backward
from stripectl.execute.fused_hops import FusedHopAttend, FusedHopComm
from stripectl.execute.linear_attend import JaxGatedAttend, JaxLinearAttend
from stripectl.execute.one_call import OneCallAttend
from stripectl.execute.settings import own_settings


def scheme_on_shard(scheme: Scheme, attend: JaxAttend, comm: JaxComm, layer: bool, has_sinks: bool = False) -> Callable:
    """attention(q, k, v, *gates, sinks if any, starts if any) -> out on one shard, differentiable: with the scheme's
    own backward between its enter and leave, or by transposition. In a `layer`, the hidden states of a scheme that
    moves them are moved already."""
    meets = sharded_forward(scheme, attend, comm)

    @own_settings
    def attention(q: jax.Array, *others: jax.Array) -> jax.Array:
        count = 2 + attend.gates
        kv, rest = others[:count], [*others[count:]]
        sinks, starts = rest.pop(0) if has_sinks else None, rest.pop() if rest else None
        q, kv = attend.in_runs(*attend.with_features(q, kv))
        if layer and scheme.row_axes:
            return attend.from_runs(meets(q, kv, starts, own_sinks(sinks, comm)))
        own = replace(attend, starts_BD=starts)
        q, kv = scheme.enter((q, kv), own, comm)
        sinks = own_sinks(sinks, comm, scheme.row_axes)
        return attend.from_runs(scheme.leave(meets(q, kv, starts, sinks), own, comm))

    return attention


def own_sinks(sinks_1N1: jax.Array | None, comm: JaxComm, row_axes: tuple[str, ...] = ()) -> jax.Array | None:
    """The sinks of the heads that a device has after the scheme's `enter`."""
    if sinks_1N1 is None:
        return None
    for axis in (*row_axes, "ulysses"):
        size = sinks_1N1.shape[1] // comm.size(axis)
        sinks_1N1 = lax.dynamic_slice_in_dim(sinks_1N1, comm.index(axis) * size, size, axis=1)
    return sinks_1N1


def join_sinks(out_BNTH: jax.Array, lse_BNT: jax.Array, sinks_1N1: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(out, log-sum-exp) of queries after a sink, a score without a value, has joined their scores."""
    share_BNT = jax.nn.sigmoid(lse_BNT - sinks_1N1)
    return out_BNTH.astype(jnp.float32) * share_BNT[..., None], jnp.logaddexp(lse_BNT, sinks_1N1)


def sharded_forward(scheme: Scheme, attend: JaxAttend, comm: JaxComm) -> Callable:
    """(q, kv, starts, sinks) -> out on one shard, where shards exchange data. Sinks join after all keys, once."""

    def forward(
        q: jax.Array, kv: KeysValues, starts: jax.Array | None, sinks: jax.Array | None, kept: list[Any]
    ) -> tuple[jax.Array, Any]:
        own = replace(attend, starts_BD=starts)
        out, residual = own.finish(scheme.forward(q, kv, own, replace(comm, kept=kept)))
        if sinks is not None:
            out, residual = join_sinks(out, residual, sinks)
        return out.astype(q.dtype), residual

    def meets(q: jax.Array, kv: KeysValues, starts: jax.Array | None, sinks: jax.Array | None) -> jax.Array:
        return forward(q, kv, starts, sinks, [])[0]

    if scheme.backward is None:
        return meets
    written = scheme.backward

    def save(
        q: jax.Array, kv: KeysValues, starts: jax.Array | None, sinks: jax.Array | None
    ) -> tuple[jax.Array, tuple]:
        kept = list[Any]()
        out, residual = jax.tree.map(lambda x: checkpoint_name(x, Kept.CONTEXT), forward(q, kv, starts, sinks, kept))
        return out, (q, None if kept else kv, tuple(kept), starts, sinks, out, residual)

    def gradients(residuals: tuple, dout: jax.Array) -> tuple[jax.Array, KeysValues, jax.Array | None]:
        q, kv, kept, starts, sinks, out, residual = residuals
        delta = jnp.sum(dout.astype(jnp.float32) * out.astype(jnp.float32), axis=-1)
        own = replace(attend, starts_BD=starts)
        saved = Saved(q, dout, residual, delta, out if attend.saves_output else None)
        dq, dkv = written(saved, kept or kv, own, comm)
        dkv = jax.tree.map(lambda gradient, x: gradient.astype(x.dtype), dkv, kv or (q,) * len(dkv))
        dsinks = None
        if sinks is not None:  # the weight of a sink in its row is exp(sink - log-sum-exp)
            dsinks = -jnp.sum(jnp.exp(sinks - residual) * delta, axis=(0, 2), keepdims=True)
        return dq.astype(q.dtype), dkv, dsinks

    def backward(residuals: tuple, dout: jax.Array) -> tuple:
        dq, dkv, dsinks = first_order_only(gradients)(residuals, dout)
        return dq, dkv, None, dsinks

    return with_backward(meets, save, backward)


def plan_attention(plan: Plan, workload: Workload, *, layer: bool = False) -> Callable:
    """The `attention` of a plan that names its tile: (q, k, v, *gates, sinks if any, starts if any) -> out on one shard
    of each array."""
    kernel, sharding, comm = kernels[plan.kernel], sequence_sharding(workload, plan), JaxComm(plan)
    given = kernel.load(), sharding, plan.tiles
    softmax = dict[str, Any](value_dim=workload.value_dim, soft_cap=workload.soft_cap)
    if kernel.makes_hops:
        comm = FusedHopComm(plan)
        attend = FusedHopAttend(*given, comm=comm, **softmax)
    elif workload.gated:
        own = {"recurrence": workload.gated, "key_dim": workload.head_dim, "keeps": plan.states == STATES[0]}
        attend = JaxGatedAttend(*given, value_dim=workload.value_dim, **own)
    elif calls_once(kernel, sharding):
        attend = OneCallAttend(*given, **softmax)
    elif workload.rates is None:
        attend = JaxAttend(*given, **softmax)
    else:
        over = tuple((axis, size) for axis in (*HEAD_AXES, "ulysses") if (size := plan.size(axis)) > 1)
        kept = {"features": workload.features, "keeps": plan.states == STATES[0]}
        attend = JaxLinearAttend(*given, decays=workload.rates, over=over, **kept)
    return scheme_on_shard(schemes[plan.scheme], attend, comm, layer, workload.sinks)
