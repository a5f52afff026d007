"""cudnn: NVIDIA's cuDNN attention on GPUs, called through JAX's primitives.

cuDNN chooses its own tiles and skips dead tiles, so a plan names no tile. XLA's compiler passes the calls on without
reading them and asks the library only where a GPU is present, so a figure for memory that is compiled ahead of time
does not include the library's workspace.
"""

from stripectl.core.kernel import Capability, Kernel
from stripectl.core.kernel_costs import KernelCosts
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan
from stripectl.core.reason import Reason
from stripectl.core.workload import Workload

# Assumptions of a time from a datasheet, because the library does not publish its tiles: the tiles of FlashAttention-2
# (arXiv:2307.08691, section 3.3), and, of a GPU's hundred multiprocessors with a row of tiles each, the number that
# find the same keys in the cache.
COUNTED, SHARING = Tile(128, 128), 64
# Heads that the library takes: JAX's check_is_flash_attention (jax/_src/cudnn, JAX 0.10 and 0.12: up to 256 from
# compute capability 9.0 on, in both passes), and for backward passes on Blackwell the support matrix of cuDNN 9.18
# (docs.nvidia.com/cudnn/operations/Attention): up to 128, or 256. JAX's wheels bring cuDNN 9.12 or later, which has
# value heads of another size (9.10) and capability 10.3 (9.11).
UNIT, MAX_HEAD_DIM, MAX_HEAD_DIM_BEFORE_HOPPER, MAX_BACKWARD_HEAD_DIM_ON_BLACKWELL = 8, 256, 128, 128
HOPPER, BLACKWELL = (9, 0), (10, 0)
OF_TWO_SIZES = (192, 128)  # heads of queries and keys, and of values, in DeepSeek's models: the only pair of two sizes


def why_heads_unsupported(workload: Workload, capability: Capability | None) -> Reason | None:
    """Why the library cannot compute heads of these sizes. A GPU that is not known may have any capability."""
    keys, values, known = workload.head_dim, workload.value_dim, capability or HOPPER
    most = MAX_HEAD_DIM if known >= HOPPER else MAX_HEAD_DIM_BEFORE_HOPPER
    gpu = f" on a GPU of compute capability {capability[0]}.{capability[1]}" if capability else ""
    takes = None
    if keys != values:
        if known < HOPPER:
            takes = "value heads as large as key heads"
        elif (keys, values) != OF_TWO_SIZES:
            takes = "value heads as large as key heads, or value heads of {1} and keys of {0}".format(*OF_TWO_SIZES)
    elif keys > most or keys % UNIT:
        takes = f"head sizes that are multiples of {UNIT}, up to {most}"
    elif (
        workload.passes != "forward" and known >= BLACKWELL and MAX_BACKWARD_HEAD_DIM_ON_BLACKWELL < keys < MAX_HEAD_DIM
    ):
        takes = f"head sizes up to {MAX_BACKWARD_HEAD_DIM_ON_BLACKWELL}, or {MAX_HEAD_DIM}, in the backward pass"
    sizes = f"size {keys}" if keys == values else f"size {keys} with values of size {values}"
    return Reason.unsupported(f"cudnn takes {takes}{gpu}, not heads of {sizes}", "Try --kernel xla.") if takes else None


def why_unsupported(workload: Workload, plan: Plan, kind: str, capability: Capability | None = None) -> Reason | None:
    if kind != "gpu":
        return Reason.unsupported("cudnn runs on GPUs", "Try --kernel xla.")
    if workload.dtype != "bfloat16":
        return Reason.unsupported(f"cudnn does not compute {workload.dtype}", "Try --dtype bfloat16, or --kernel xla.")
    if reason := why_heads_unsupported(workload, capability):
        return reason
    if workload.window.left is not None:
        return Reason.unsupported("cudnn has causal and full masks, but no windows", "Try --kernel xla.")
    if workload.documents is not None:
        return Reason.unsupported("cudnn has masks for whole sequences, but not for documents", "Try --kernel xla.")
    if workload.query_len is not None and workload.query_len > 1 and workload.mask != "full" and plan.shards > 1:
        return Reason.unsupported(
            f"cudnn computes {workload.query_len} queries behind a cached prefix only where one shard holds all keys, "
            f"not {plan.shards} shards",
            "Try --mesh ring=1, or --kernel xla.",
        )
    return None


about = Kernel(
    "cudnn",
    paper="https://arxiv.org/abs/2307.08691",
    family="softmax",
    default_tile=lambda kind: COUNTED,
    why_unsupported=why_unsupported,
    counting_tile=COUNTED,
    returns_result=True,
    roundings=lambda head_dim: 1,  # of the results of rectangles
    costs=KernelCosts(
        hides_workspace=True,
        rows_per_fetch=SHARING,
        # Outputs merge in float32; backward, an output is built so that the library computes the given delta.
        merged_bytes_per_element={"forward": 10, "backward": 18},
    ),
)
