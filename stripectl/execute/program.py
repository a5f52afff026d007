"""A plan's program on a mesh of devices: its attention inside shard_map, compiled, with the inputs that it needs.

Arrays are (batch, heads or key/value heads, positions in the layout's order, head_dim).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import stripectl.compat as compat
from stripectl.core.kernel import kernels
from stripectl.core.plan import Plan
from stripectl.core.recurrence import LOG_GATE, WRITE, Recurrence
from stripectl.core.sequence_sharding import axes_of, query_sharding, sequence_sharding
from stripectl.core.workload import SINK_DTYPE, Workload
from stripectl.errors import BadInput
from stripectl.execute.attention import plan_attention
from stripectl.execute.xla_flags import typed_flags, why_flag_unknown


def partition(plan: Plan, how: str = "keys") -> PartitionSpec:
    """Batch, heads and positions of a (batch, heads, positions, head_dim) array over their mesh axes, by how the array
    is sharded (`sequence_sharding.axes_of`)."""
    used = ([axis for axis in axes if plan.size(axis) > 1] for axes in axes_of(plan, how))
    return PartitionSpec(*(tuple(axes) or None for axes in used), None)


def local_devices(plan: Plan) -> list[Any]:
    """The local devices for a plan, in the order of its mesh, as JAX places meshes on the links that it finds."""
    axes = plan.axes or {"ring": 1}
    here = jax.devices()[: plan.devices]
    types = (AxisType.Auto,) * len(axes)
    return list(jax.make_mesh(tuple(axes.values()), tuple(axes), types, devices=here).devices.flat)


def mesh_of(plan: Plan, devices: Sequence[Any]) -> jax.sharding.Mesh:
    """A plan's mesh over devices in its order: the last axis varies fastest."""
    axes = plan.axes or {"ring": 1}
    grid = np.array(list(devices)[: plan.devices]).reshape(tuple(axes.values()))
    return jax.sharding.Mesh(grid, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


# A TPU's compiler starts at most five permutes before it ends one, and later permutes find no tiles to hide behind; a
# round of the bidirectional ring's backward pass has eight.
HOPS_AT_ONCE = {"xla_max_concurrent_async_collective_permutes": "16"}
# On v4, v5p and v6e its scheduler starts the hops of a backward pass after the tiles of stripectl's kernels, because it
# overestimates how much the adds of dK/dV can hide. With this flag it starts them before the tiles.
HOPS_BEFORE_TILES = {"xla_tpu_enable_all_experimental_scheduler_features": "true"}


def tpu_flags(plan: Plan) -> dict[str, str]:
    """The compiler options of a plan's programs for TPUs: jit your own function with the same options."""
    return HOPS_AT_ONCE | (HOPS_BEFORE_TILES if kernels[plan.kernel].costs.bundles else {})


def compile_with(lowered: Any, plan: Plan, flags: Mapping[str, str], kind: str) -> Any:
    """A plan's lowered program, compiled for a kind of hardware with compiler flags.

    Raises:
        BadInput: the compiler does not know a flag.
    """
    if kind == "tpu":
        flags = {**tpu_flags(plan), **flags}
    if kind == "cpu" and 1 < plan.unroll < plan.shards - 1:
        flags = {**compat.keep_barriers_on_cpu(), **flags}
    try:
        return lowered.compile(compiler_options=typed_flags(flags))
    except jax.errors.JaxRuntimeError as error:
        if reason := why_flag_unknown(str(error), kind):
            raise BadInput(reason) from error
        raise


@dataclass(frozen=True)
class PlanProgram:
    """A plan that names its tile, for a workload on devices in the order of its mesh: the last axis varies fastest."""

    workload: Workload
    plan: Plan
    devices: Sequence[Any]

    @cached_property
    def mesh(self) -> jax.sharding.Mesh:
        return mesh_of(self.plan, self.devices)

    @property
    def specs(self) -> list[PartitionSpec]:
        """Of q, k, v, gates if any, sinks if any, and the cotangent of the output."""
        queries, keys = (partition(self.plan, how) for how in (query_sharding(self.workload, self.plan), "keys"))
        of_keys = [PartitionSpec(*keys[: 3 + len(shape)]) for _, _, shape, _ in self.workload.kv_shapes]
        of_sinks = [PartitionSpec(None, queries[1], None)] if self.workload.sinks else []
        return [queries, *of_keys, *of_sinks, queries]

    @property
    def gradient_specs(self) -> list[PartitionSpec]:
        """Shardings of the gradients; each device has its own part of the gradient of sinks (`with_sums`)."""
        *given, _ = self.specs
        if self.workload.sinks:
            of_heads = given[-1][1] or ()
            given[-1] = PartitionSpec(tuple(x for x in self.plan.axes if x not in of_heads) or None, *given[-1][1:])
        return given

    @property
    def shapes(self) -> list[jax.ShapeDtypeStruct]:
        """The arguments: q, k, v, gates if any, sinks if any, and for a backward pass the cotangent of the output."""
        w = self.workload
        sinks = [(w.heads, 1, (), SINK_DTYPE)] if w.sinks else []
        queries = w.query_heads, w.queries, (w.head_dim,), w.dtype
        cotangent = w.heads, w.queries, (w.value_dim,), w.dtype
        of_batch = [(w.batch, each) for each in (queries, *w.kv_shapes)]
        arrays = [*of_batch, *((1, each) for each in sinks), (w.batch, cotangent)]
        return [
            jax.ShapeDtypeStruct((batch, heads, rows, *rest), dtype, sharding=NamedSharding(self.mesh, spec))
            for (batch, (heads, rows, rest, dtype)), spec in zip(arrays, self.specs, strict=True)
        ][: len(self.specs) - (w.passes == "forward")]

    @property
    def own_shapes(self) -> list[jax.ShapeDtypeStruct]:
        """The argument after those: where documents start, (batch, documents), if there are any."""
        starts = self.workload.starts
        if starts is None:
            return []
        sharding = NamedSharding(self.mesh, PartitionSpec(self.specs[0][0]))
        return [jax.ShapeDtypeStruct((self.workload.batch, len(starts)), starts.dtype, sharding=sharding)]

    def body(self, *arrays: jax.Array) -> jax.Array | tuple[jax.Array, ...]:
        """One device's part of `shapes` and `own_shapes`: out, or (out, dq, dk, dv, gradients of gates and sinks if
        any)."""
        given, attend = len(self.shapes), plan_attention(self.plan, self.workload)
        starts = arrays[given:]
        if self.workload.passes == "forward":
            return attend(*arrays)
        out, backward = jax.vjp(lambda *each: attend(*each, *starts), *arrays[: given - 1])
        return out, *backward(arrays[given - 1])

    @cached_property
    def function(self) -> jax.stages.Wrapped:
        """The jitted program over global arrays."""
        out = self.specs[0]
        out_specs = out if self.workload.passes == "forward" else (out, *self.gradient_specs)
        in_specs = tuple(x.sharding.spec for x in (*self.shapes, *self.own_shapes))
        mapped = jax.shard_map(self.body, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        return jax.jit(mapped)

    def compile(self, flags: Mapping[str, str]) -> Any:
        """The compiled program (`compile_with`)."""
        lowered = self.function.lower(*self.shapes, *self.own_shapes)
        return compile_with(lowered, self.plan, flags, self.devices[0].platform)

    @property
    def key(self) -> Any:
        """A key that is equal for programs that take the same inputs."""
        return self.plan.mesh, [(x.shape, x.dtype, x.sharding.spec) for x in self.shapes]

    def random_inputs(self) -> list[jax.Array]:
        """Normal deviates, made where they lie; of a recurrence such keys and gates as it has."""

        def draw() -> list[jax.Array]:
            keys = jax.random.split(jax.random.key(0), len(self.shapes))
            normal = [jax.random.normal(key, x.shape, x.dtype) for key, x in zip(keys, self.shapes, strict=True)]
            return as_recurrence_has(self.workload.gated, normal, jnp)

        return jax.jit(draw, out_shardings=[x.sharding for x in self.shapes])()

    def own_inputs(self) -> list[Any]:
        """Inputs that other programs with the same key could not take: where documents start."""
        starts = np.asarray(self.workload.starts)
        return [put_on_devices(np.broadcast_to(starts, x.shape), x.sharding) for x in self.own_shapes]

    def place(self, arrays_BNTH: Sequence[np.ndarray]) -> list[jax.Array]:
        """All arguments on the devices: host arrays in natural order, put in the layout's order, and its own inputs."""
        given = zip(arrays_BNTH, self.shapes, self.orders, strict=False)
        return [*(put_on_devices(x[:, :, order], like.sharding) for x, like, order in given), *self.own_inputs()]

    @property
    def orders(self) -> list[np.ndarray]:
        """The order of positions in every array of `specs`: stored = natural[order]."""
        queries, keys = sequence_sharding(self.workload, self.plan).orders()
        return [queries, *[keys] * len(self.workload.kv_shapes), *[np.arange(1)] * self.workload.sinks, queries]

    @property
    def result_orders(self) -> list[np.ndarray]:
        """The order of positions in the output, dq, dk, dv and the gradients of gates and sinks."""
        *given, out = self.orders
        return [out, *given]

    def with_sums(self, found: Any) -> tuple[jax.Array, ...]:
        """All results of the program, with the sum of all parts of the gradient of sinks."""
        values = found if isinstance(found, tuple) else (found,)
        if len(values) == 1 or not self.workload.sinks:
            return values
        sharding = NamedSharding(self.mesh, PartitionSpec())
        return *values[:-1], jax.jit(lambda x: x.sum(0, keepdims=True), out_shardings=sharding)(values[-1])


def as_recurrence_has(recurrence: Recurrence | None, arrays: Sequence[Any], xp: Any) -> list[Any]:
    """Queries, keys, values, gates and what follows from normal deviates, by NumPy or jax.numpy (`xp`): with keys of
    norm 1 by the delta rule, half-lives of some dozen tokens, and new values that replace a share of the old."""
    if recurrence is None:
        return [*arrays]
    q, k, v, *rest = arrays
    if recurrence.delta:
        k = (k / xp.sqrt(xp.sum(xp.square(k.astype("float32")), -1, keepdims=True))).astype(k.dtype)
    made = {LOG_GATE: lambda x: -0.05 * xp.exp(x), WRITE: lambda x: 1 / (1 + xp.exp(-x))}
    names = [*recurrence.gate_shapes(1)]
    gates = [made[name](x) for name, x in zip(names, rest, strict=False)]
    return [q, k, v, *gates, *rest[len(names) :]]


def put_on_devices(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """A host array that every process has, on the devices."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def compiled_host_bytes(compiled: Any) -> int | None:
    """The bytes of a device's values in the host's memory while a compiled program runs; None where there are none."""
    memory = compiled.memory_analysis()
    return (memory and memory.host_temp_size_in_bytes) or None


def compiled_peak_bytes(compiled: Any) -> int | None:
    """The peak memory of a device while a compiled program runs, with arguments and results."""
    memory = compiled.memory_analysis()
    if memory is None:
        return None
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes  # donated arguments become results
    whole = memory.argument_size_in_bytes + results + memory.temp_size_in_bytes
    leaves = jax.tree.leaves(compiled.input_shardings)
    if any(device.platform == "cpu" for leaf in leaves for device in leaf.device_set):
        return whole  # a CPU compiler's peak does not include temporaries
    return memory.peak_memory_in_bytes or whole
