"""What TPU compilers make of an all-gather, by the order in which a mesh goes through the torus.

python benchmarks/gather_order.py     # writes benchmarks/gather_order.json; needs jax[tpu], no TPU

Each row is a gather over axes of a mesh, compiled by a process of its own, because libtpu keeps some decisions for the
next program. `placed` is stripectl's own order, `torus` the order of the chips' coordinates. `compiled` is the
compiler's algorithm, such as 3DAllGatherOnMajorDim; where it names none, the opcode: all-reduce is a sum of arrays that
are zero but for a device's part, and `fill_cycles` is the compiler's estimate for filling `fill_bytes` with zeros.
"""

import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from stripectl.compile.toolchain import TOOLCHAINS, topology_arguments
from stripectl.hardware.placement import MeshPlacement, place_in_order, place_mesh
from stripectl.hardware.target import Target, parse_target

RECORDS = Path(__file__).with_suffix(".json")
FILL = r'= bf16\[(\d+),(\d+)\]\S* broadcast\(.*"estimated_cycles":"(\d+)"'
BFLOAT16 = 2  # bytes
WHOLE = (
    ("v4:4x4x4", 64),
    ("v5p:2x2x2", 8),
    ("v5p:2x2x4", 16),
    ("v5p:4x4x4", 64),
    ("v5p:4x4x8", 128),
    ("v5e:4x4", 16),
    ("v5e:16x16", 256),
    ("v6e:8x8", 64),
    ("v6e:16x16", 256),
    ("tpu7x:2x2x2", 16),
    ("tpu7x:4x4x2", 64),
    ("tpu7x:4x4x4", 128),
)


class Gather(NamedTuple):
    """A gather over some axes of a mesh on a target, whose devices have an order."""

    target: str
    mesh: tuple[tuple[str, int], ...]
    order: str
    axes: tuple[str, ...]


BOTH = ("ring", "ulysses")
GATHERS = [Gather(name, (("ring", n),), order, ("ring",)) for name, n in WHOLE for order in ("placed", "torus")] + [
    Gather("v5p:4x4x4", (("ring", 16), ("ulysses", 4)), "torus", ("ring",)),
    Gather("v5p:4x4x4", (("ring", 16), ("ulysses", 4)), "torus", ("ulysses",)),
    Gather("v5p:4x4x4", (("ring", 16), ("ulysses", 4)), "placed", ("ring",)),
    Gather("v5p:4x4x4", (("ring", 16), ("ulysses", 4)), "placed", BOTH),
    Gather("v5p:4x4x4", (("ring", 8), ("ulysses", 8)), "placed", ("ring",)),
    Gather("v5p:4x4x4", (("ring", 8), ("ulysses", 8)), "placed", BOTH),
    Gather("v5p:4x4x8", (("ring", 64), ("ulysses", 2)), "placed", ("ring",)),
]


def placement(gather: Gather) -> MeshPlacement:
    """The mesh of a gather on its target."""
    target = parse_target(gather.target)
    if gather.order == "placed":
        return place_mesh(target, gather.mesh)
    return place_in_order(target, gather.mesh, torus_order(target))


def torus_order(target: Target) -> list[int]:
    places = target.positions
    return sorted(range(len(places)), key=lambda k: (places[k].coords, places[k].core))


def read_program(text: str) -> dict[str, object]:
    """The algorithm of the only collective of a compiled program, and its zeros."""
    (line,) = (line for line in text.splitlines() if re.search(r" all-(gather|reduce)\(", line))
    if " all-reduce(" not in line:
        found = re.search(r'"emitter":"(\w+)"', line)
        return {"compiled": found[1] if found else "all-gather"}
    (rows, columns, cycles) = re.findall(FILL, text)[0]
    return {"compiled": "all-reduce", "fill_bytes": BFLOAT16 * int(rows) * int(columns), "fill_cycles": int(cycles)}


def compiled(gather: Gather) -> dict[str, object]:
    """The algorithm of a gather, from the compiler of its target."""
    os.environ.update(TOOLCHAINS["tpu"].environment)
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    target = parse_target(gather.target)
    devices = topologies.get_topology_desc(**topology_arguments(target)).devices
    names, sizes = zip(*gather.mesh, strict=True)
    mesh = Mesh(np.array(devices)[list(placement(gather).order)].reshape(sizes), names)
    sharding = NamedSharding(mesh, PartitionSpec(names, None))
    rows = jax.ShapeDtypeStruct((512 * len(devices), 4096), jnp.bfloat16, sharding=sharding)

    def gathered(part):
        return 2 * jax.lax.all_gather(part, gather.axes, tiled=True)

    own = sharding.spec
    program = jax.jit(jax.shard_map(gathered, mesh=mesh, in_specs=own, out_specs=own, check_vma=False))
    text = program.lower(rows).compile().as_text()
    return read_program(text or "")


if __name__ == "__main__":
    from one_by_one import record

    record(__file__, GATHERS, compiled, RECORDS, sys.argv[1:])
