"""The memory of a TPU core (VMEM) that a tile of JAX's splash attention takes.

A kernel holds its blocks and accumulators, which this module counts as the library declares them, and the scores of the
keys that it multiplies at once, for which the compiler reserves more or less room. `benchmarks/tile_memory.py` asks the
compiler for the sums, and a test compares them. Arrays are taken to be in the device's memory: the compiler may keep
arrays of short sequences in VMEM, and then a tile takes less.
"""

from stripectl.core.kernel import BLOCK_COPIES, LANES, SUBLANES, padded_to_lanes
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.workload import DTYPE_BYTES, Workload

# Keys that a kernel multiplies at once, out of the block_kv that it has fetched, where the plan does not say: under a
# mask, and without. In the forward pass, and by the compiler's bundles, the larger number is 1 to 7 % faster without a
# mask and slower with a mask: benchmarks/README.md "Tiles of Pallas kernels".
COMPUTE, COMPUTE_WHOLE = 512, 1024
FLOAT32 = DTYPE_BYTES["float32"]
# Copies of the scores at once for which the compiler reserves room, on a device with one core and with two, by kernel
# and whether it masks; of all scores of a tile, where it computes them in several steps.
COPIES = {
    ("fwd", True): (1.2, 1.2),
    ("fwd", False): (1.2, 1.2),
    ("dq", True): (1.05, 1.25),
    ("dq", False): (1.25, 1.4),
    ("dkv", True): (1.35, 2.25),
    ("dkv", False): (1.55, 1.55),
}
UNROLLED = {True: 0.8, False: 1.0}
MANY_KEYS, MANY_COPIES = 2048, 1.3  # of so many keys at once, at least as many copies
WIDE = 2  # copies of a result, for each column of a head above 128
KERNELS = {"forward": ("fwd",), "backward": ("dq", "dkv")}


def compute_size(tile: Tile, most: int) -> int:
    return tile.block_kv_compute or (most if tile.block_kv % most == 0 else tile.block_kv)


def keys_at_once(kernel: str, tile: Tile, masked: bool) -> int:
    """Keys that a kernel (`fwd`, `dq` or `dkv`) multiplies at once."""
    if kernel == "dq":
        return tile.block_kv
    return compute_size(tile, COMPUTE if masked or kernel == "dkv" else COMPUTE_WHOLE)


def block_bytes(kernel: str, tile: Tile, heads: tuple[int, int], width: int, masked: bool) -> int:
    """Bytes of the blocks and accumulators of a kernel (`fwd`, `dq` or `dkv`) for heads of keys and of values with
    elements of `width` bytes. A mask adds the position of each query."""
    (rows, columns), (head, v_head) = tile.sides, map(padded_to_lanes, heads)
    per_row, per_lane = rows * LANES * FLOAT32, rows * SUBLANES * FLOAT32
    inputs = (rows + columns) * (head + v_head) * width  # Q with the output or dO, K and V
    if kernel == "fwd":
        blocks, sums = inputs + per_row * (1 + masked), rows * (2 * LANES + v_head)  # the log-sum-exp
    elif kernel == "dq":
        blocks, sums = inputs + rows * head * width + 2 * per_lane + per_row * masked, rows * head
    else:
        blocks, sums = inputs + columns * (head + v_head) * width + per_lane * (2 + masked), columns * (head + v_head)
    return BLOCK_COPIES * blocks + sums * FLOAT32


def score_bytes(kernel: str, tile: Tile, heads: tuple[int, int], masked: bool, cores: int) -> float:
    """Bytes that the compiler reserves for scores, and for results of matmuls with heads above 128: at most, over the
    tiles of `benchmarks/tile_memory.json`."""
    at_once = keys_at_once(kernel, tile, masked)
    copies = max(COPIES[kernel, masked][cores > 1], MANY_COPIES if at_once >= MANY_KEYS else 0)
    if kernel == "fwd" and at_once < tile.block_kv:  # its steps are unrolled, and share little room
        at_once, copies = tile.block_kv, UNROLLED[masked]
    wide = max(map(padded_to_lanes, heads)) - LANES
    return tile.block_q * (copies * at_once + WIDE * wide) * FLOAT32


def vmem_bytes(workload: Workload, plan: Plan, passes: str, cores: int) -> int:
    """Bytes that a tile of the pass takes on a device with this number of cores: of the kernel that takes most."""
    tile, heads, width = plan.tiles[passes], (workload.head_dim, workload.value_dim), DTYPE_BYTES[workload.dtype]
    return int(
        max(
            block_bytes(kernel, tile, heads, width, masked) + score_bytes(kernel, tile, heads, masked, cores)
            for kernel in KERNELS[passes]
            for masked in whether_masked(workload, plan, tile)
        )
    )


def whether_masked(workload: Workload, plan: Plan, tile: Tile) -> tuple[bool, ...]:
    """Whether the kernels of a plan mask: they have both programs where a pair of shards decides at run time."""
    sharding = sequence_sharding(workload, plan)
    if sharding.key_piece % tile.block_kv:
        return (True,)
    if workload.window.sees_future:
        return (False,)
    return (True,) if sharding.shards == 1 else (True, False)
