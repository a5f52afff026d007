"""A plan's program on a mesh of devices: `attend` bound to a kernel and `comm` to lax, inside shard_map.

Arrays are q_BNTH, k_BKSH, v_BKSH, dout_BNTH: batch, heads (or key/value heads), positions in the layout's order,
head_dim. Every collective of the program is in `Comm`.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from stripectl import BadInput
from stripectl.kernels import kernels
from stripectl.layout import Layout, Rectangle, Tile, Window, layouts
from stripectl.plan import BATCH_AXES, HEAD_AXES, SEQUENCE_AXES, Plan
from stripectl.scheme import Scheme, schemes
from stripectl.toolchain import typed, unknown_flag
from stripectl.workload import Workload

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


def partition(plan: Plan) -> PartitionSpec:
    """Batch, heads and positions of a (batch, heads, positions, head_dim) array over their axes of the mesh."""
    used = ([axis for axis in axes if plan.size(axis) > 1] for axes in (BATCH_AXES, HEAD_AXES, SEQUENCE_AXES))
    return PartitionSpec(*(tuple(axes) or None for axes in used), None)


def placed(plan: Plan) -> list[Any]:
    """The devices here for a plan, in the order of its mesh, as JAX lays meshes on the links it finds."""
    axes = plan.axes or {"ring": 1}
    here = jax.devices()[: plan.devices]
    types = (AxisType.Auto,) * len(axes)
    return list(jax.make_mesh(tuple(axes.values()), tuple(axes), types, devices=here).devices.flat)


def mesh_of(plan: Plan, devices: Sequence[Any]) -> jax.sharding.Mesh:
    """A plan's mesh over devices in its order: the last axis varies fastest."""
    axes = plan.axes or {"ring": 1}
    grid = np.array(list(devices)[: plan.devices]).reshape(tuple(axes.values()))
    return jax.sharding.Mesh(grid, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def compile_with(lowered: Any, flags: Mapping[str, str], kind: str) -> Any:
    """A lowered program, compiled for a kind of hardware with flags of its compiler.

    Raises:
        BadInput: the compiler does not know a flag; the message has the nearest that it does know.
    """
    try:
        return lowered.compile(compiler_options=typed(flags))
    except jax.errors.JaxRuntimeError as error:
        if unknown := unknown_flag(str(error), kind):
            raise BadInput(unknown) from error
        raise


@dataclass(frozen=True)
class Program:
    """A plan, which has its tile, for a workload on devices in the order of its mesh: the last axis varies fastest."""

    workload: Workload
    plan: Plan
    devices: Sequence[Any]

    @cached_property
    def mesh(self) -> jax.sharding.Mesh:
        return mesh_of(self.plan, self.devices)

    @property
    def spec(self) -> PartitionSpec:
        return partition(self.plan)

    @property
    def sharding(self) -> NamedSharding:
        return NamedSharding(self.mesh, self.spec)

    @property
    def shapes(self) -> list[jax.ShapeDtypeStruct]:
        """The arguments: q, k, v, and for a backward pass the cotangent of the output."""
        w = self.workload
        heads = [w.heads, w.kv_heads, w.kv_heads] + [w.heads] * (w.passes != "forward")
        return [
            jax.ShapeDtypeStruct((w.batch, n, w.seq_len, w.head_dim), jnp.dtype(w.dtype), sharding=self.sharding)
            for n in heads
        ]

    def body(self, q, k, v, *dout):
        """One device's part: out, or (out, dq, dk, dv)."""
        attend = bound(self.plan, self.workload.window)
        if not dout:
            return attend(q, k, v)
        out, backward = jax.vjp(attend, q, k, v)
        return out, *backward(dout[0])

    @cached_property
    def function(self) -> Callable:
        """The jitted program over global arrays."""
        out_specs = self.spec if self.workload.passes == "forward" else (self.spec,) * 4
        in_specs = (self.spec,) * len(self.shapes)
        mapped = jax.shard_map(self.body, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        return jax.jit(mapped)

    def compile(self, flags: Mapping[str, str]) -> Any:
        """The compiled program (`compile_with`)."""
        return compile_with(self.function.lower(*self.shapes), flags, self.devices[0].platform)

    @property
    def key(self) -> Any:
        """Equal for programs that can take each other's inputs."""
        return self.spec, self.plan.mesh, [(x.shape, x.dtype) for x in self.shapes]

    def random_inputs(self) -> list[jax.Array]:
        """Normal deviates, made where they lie."""

        def draw():
            keys = jax.random.split(jax.random.key(0), len(self.shapes))
            return [jax.random.normal(key, x.shape, x.dtype) for key, x in zip(keys, self.shapes, strict=True)]

        return jax.jit(draw, out_shardings=[self.sharding] * len(self.shapes))()

    def own_inputs(self) -> list[Any]:
        """None that other programs of the same key could not take."""
        return []

    def place(self, arrays_BNTH: Sequence[np.ndarray]) -> list[jax.Array]:
        """Host arrays in natural order, onto the devices in the layout's order."""
        order = layouts[self.plan.layout].permutation(self.plan.shards, self.workload.seq_len)
        placed = []
        for array in arrays_BNTH:
            laid = array[:, :, order]
            placed.append(jax.make_array_from_callback(laid.shape, self.sharding, lambda index, x=laid: x[index]))
        return placed


def peak_bytes(compiled: Any) -> int | None:
    """The most memory a device holds while a compiled program runs, arguments and results included."""
    memory = compiled.memory_analysis()
    if memory is None:
        return None
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes  # donated arguments become results
    whole = memory.argument_size_in_bytes + results + memory.temp_size_in_bytes
    leaves = jax.tree.leaves(compiled.input_shardings)
    if any(device.platform == "cpu" for leaf in leaves for device in leaf.device_set):
        return whole  # what a CPU's compiler calls the peak leaves its temporaries out
    return memory.peak_memory_in_bytes or whole
