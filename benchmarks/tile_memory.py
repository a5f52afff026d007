"""The memory of a TPU core (VMEM) that tiles take, by the TPU compiler, with no TPU at hand.

    python benchmarks/tile_memory.py v5e v6e          # ten minutes each; alone: all

Each kernel of a pass is compiled alone, for a pair of long shards, with a limit just above its blocks and accumulators:
the compiler's error then says what it takes with its scores. A machine's rows replace its rows in tile_memory.json.
"""

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stripectl.compile.toolchain import TOOLCHAINS, topology_arguments
from stripectl.core.kernel import kernels
from stripectl.core.layout import UNBOUNDED, MaskBlock, Tile, parse_tile
from stripectl.core.workload import DTYPE_BYTES
from stripectl.hardware.profile import Hardware
from stripectl.hardware.target import Target
from stripectl.kernels.pallas_tpu import tile_memory as pallas_memory
from stripectl.kernels.splash import tile_memory as splash_memory

RECORDS = Path(__file__).with_suffix(".json")
ROWS, KV_HEADS = 2**15, 16  # so that no array fits into a core's memory
Shapes = Sequence[tuple[str, int, Sequence[str]]]  # heads, query heads per key/value head, tiles
TILES = ("512", "1024", "256", "512x1024", "1024x512", "1024x2048", "2048x1024", "2048", "1024x1024x1024")
ALL: Shapes = [
    ("128", 1, TILES),
    *((heads, 1, ("1024", "2048x1024")) for heads in ("64", "256", "192/128")),
    ("128", 8, ("512", "1024")),
]
# Blocks are the same on all machines; only the room for scores differs.
FEW: Shapes = [("128", 1, ("1024", "2048x1024", "1024x2048", "2048")), ("256", 1, ("1024",))]
LARGE: Shapes = [("128", 1, ("4096x1024", "1024x4096")), ("256", 1, ("2048x1024", "2048"))]
SHAPES = {"v4": ALL, "v5e": FEW, "v5p": FEW, "v6e": [*FEW, *LARGE], "tpu7x": FEW}
SPLASH_GROUP = 4  # its kernels compute one query head at a time
DTYPE = "bfloat16"
SLACK_BYTES = 2**16  # above the blocks, for numbers per row
SIZE = re.compile(r"with size ([\d.]+)M and limit|[Uu]sed ([\d.]+)M of [\d.]+M")


class Row(NamedTuple):
    """The memory of a tile in MiB; None where the compiler needs no more than the blocks and accumulators."""

    machine: str
    kernel: str
    passes: str
    part: str
    heads: str
    group: int
    tile: str
    blocks_mib: float
    mib: float | None


def arrays(group: int, heads: tuple[int, int]) -> dict[str, tuple[tuple[int, ...], str]]:
    """(shape, dtype) of the arrays of a pair of shards, without the batch."""
    n, (head, v_head) = KV_HEADS * group, heads
    sizes = {"q": (n, head), "k": (KV_HEADS, head), "v": (KV_HEADS, v_head), "dout": (n, v_head)}
    given = {name: ((of, ROWS, width), DTYPE) for name, (of, width) in sizes.items()}
    rows = dict.fromkeys(("lse", "delta", "max", "sum"), ((n, ROWS), "float32"))
    return {**given, **rows, "out": ((n, ROWS, v_head), "float32"), "dq": ((n, ROWS, head), "float32")}


def band(masked: bool) -> MaskBlock:
    return MaskBlock(0, 0, ROWS, ROWS, -UNBOUNDED, 0 if masked else UNBOUNDED, aligned=ROWS)


def splash_parts(tile: Tile) -> Iterator[tuple[str, str, bool, Callable, str]]:
    """(pass, kernel, whether it masks, its function, the names of its arrays)."""
    kernel, backward = kernels["splash"].load(), "q k v lse dout delta"

    def gradient(masked: bool, which: slice) -> Callable:
        return lambda *given: kernel.differentiate(band(masked), tile, masked, False, *given)[which]

    for masked in (True, False):

        def attend(*given: Any, masked: bool = masked) -> Any:
            return kernel.attend(band(masked), tile, masked, False, *given)

        yield "forward", "fwd", masked, attend, "q k v"
        yield "backward", "dq", masked, gradient(masked, slice(0, 1)), backward
        yield "backward", "dkv", masked, gradient(masked, slice(1, 3)), backward


def pallas_parts(tile: Tile) -> Iterator[tuple[str, Callable, str]]:
    """(pass, function, the names of its arrays)."""
    kernel = kernels["pallas_tpu"].load()
    yield "forward", lambda q, k, v, *state: kernel.forward(q, k, v, state, [band(True)], tile), "q k v out max sum"
    backward = "q k v dout lse delta dq"
    yield "backward", lambda *given: kernel.backward(*given, [band(True)], tile), backward


def needed_mib(device: Any, function: Callable, shapes: Sequence[tuple[tuple[int, ...], str]], options: Any):
    """MiB that the compiler says a program takes; None where it compiles."""
    import jax
    import numpy as np

    sharding = jax.sharding.SingleDeviceSharding(device)
    given = [jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for shape, dtype in shapes]
    try:
        with jax.set_mesh(jax.sharding.Mesh(np.array([device]), ("device",))):
            jax.jit(function).lower(*given).compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        found = SIZE.search(str(error))
        if found is None:
            raise
        return float(found[1] or found[2])
    return None


def splash_rows(machine: str, device: Any, heads: str, tile: Tile) -> Iterator[Row]:
    sizes = sizes_of(heads)
    known = arrays(SPLASH_GROUP, sizes)
    for passes, part, masked, function, names in splash_parts(tile):
        blocks = splash_memory.block_bytes(part, tile, sizes, DTYPE_BYTES[DTYPE], masked)
        flags = {"xla_tpu_scoped_vmem_limit_kib": str((blocks + SLACK_BYTES) // 2**10)}
        found = needed_mib(device, function, [known[name] for name in names.split()], flags)
        full = f"{part} {'masked' if masked else 'whole'}"
        yield Row(machine, "splash", passes, full, heads, SPLASH_GROUP, str(tile), blocks / 2**20, found)


def pallas_rows(machine: str, device: Any, heads: str, group: int, tile: Tile) -> Iterator[Row]:
    from stripectl.kernels.pallas_tpu import grid

    sizes, width = sizes_of(heads), DTYPE_BYTES[DTYPE]
    known = {name: ((1, *shape), kind) for name, (shape, kind) in arrays(group, sizes).items()}
    for passes, function, names in pallas_parts(tile):
        blocks = (
            pallas_memory.forward_bytes(tile, sizes, group, width)
            if passes == "forward"
            else pallas_memory.backward_bytes(tile, sizes, group, width, ROWS)
        )
        grid.VMEM_BYTES = blocks + SLACK_BYTES
        found = needed_mib(device, function, [known[name] for name in names.split()], {})
        yield Row(machine, "pallas_tpu", passes, passes, heads, group, str(tile), blocks / 2**20, found)


def sizes_of(heads: str) -> tuple[int, int]:
    keys, _, values = heads.partition("/")
    return int(keys), int(values or keys)


def device_of(machine: str) -> Any:
    """A described device of a machine."""
    from jax.experimental import topologies

    hardware = Hardware.load(machine)
    small = next(each for each in hardware.slices if math.prod(each) >= 4)
    return topologies.get_topology_desc(**topology_arguments(Target(hardware, small))).devices[0]


def rows_of(machine: str) -> Iterator[Row]:
    device = device_of(machine)
    for heads, group, tiles in SHAPES[machine]:
        for tile in map(parse_tile, tiles):
            yield from pallas_rows(machine, device, heads, group, tile)
            if group == 1:
                yield from splash_rows(machine, device, heads, tile)


def main(names: Sequence[str]) -> None:
    os.environ.update(TOOLCHAINS["tpu"].environment)
    for machine in names or SHAPES:
        kept = [row for row in records() if row.machine != machine] if RECORDS.exists() else []
        for row in rows_of(machine):
            print(*row, flush=True)
            kept.append(row)
            RECORDS.write_text("[\n" + ",\n".join(json.dumps(list(each)) for each in kept) + "\n]\n")


def records() -> list[Row]:
    return [Row(*each) for each in json.loads(RECORDS.read_text())]


if __name__ == "__main__":
    main(sys.argv[1:])
