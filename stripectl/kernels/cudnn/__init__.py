"""cudnn: NVIDIA's cuDNN attention on GPUs, by JAX's primitives for it.

It chooses tiles itself and passes over dead ones, so a plan names none. XLA's compiler hands its calls on unread, and
asks the library only where there is a GPU: what it says ahead of time leaves out the library's workspace in memory.
"""

from typing import Any

from stripectl.core.kernel import Capability, Kernel
from stripectl.core.layout import Tile

# What a time from a datasheet takes for granted, since the library's own are not published: the tiles of
# FlashAttention-2 (arXiv:2307.08691, section 3.3), and of a GPU's hundred multiprocessors, each with a row of them, so
# many that find the same keys in the cache.
COUNTED, SHARING = Tile(128, 128), 64
# Heads that the library takes: JAX's check_is_flash_attention (jax/_src/cudnn, JAX 0.10 and 0.12: up to 256 from
# compute capability 9.0 on, in both passes), and of backward passes on Blackwell the support matrix of cuDNN 9.18
# (docs.nvidia.com/cudnn/operations/Attention): up to 128, or 256. JAX's wheels bring cuDNN 9.12 or later, which has
# value heads of another size (9.10) and capability 10.3 (9.11).
UNIT, MAX_HEAD_DIM, MAX_HEAD_DIM_BEFORE_HOPPER, MAX_BACKWARD_HEAD_DIM_ON_BLACKWELL = 8, 256, 128, 128
HOPPER, BLACKWELL = (9, 0), (10, 0)
OF_TWO_SIZES = (192, 128)  # heads of queries and keys, and of values: DeepSeek's, the only ones of two sizes


def why_heads_unsupported(workload: Any, capability: Capability | None) -> str | None:
    """Why the library cannot compute heads of these sizes; a GPU that is not known may be of any capability."""
    keys, values, known = workload.head_dim, workload.value_dim, capability or HOPPER
    most = MAX_HEAD_DIM if known >= HOPPER else MAX_HEAD_DIM_BEFORE_HOPPER
    gpu = f" on a GPU of compute capability {capability[0]}.{capability[1]}" if capability else ""
    takes = None
    if keys != values:
        if known < HOPPER:
            takes = "value heads as large as key heads"
        elif (keys, values) != OF_TWO_SIZES:
            takes = "value heads as large as key heads, or of {1} beside keys of {0}".format(*OF_TWO_SIZES)
    elif keys > most or keys % UNIT:
        takes = f"heads of multiples of {UNIT} up to {most}"
    elif (
        workload.passes != "forward" and known >= BLACKWELL and MAX_BACKWARD_HEAD_DIM_ON_BLACKWELL < keys < MAX_HEAD_DIM
    ):
        takes = f"heads up to {MAX_BACKWARD_HEAD_DIM_ON_BLACKWELL}, or of {MAX_HEAD_DIM}, in its backward pass"
    sizes = keys if keys == values else f"{keys} with values of {values}"
    return f"cudnn takes {takes}{gpu}, not heads of {sizes}. Try --kernel xla." if takes else None


def why_unsupported(workload: Any, plan: Any, kind: str, capability: Capability | None = None) -> str | None:
    if kind != "gpu":
        return "cudnn runs on GPUs. Try --kernel xla."
    if workload.dtype != "bfloat16":
        return f"cudnn takes no {workload.dtype}. Try --dtype bfloat16, or --kernel xla."
    if reason := why_heads_unsupported(workload, capability):
        return reason
    if workload.window.left is not None:
        return "cudnn has causal and full masks, no windows. Try --kernel xla."
    if workload.documents is not None:
        return "cudnn has masks of whole sequences, no documents. Try --kernel xla."
    if workload.query_len is not None and workload.query_len > 1 and workload.mask != "full" and plan.shards > 1:
        return (
            f"cudnn meets {workload.query_len} queries behind a cached prefix on one shard of the keys, not on "
            f"{plan.shards}. Try --mesh ring=1, or --kernel xla."
        )
    return None


about = Kernel(
    "cudnn",
    paper="https://arxiv.org/abs/2307.08691",
    family="softmax",
    default_tile=lambda kind: COUNTED,
    why_unsupported=why_unsupported,
    counting_tile=COUNTED,
    rows_per_fetch=SHARING,
    # Merged in float32; backward an output is made that has the delta given.
    moved_bytes_per_element={"forward": 10, "backward": 18},
)
