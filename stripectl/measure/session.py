"""A worker on the local devices: it checks, compiles, warms up and times plans, and times tiles and hops.

Every process of a group holds a Session and runs the same requests in the same order. Each times its own part, and a
step takes as long as the slowest process says.
"""

import base64
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from stripectl.core.kernel import kernels
from stripectl.core.layout import Tile, parse_tile
from stripectl.core.linear_attention import recurrence_of
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.recurrence import Recurrence
from stripectl.core.workload import STEP, Workload
from stripectl.costs.matrices import TIMED_SIDE
from stripectl.costs.sources.timed_tiles import BlockShape, CalibrationBlock
from stripectl.errors import StripectlError
from stripectl.execute.comm import JaxComm
from stripectl.execute.program import as_recurrence_has, compiled_peak_bytes, local_devices
from stripectl.execute.verification import check_attention
from stripectl.hlo.module import collectives, parse_module, sent_bytes_by_opcode
from stripectl.measure.timing import barrier, runs_of_sample, seconds, typical
from stripectl.measure.yardstick import Yardstick
from stripectl.profiling.capture import WITHOUT_GRAPHS, capture
from stripectl.profiling.folder import HLO
from stripectl.results.records import read_record, record_json
from stripectl.training.program import program_of
from stripectl.util.json import JsonObject


@dataclass
class ReadyProgram:
    """A compiled plan with its inputs, ready to be sampled."""

    function: jax.stages.Compiled
    inputs: list[Any]  # shared with plans that take the same inputs
    own: list[Any]
    program: Any
    flags: Mapping[str, str]
    carries: bool  # consumes its first input, and returns the next one

    def run(self) -> Any:
        results = self.function(*self.inputs, *self.own)
        if self.carries:
            self.inputs[0] = results[0]
        return results


def bytes_of(compiled: Any) -> dict[str, int] | None:
    """Bytes that a device sends, from the compiled program; None where its text does not say."""
    try:
        return sent_bytes_by_opcode(collectives(parse_module(compiled.as_text())))
    except (StripectlError, RuntimeError, KeyError):
        return None


def shift_program(devices: Sequence[Any], hops: int) -> tuple[Callable, NamedSharding]:
    """A program that passes its argument `hops` times round a ring of all devices, and the argument's sharding."""
    mesh = jax.make_mesh((len(devices),), ("ring",), (AxisType.Auto,), devices=list(devices))
    comm = JaxComm(Plan("ring", "contiguous", "xla", (("ring", len(devices)),)))
    spec = PartitionSpec("ring")

    def pass_round(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, hops, lambda _, x: comm.shift(x, "ring"), x)

    return jax.jit(jax.shard_map(pass_round, mesh=mesh, in_specs=spec, out_specs=spec)), NamedSharding(mesh, spec)


def block_programs(
    kernel: str, tile: Tile, block: CalibrationBlock, shape: BlockShape
) -> dict[str, tuple[Callable[..., Any], *tuple[jax.Array, ...]]]:
    """The passes of a kernel for key/value groups on a block of scores: for each, a jitted function and its inputs."""
    group, head_dim, v_head_dim, dtype = shape.group, shape.head_dim, shape.v_head_dim, shape.dtype
    if rule := recurrence_of(shape.recurrence):
        return chunk_programs(rule, kernel, tile.block_kv, block, shape)
    module, rectangle, rows, groups = kernels[kernel].load(), block.rectangle, block.rows, shape.groups
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = (group, head_dim), (group, v_head_dim), (1, head_dim), (1, v_head_dim)
    q, dout, k, v = (
        jax.random.normal(key, (groups, heads, rows, elements), dtype)
        for key, (heads, elements) in zip(keys, shapes, strict=True)
    )
    out, dq, row = (jnp.zeros(x, jnp.float32) for x in (dout.shape, q.shape, q.shape[:3]))

    def bands(low: jax.Array, high: jax.Array) -> list:
        return [rectangle._replace(low=low, high=high)]

    def forward(low: jax.Array, high: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        (q, k, v), state = arrays[:3], arrays[3:]
        return module.forward(q, k, v, state, bands(low, high), tile, *rates, **capped)

    def backward(low: jax.Array, high: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        return module.backward(*arrays, bands(low, high), tile, *rates, **capped)

    rates = (jnp.zeros(1),) if kernels[kernel].family == "linear" else ()  # without a decay
    capped = {} if shape.soft_cap is None else {"soft_cap": shape.soft_cap}

    limits = jnp.int32(rectangle.low), jnp.int32(rectangle.high)
    return {
        "forward": (jax.jit(forward), *limits, q, k, v, out, row + module.EMPTY, row),
        "backward": (jax.jit(backward), *limits, q, k, v, dout, row + np.log(rows), row, dq),
    }


def chunk_programs(
    recurrence: Recurrence, kernel: str, chunk: int, block: CalibrationBlock, shape: BlockShape
) -> dict[str, tuple[Callable[..., Any], *tuple[jax.Array, ...]]]:
    """The programs of a recurrence for value heads that share a key head: the map and the transposed map for a `whole`
    block, the outputs and gradients for a `causal` block, nothing for a `dead` block."""
    module, dtype, groups = kernels[kernel].load(), shape.dtype, shape.groups
    group, keys, values = shape.group, shape.head_dim, shape.v_head_dim
    gates = recurrence.gate_shapes(keys).values()
    shapes = [(1, keys), (1, keys), (group, values), *((group, *each) for each in gates), (group, values)]
    made = [
        jax.random.normal(key, (groups, heads, block.rows, *rest), jnp.float32 if 2 < at < len(shapes) - 1 else dtype)
        for at, (key, (heads, *rest)) in enumerate(
            zip(jax.random.split(jax.random.key(0), len(shapes)), shapes, strict=True)
        )
    ]
    arrays = as_recurrence_has(recurrence, made, jnp)
    state = jnp.zeros((groups, group, keys, values), jnp.float32)

    def forward(q: jax.Array, k: jax.Array, v: jax.Array, *rest: jax.Array) -> jax.Array:
        gates = rest[:-1]
        if block.band == "whole":
            return module.map_of(recurrence, k, v, gates, chunk)
        return module.outputs(recurrence, q, k, v, gates, state, chunk) if block.band == "causal" else state

    def backward(q: jax.Array, k: jax.Array, v: jax.Array, *rest: jax.Array) -> Any:
        *gates, dout = rest
        if block.band == "whole":
            return module.transposed_map_of(recurrence, q, k, dout, gates, chunk)
        given = recurrence, q, k, v, gates, dout, state, state, chunk
        return module.gradients(*given) if block.band == "causal" else state

    return {"forward": (jax.jit(forward), *arrays), "backward": (jax.jit(backward), *arrays)}


@dataclass
class Session:
    """The requests that a worker answers; arguments and results are JSON."""

    ready: dict[str, ReadyProgram | None] = field(default_factory=dict)  # None: this process has no part of the plan
    inputs: dict[str, list[jax.Array]] = field(default_factory=dict)
    blocks: dict[str, Callable[[], Any]] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)  # of a sample of a plan or a block

    @cached_property
    def watch(self) -> Yardstick:
        return Yardstick()

    def devices(self) -> JsonObject:
        """The devices that JAX finds here (`DeviceGroup`)."""
        devices = jax.devices()
        return {
            "platform": devices[0].platform,
            "kind": devices[0].device_kind,
            "count": len(devices),
            "coordinates": [getattr(device, "coords", None) for device in devices],
        }

    def prepare(
        self,
        key: str,
        workload: JsonObject,
        plan: str,
        warmup: int,
        flags: Mapping[str, str],
        verify: bool = True,
    ) -> JsonObject:
        """Check the plan unless it was checked, compile it, and run it until it is warm."""
        work, parsed = Workload.from_json(workload), parse_plan(plan)
        devices, warmup = local_devices(parsed), max(1, warmup)
        step = work.passes == STEP
        if all(device.process_index != jax.process_index() for device in devices):
            self.ready[key] = None
            for _ in range(warmup):
                self.run(key)
            self.runs[key] = runs_of_sample(lambda: None)
            return {"check": None, "compile_s": 0.0, "warm_s": 0.0, "bytes": None, "peak_bytes": None}
        checked = check_attention(work, parsed, devices) if verify else None
        program = program_of(work, parsed, devices)
        start = time.perf_counter()
        compiled = program.compile(flags)
        compile_s = time.perf_counter() - start
        which = str(program.key)
        if which not in self.inputs:
            self.inputs[which] = program.random_inputs()
        ready = self.ready[key] = ReadyProgram(compiled, self.inputs[which], program.own_inputs(), program, flags, step)
        self.runs.pop(key, None)
        warm_s = [self.run(key) for _ in range(warmup)]
        self.runs[key] = runs_of_sample(ready.run)
        return {
            "check": checked and record_json(checked),
            "compile_s": compile_s,
            "warm_s": warm_s[-1],
            "bytes": bytes_of(compiled),
            "peak_bytes": compiled_peak_bytes(compiled),
        }

    def run(self, key: str) -> float:
        """Seconds of a prepared plan."""
        ready = self.ready[key]
        return seconds(ready.run if ready else lambda: None, runs=self.runs.get(key, 1))

    def sample(self, key: str) -> JsonObject:
        """Seconds of a prepared plan, and disturbances during the run."""
        return record_json(self.watch.beside(lambda: self.run(key)))

    def profile(self, key: str, steps: int, folder: str, mark: str) -> dict[str, str] | None:
        """Capture `steps` steps of a prepared plan, with its HLO, in a folder that holds `mark`. On a host without this
        folder the answer is the process's file, as base64. None from a process without a part of the plan."""
        ready = self.ready[key]
        gpu = jax.default_backend() == "gpu"
        if ready is None:
            for _ in range(steps + gpu):
                barrier()
            return None
        if gpu:
            ready = replace(ready, function=ready.program.compile({**ready.flags, **WITHOUT_GRAPHS}))
            seconds(ready.run)
        if jax.process_index() == 0:
            (Path(folder) / HLO).write_text(ready.function.as_text() or "", encoding="utf-8")
        if (Path(folder) / mark).exists():
            capture(ready.run, steps, Path(folder), barrier)
            return None
        with tempfile.TemporaryDirectory() as own:
            path = capture(ready.run, steps, Path(own), barrier)
            name = str(path.relative_to(own))
            return {"name": name, "content": base64.b64encode(path.read_bytes()).decode()}

    def release(self) -> None:
        """Forget every plan and its inputs."""
        self.ready.clear()
        self.inputs.clear()
        self.blocks.clear()
        self.runs.clear()

    def time_block(
        self,
        kernel: str,
        tile: str,
        rows: int,
        band: str,
        shape: JsonObject,
        passes: Sequence[str] = ("forward", "backward"),
    ) -> dict[str, float]:
        """Seconds of a kernel on a block of scores, by pass; `shape` is a `BlockShape`."""
        programs = block_programs(
            kernel, parse_tile(tile), CalibrationBlock(rows, band), read_record(BlockShape, shape)
        )
        return {each: typical(*programs[each]) for each in passes}

    def prepare_block(
        self, key: str, passes: str, kernel: str, tile: str, rows: int, band: str, shape: JsonObject
    ) -> None:
        """Compile one pass of such a block, and run it until it is warm."""
        block, shared = CalibrationBlock(rows, band), read_record(BlockShape, shape)
        function, *inputs = block_programs(kernel, parse_tile(tile), block, shared)[passes]
        self.blocks[key] = partial(function, *self.inputs.setdefault(f"{passes} {block} {shared}", inputs))
        seconds(self.blocks[key])
        self.runs[key] = runs_of_sample(self.blocks[key])

    def sample_block(self, key: str) -> float:
        """Seconds of a prepared block."""
        return seconds(self.blocks[key], runs=self.runs[key])

    def time_hop(self, nbytes: int) -> float:
        """Seconds of a hop of `nbytes` round a ring of all devices."""
        hops = 8
        function, sharding = shift_program(jax.devices(), hops)
        make = jax.jit(lambda: jnp.zeros((jax.device_count(), nbytes // 4), jnp.float32), out_shardings=sharding)
        return typical(function, make()) / hops

    def time_matmul(self, dtype: str) -> float:
        """FLOP/s of a large square matmul on one device of this process."""
        size = TIMED_SIDE[jax.devices()[0].platform]
        a = jax.device_put(jnp.ones((size, size), dtype), jax.local_devices()[0])
        return 2 * size**3 / typical(jax.jit(jnp.matmul), a, a)
