"""tokamax_gpu: the attention of Google's tokamax for Hopper GPUs. Installed by stripectl[tokamax].

It is written in Pallas for Mosaic GPU. It skips dead tiles under a causal mask, and has no windows here. Its blocks are
the library's own choice for a call that was not tuned.
"""

from stripectl.compat import why_no_tokamax
from stripectl.core.kernel import Capability, Kernel
from stripectl.core.kernel_costs import KernelCosts
from stripectl.core.plan import Plan
from stripectl.core.reason import Reason
from stripectl.core.validation import why_not_whole_sequences
from stripectl.core.workload import Workload
from stripectl.kernels.cudnn import COUNTED, SHARING

HOPPER, HEAD_UNIT, MAX_HEAD_DIM = 9, 16, 256


def why_unsupported(workload: Workload, plan: Plan, kind: str, capability: Capability | None = None) -> Reason | None:
    if kind != "gpu":
        return Reason.unsupported("tokamax_gpu runs on GPUs", "Try --kernel tokamax on TPUs, or --kernel xla.")
    if capability is not None and capability[0] != HOPPER:
        found = ".".join(map(str, capability))
        return Reason.unsupported(
            f"tokamax_gpu runs on Hopper GPUs (compute capability 9.0), not on {found}", "Try --kernel cudnn."
        )
    if workload.dtype != "bfloat16":
        return Reason.unsupported(
            f"tokamax_gpu does not compute {workload.dtype}", "Try --dtype bfloat16, or --kernel xla."
        )
    heads = {workload.head_dim, workload.value_dim}
    if any(size % HEAD_UNIT or size > MAX_HEAD_DIM for size in heads):
        sizes = " and ".join(map(str, sorted(heads)))
        need = f"multiples of {HEAD_UNIT}, up to {MAX_HEAD_DIM}"
        return Reason.unsupported(
            f"tokamax_gpu takes head sizes that are {need}, not heads of size {sizes}", "Try --kernel xla."
        )
    if workload.window.left is not None:
        return Reason.unsupported("tokamax_gpu has causal and full masks here, but no windows", "Try --kernel xla.")
    return why_not_whole_sequences("tokamax_gpu", workload)


about = Kernel(
    "tokamax_gpu",
    paper="https://github.com/openxla/tokamax",
    family="softmax",
    default_tile=lambda kind: COUNTED,
    why_unsupported=why_unsupported,
    why_missing=lambda: Reason.not_installed(why_no_tokamax("cudnn")),
    counting_tile=COUNTED,
    returns_result=True,
    roundings=lambda head_dim: 1,  # of the results of rectangles
    costs=KernelCosts(
        rows_per_fetch=SHARING,
        # Rows come before heads in the library: queries, outputs and their gradients are copied.
        moved_bytes_per_element={"forward": 8, "backward": 16},
        # Outputs merge in float32; backward, an output is built so that the library computes the given delta.
        merged_bytes_per_element={"forward": 10, "backward": 18},
    ),
)
