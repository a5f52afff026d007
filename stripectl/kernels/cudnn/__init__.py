"""cudnn: NVIDIA's cuDNN attention on GPUs, by JAX's primitives for it.

It chooses tiles itself and passes over dead ones, so a plan names none. XLA's compiler hands its calls on unread, and
asks the library only where there is a GPU: what it says ahead of time leaves out the library's workspace in memory.
"""

from typing import Any

from stripectl.core.kernel import Kernel, why_not_whole_sequences
from stripectl.core.layout import Tile

# What a time from a datasheet takes for granted, since the library's own are not published: the tiles of
# FlashAttention-2 (arXiv:2307.08691, section 3.3), and of a GPU's hundred multiprocessors, each with a row of them, so
# many that find the same keys in the cache.
COUNTED, SHARING = Tile(128, 128), 64
MOST, UNIT = 128, 8  # of head_dim, on every GPU: JAX's check_is_flash_attention


def why_unsupported(workload: Any, plan: Any, kind: str) -> str | None:
    if kind != "gpu":
        return "cudnn runs on GPUs. Try --kernel xla."
    if workload.dtype != "bfloat16":
        return f"cudnn takes no {workload.dtype}. Try --dtype bfloat16, or --kernel xla."
    if workload.head_dim > MOST or workload.head_dim % UNIT:
        return f"cudnn takes heads of multiples of {UNIT} up to {MOST}, not of {workload.head_dim}. Try --kernel xla."
    if workload.value_dim != workload.head_dim:
        return "cudnn takes value heads as large as key heads. Try --kernel xla."
    if workload.window.left is not None:
        return "cudnn has causal and full masks, no windows. Try --kernel xla."
    return why_not_whole_sequences("cudnn", workload)


about = Kernel(
    "cudnn",
    paper="https://arxiv.org/abs/2307.08691",
    family="softmax",
    default_tile=lambda kind: COUNTED,
    why_unsupported=why_unsupported,
    counting_tile=COUNTED,
    rows_per_fetch=SHARING,
    moved_bytes_per_element={
        "forward": 10,
        "backward": 18,
    },  # merged in float32; backward an output is made that has the delta given
)
