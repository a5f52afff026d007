"""Whether the tiles of a plan fit into the memory of a TPU core (VMEM)."""

import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from stripectl.core.kernel import MIN_TILE_ROWS, kernels
from stripectl.core.layer_groups import layer_groups
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan
from stripectl.core.workload import Workload
from stripectl.hardware.profile import Hardware
from stripectl.util.units import nbytes

VMEM_FLAG = "xla_tpu_scoped_vmem_limit_kib"
TILE_OPTIONS = {"forward": "tile", "backward": "backward"}  # of a plan, by pass


def why_tile_exceeds_core(plan: Plan, workload: Workload, hardware: Hardware, flags: Mapping[str, str]) -> str | None:
    """Why a tile of a plan that names its tile does not fit into the memory that the compiler gives a kernel on a core,
    or None."""
    limit, passes = vmem_limit_bytes(hardware, flags), list(TILE_OPTIONS)[: 1 if workload.passes == "forward" else 2]
    for (_, own, each), which in itertools.product(layer_groups(workload, plan), passes):
        kernel, tile, option = kernels[each.kernel], each.tiles[which], TILE_OPTIONS[which]
        if kernel.vmem_bytes is None or limit is None:
            continue  # the kernel sets its limit itself, or the limit is not known
        needed = {size: kernel.vmem_bytes(own, replace(each, **{option: size}), which) for size in halved(tile)}
        if needed[tile] > limit:
            fits = next((f"{option}={size}" for size, taken in needed.items() if taken <= limit), "a smaller tile")
            return (
                f"the {which} tile {tile} of {each.kernel} takes {nbytes(needed[tile])} of a core's memory, and the "
                f"compiler gives a kernel {nbytes(limit)}. Try {fits}, or --kernel pallas_tpu."
            )
    return None


def vmem_limit_bytes(hardware: Hardware, flags: Mapping[str, str]) -> float | None:
    """The memory of a core that the compiler gives a kernel: by a flag of the plan, by a flag of the environment, or by
    default."""
    around = re.findall(rf"{VMEM_FLAG}=(\d+)", os.environ.get("LIBTPU_INIT_ARGS", ""))
    given = flags.get(VMEM_FLAG, around[-1] if around else "")
    return int(given) * 2**10 if given.isdecimal() else hardware.figure("vmem_limit_bytes")


def halved(tile: Tile) -> Iterator[Tile]:
    """The tile, and smaller and smaller tiles: the longer side has half the rows each time."""
    yield tile
    while max(tile.sides) > MIN_TILE_ROWS:
        q, kv = tile.sides
        q, kv = (q // 2, kv) if q > kv else (q, kv // 2)
        tile = Tile(q, kv, tile.block_kv_compute and math.gcd(kv, tile.block_kv_compute))
        yield tile
