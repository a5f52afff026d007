"""What TPU compilers make of collectives over two slices: which parts cross the network, and what hides them.

python benchmarks/slices.py     # writes benchmarks/slices.json; needs jax[tpu], no TPU; 15 minutes

Each row is a program for two slices, compiled by a process of its own. `gather`, `scatter`, `sum` and `exchange` are
one collective over all devices. `data` and `fsdp` are a training step of layers of two matrices in a scan: gradients
are summed over the slices, or parameters and gradients are also stored in shards over both. `parts` are the collectives
of the program, or of the body of its backward scan: an opcode is a collective in each slice, and the name of a
Megascale transfer goes through the network. `hidden` are the transfers during which the scan multiplies matrices.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from stripectl.compile.toolchain import TOOLCHAINS

RECORDS = Path(__file__).with_suffix(".json")
SLICES = ("v5p:2x2x4", "v6e:4x4", "tpu7x:2x2x2")
LAYERS, ROWS, HIDDEN, WIDE = 4, 8192, 4096, 14336
TRANSFER = re.compile(r'\s*%([\w.\-]+) = .* (send|recv)\(.*megascale_transfer_type="(\w+)"')
IN_SLICE = re.compile(r"\s*(?:ROOT )?%(all-gather|all-reduce|reduce-scatter|all-to-all)\S* = .* (?:\1|call-start)\(")


class Program(NamedTuple):
    """A program for two slices of this shape."""

    target: str
    name: str


PROGRAMS = [
    Program(target, name) for target in SLICES for name in ("gather", "scatter", "sum", "exchange", "data", "fsdp")
]


def compiled(program: Program) -> str:
    """The text of a compiled program."""
    os.environ.update(TOOLCHAINS["tpu"].environment)
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    topology = topologies.get_topology_desc(platform="tpu", topology_name=program.target, num_slices=2)
    order = sorted(topology.devices, key=lambda each: (each.slice_index, *each.coords[::-1], each.core_on_chip))
    mesh = Mesh(np.array(order).reshape(2, -1), ("data", "fsdp"))
    both, devices = ("data", "fsdp"), len(order)

    def laid(*axes: Any) -> Any:
        return NamedSharding(mesh, PartitionSpec(*axes))

    alone = {
        "gather": lambda part: lax.all_gather(part, both, tiled=True),
        "scatter": lambda part: lax.psum_scatter(part, both, tiled=True),
        "sum": lambda part: lax.psum(part, both),
        "exchange": lambda part: lax.all_to_all(part, both, 0, 0, tiled=True),
    }
    if program.name in alone:
        rows = jax.ShapeDtypeStruct((64 * devices**2, 1024), jnp.bfloat16, sharding=laid(both))
        own = jax.shard_map(
            lambda part: 2 * alone[program.name](part),
            mesh=mesh,
            in_specs=rows.sharding.spec,
            out_specs=rows.sharding.spec,
            check_vma=False,
        )
        return jax.jit(own).lower(rows).compile().as_text() or ""

    def layer(x: Any, matrices: Any) -> Any:
        up, down = (lax.with_sharding_constraint(each.astype(jnp.bfloat16), laid()) for each in matrices)
        return lax.with_sharding_constraint(x + jax.nn.silu(x @ up) @ down, laid(both)), None

    def loss(matrices: Any, x: Any) -> Any:
        y, _ = lax.scan(jax.checkpoint(layer), x, matrices)
        return (y.astype(jnp.float32) ** 2).sum()

    def step(matrices: Any, x: Any) -> Any:
        return jax.tree.map(lambda own, slope: own - 0.1 * slope, matrices, jax.grad(loss)(matrices, x))

    stored = laid(None, "fsdp" if program.name == "data" else both)
    shapes = (LAYERS, HIDDEN, WIDE), (LAYERS, WIDE, HIDDEN)
    matrices = tuple(jax.ShapeDtypeStruct(shape, jnp.float32, sharding=stored) for shape in shapes)
    x = jax.ShapeDtypeStruct((ROWS * devices, HIDDEN), jnp.bfloat16, sharding=laid(both))
    return jax.jit(step, out_shardings=(stored,) * 2, donate_argnums=0).lower(matrices, x).compile().as_text() or ""


def read_program(text: str) -> dict[str, object]:
    """The collectives of a program or of its backward scan, in the order of the schedule, and the hidden transfers."""
    bodies = [body for body in text.split("\n\n") if "ALL_REDUCE" in body and "ENTRY" not in body]
    (body,) = bodies or [body for body in text.split("\n\n") if "ENTRY" in body]
    parts: list[str] = []
    hidden: list[str] = []
    received: dict[str, tuple[str, int]] = {}
    multiplied = 0
    for line in body.splitlines():
        multiplied += "kind=kOutput" in line  # a fusion of a matrix product
        if found := TRANSFER.search(line):
            name, opcode, transfer = found.groups()
            if opcode == "send":
                parts.append(transfer)
            else:
                received[name] = transfer, multiplied
        elif found := re.search(r" recv-done\(%([\w.\-]+)\)", line):
            transfer, before = received[found[1]]
            hidden += [transfer] * (multiplied > before)
        elif found := IN_SLICE.match(line):
            parts.append(found[1])
    return {"parts": parts, "hidden": hidden}


if __name__ == "__main__":
    from one_by_one import record

    record(__file__, PROGRAMS, lambda program: read_program(compiled(program)), RECORDS, sys.argv[1:])
