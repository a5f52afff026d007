"""A plan's attention on one device's part, differentiable: a scheme that uses `attend` and `comm`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
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


def scheme_on_shard(scheme: Scheme, attend: JaxAttend, comm: JaxComm, layer: bool) -> Callable:
    """attention(q, k, v, *gates, starts if any) -> out on one shard, differentiable: with the scheme's own backward
    between its enter and leave, or by transposition. In a `layer`, the hidden states of a scheme that moves them are
    moved already."""
    meets = sharded_forward(scheme, attend, comm)

    @own_settings
    def attention(q: jax.Array, *others: jax.Array) -> jax.Array:
        count = 2 + attend.gates
        kv, (starts, *_) = others[:count], (*others[count:], None)
        q, kv = attend.in_runs(*attend.with_features(q, kv))
        if layer and scheme.row_axes:
            return attend.from_runs(meets(q, kv, starts))
        own = replace(attend, starts_BD=starts)
        q, kv = scheme.enter((q, kv), own, comm)
        return attend.from_runs(scheme.leave(meets(q, kv, starts), own, comm))

    return attention


def sharded_forward(scheme: Scheme, attend: JaxAttend, comm: JaxComm) -> Callable:
    """(q, kv, starts) -> out on one shard, where shards exchange data."""

    def forward(q: jax.Array, kv: KeysValues, starts: jax.Array | None, kept: list[Any]) -> tuple[jax.Array, Any]:
        own = replace(attend, starts_BD=starts)
        out, residual = own.finish(scheme.forward(q, kv, own, replace(comm, kept=kept)))
        return out.astype(q.dtype), residual

    def meets(q: jax.Array, kv: KeysValues, starts: jax.Array | None) -> jax.Array:
        return forward(q, kv, starts, [])[0]

    if scheme.backward is None:
        return meets
    written = scheme.backward

    def save(q: jax.Array, kv: KeysValues, starts: jax.Array | None) -> tuple[jax.Array, tuple]:
        kept = list[Any]()
        out, residual = jax.tree.map(lambda x: checkpoint_name(x, Kept.CONTEXT), forward(q, kv, starts, kept))
        return out, (q, None if kept else kv, tuple(kept), starts, out, residual)

    def gradients(residuals: tuple, dout: jax.Array) -> tuple[jax.Array, KeysValues]:
        q, kv, kept, starts, out, residual = residuals
        delta = jnp.sum(dout.astype(jnp.float32) * out.astype(jnp.float32), axis=-1)
        own = replace(attend, starts_BD=starts)
        saved = Saved(q, dout, residual, delta, out if attend.saves_output else None)
        dq, dkv = written(saved, kept or kv, own, comm)
        if not kept:
            dkv = jax.tree.map(lambda gradient, x: gradient.astype(x.dtype), dkv, kv)
        return dq.astype(q.dtype), dkv

    def backward(residuals: tuple, dout: jax.Array) -> tuple:
        return *first_order_only(gradients)(residuals, dout), None

    return with_backward(meets, save, backward)


def plan_attention(plan: Plan, workload: Workload, *, layer: bool = False) -> Callable:
    """The `attention` of a plan that names its tile: (q, k, v, *gates, starts if any) -> out on one shard of each
    array."""
    kernel, sharding, comm = kernels[plan.kernel], sequence_sharding(workload, plan), JaxComm(plan)
    given = kernel.load(), sharding, plan.tiles
    if kernel.makes_hops:
        comm = FusedHopComm(plan)
        attend = FusedHopAttend(*given, value_dim=workload.value_dim, comm=comm)
    elif workload.gated:
        own = {"recurrence": workload.gated, "key_dim": workload.head_dim, "keeps": plan.states == STATES[0]}
        attend = JaxGatedAttend(*given, value_dim=workload.value_dim, **own)
    elif calls_once(kernel, sharding):
        attend = OneCallAttend(*given, value_dim=workload.value_dim)
    elif workload.rates is None:
        attend = JaxAttend(*given, value_dim=workload.value_dim)
    else:
        over = tuple((axis, size) for axis in (*HEAD_AXES, "ulysses") if (size := plan.size(axis)) > 1)
        kept = {"features": workload.features, "keeps": plan.states == STATES[0]}
        attend = JaxLinearAttend(*given, decays=workload.rates, over=over, **kept)
    return scheme_on_shard(schemes[plan.scheme], attend, comm, layer)
