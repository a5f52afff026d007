"""pallas_gated: the recurrences of `gated` in Pallas kernels for TPUs.

The states of some heads stay in VMEM from the first chunk of a shard to the last. The tile is a chunk.
"""

from typing import Any, Literal

from stripectl.core.kernel import Kernel
from stripectl.core.kernel_costs import KernelCosts, PallasKernel
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan
from stripectl.core.reason import Reason
from stripectl.core.workload import Workload
from stripectl.kernels.gated import count_chunks
from stripectl.kernels.gated import why_unsupported as why_not_gated

DEFAULT = Tile(128, 128)  # and the largest: a chunk's rows are unrolled
SUBLANES = 16  # rows of a register of bfloat16


def why_unsupported(workload: Workload, plan: Plan, kind: str, *_: Any) -> Reason | None:
    if kind != "tpu":
        return Reason.unsupported("pallas_gated runs on TPUs", "Try --kernel gated.")
    for option, tile in (("tile", plan.tile), ("backward", plan.backward)):
        if tile and (tile.block_kv % SUBLANES or tile.block_kv > DEFAULT.block_kv):
            most = f"at most {DEFAULT.block_kv} rows, in multiples of {SUBLANES}"
            return Reason.unsupported(f"pallas_gated needs chunks of {most}", f"Try {option}={SUBLANES}.")
    return why_not_gated(workload, plan, kind)


def chunks_kernel(name: str, kind: Literal["whole", "boundary"]) -> PallasKernel:
    return PallasKernel(f"stripectl_{name}_", matmuls=0, only_live=True, chunks=kind)


about = Kernel(
    "pallas_gated",
    paper="https://arxiv.org/abs/2406.06484",
    family="gated",
    default_tile=lambda kind: DEFAULT,
    why_unsupported=why_unsupported,
    count_tiles=count_chunks,
    tile_multiple=SUBLANES,
    min_default_rows=lambda kind: 64,
    fallback="gated",
    costs=KernelCosts(
        bundles={
            "forward": (chunks_kernel("map", "whole"), chunks_kernel("outputs", "boundary")),
            "backward": (
                chunks_kernel("transposed_map", "whole"),
                chunks_kernel("states", "boundary"),
                chunks_kernel("gradients", "boundary"),
            ),
        },
    ),
)
