"""Whether the tiles of a plan fit into the memory of a TPU core (VMEM)."""

import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from stripectl.core.kernel import MIN_TILE_ROWS, Kernel, kernels
from stripectl.core.layer_groups import layer_groups
from stripectl.core.layout import Tile
from stripectl.core.plan import TILE_OF_PASS, Plan
from stripectl.core.reason import Reason, ReasonKind
from stripectl.core.workload import Workload
from stripectl.hardware.profile import Hardware
from stripectl.util.units import nbytes

VMEM_FLAG = "xla_tpu_scoped_vmem_limit_kib"
OTHERS = ("pallas_tpu", "splash", "xla")  # kernels to try, in this order
MIB, KIB_OF_MIB = 2**20, 2**10


def why_tile_exceeds_core(
    plan: Plan, workload: Workload, hardware: Hardware, flags: Mapping[str, str]
) -> Reason | None:
    """Why a tile of a plan that names its tile does not fit into the memory that the compiler gives a kernel on a core,
    or None."""
    for (_, own, each), which in itertools.product(layer_groups(workload, plan), workload.kernel_passes):
        limit, needed = limit_bytes(kernels[each.kernel], hardware, flags), needed_bytes(own, each, which, hardware)
        if needed is not None and limit is not None and needed > limit:
            return Reason(
                ReasonKind.MEMORY,
                f"the {which} tile {each.tiles[which]} of {each.kernel} takes {nbytes(needed)} of a core's memory, "
                f"and the compiler gives a kernel {nbytes(limit)}",
                f"Try {advice(own, each, which, hardware, flags)}.",
            )
    return None


def needed_bytes(workload: Workload, plan: Plan, passes: str, hardware: Hardware) -> int | None:
    """The memory of a core that the tile of a pass takes; None for a kernel whose tiles always fit."""
    kernel = kernels[plan.kernel]
    return kernel.costs.vmem_bytes and kernel.costs.vmem_bytes(workload, plan, passes, hardware.cores)


def limit_bytes(kernel: Kernel, hardware: Hardware, flags: Mapping[str, str]) -> float | None:
    """The memory of a core that the compiler gives a kernel: as much as the kernel asks for, or the compiler's limit,
    but no more than a core has. None where no figure is known."""
    known = kernel.costs.vmem_wanted or compiler_limit_bytes(hardware, flags), hardware.figure("vmem_bytes")
    return min(filter(None, known), default=None)


def compiler_limit_bytes(hardware: Hardware, flags: Mapping[str, str]) -> float | None:
    """The memory of a core that the compiler gives a kernel which does not ask for more: by a flag of the plan, by a
    flag of the environment, or by default."""
    around = re.findall(rf"{VMEM_FLAG}=(\d+)", os.environ.get("LIBTPU_INIT_ARGS", ""))
    given = flags.get(VMEM_FLAG, around[-1] if around else "")
    return int(given) * 2**10 if given.isdecimal() else hardware.figure("vmem_limit_bytes")


def advice(workload: Workload, plan: Plan, passes: str, hardware: Hardware, flags: Mapping[str, str]) -> str:
    """Ways to fit into a core in place of the tile of a pass: a smaller tile, a raised limit, or another kernel."""
    kernel, option = kernels[plan.kernel], TILE_OF_PASS[passes]
    limit, has = limit_bytes(kernel, hardware, flags) or 0, hardware.figure("vmem_bytes") or 0
    smaller = (
        f"{option}={tile}"
        for tile in halved(plan.tiles[passes])
        if (needed_bytes(workload, plan.with_tile_of_pass(passes, tile), passes, hardware) or 0) <= limit
    )
    most = most_needed_bytes(workload, plan, hardware)
    raised = [f"--xla-flag {VMEM_FLAG}={flag_for(most)}"] if most <= has else []
    other = (f"--kernel {name}" for name in other_kernels(workload, plan, passes, hardware, flags))
    ways = [*itertools.islice(smaller, 1), *([] if kernel.costs.vmem_wanted else raised), *itertools.islice(other, 1)]
    return " or ".join(ways) or "fewer query heads per key/value head"


def most_needed_bytes(workload: Workload, plan: Plan, hardware: Hardware) -> int:
    """The memory of a core that the tile of one pass takes, of the pass that takes most."""
    return max(needed_bytes(workload, plan, each, hardware) or 0 for each in workload.kernel_passes)


def flag_for(needed: int) -> str:
    """The value of the flag that gives a kernel `needed` bytes: a number of KiB, in whole MiB."""
    return str(math.ceil(needed / MIB) * KIB_OF_MIB)


def other_kernels(
    workload: Workload, plan: Plan, passes: str, hardware: Hardware, flags: Mapping[str, str]
) -> Iterator[str]:
    """Kernels that run the plan with this tile."""
    for name in OTHERS:
        kernel, other = kernels[name], replace(plan, kernel=name)
        limit, needed = limit_bytes(kernel, hardware, flags), needed_bytes(workload, other, passes, hardware)
        fits = needed is None or (limit is not None and needed <= limit)
        if name != plan.kernel and fits and kernel.why_unsupported(workload, other, hardware.kind, None) is None:
            yield name


def halved(tile: Tile) -> Iterator[Tile]:
    """Smaller and smaller tiles, after the tile itself: the longer side has half the rows each time."""
    yield tile
    while max(tile.sides) > MIN_TILE_ROWS:
        q, kv = tile.sides
        q, kv = (q // 2, kv) if q > kv else (q, kv // 2)
        tile = Tile(q, kv, tile.block_kv_compute and math.gcd(kv, tile.block_kv_compute))
        yield tile
