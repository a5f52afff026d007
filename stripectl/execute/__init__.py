"""A plan's program on a mesh of devices: its attention inside shard_map, compiled, with the inputs that it takes.

Arrays are (batch, heads or key/value heads, positions in the layout's order, head_dim).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from stripectl import BadInput
from stripectl.execute.attend import bound
from stripectl.layout import layouts
from stripectl.plan import BATCH_AXES, HEAD_AXES, SEQUENCE_AXES, Plan
from stripectl.toolchain import typed, unknown_flag
from stripectl.workload import Workload


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
