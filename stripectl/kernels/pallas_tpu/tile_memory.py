"""The memory of a TPU core (VMEM) that a tile of stripectl's Pallas attention takes.

A kernel holds its blocks, two slots for the accumulators of a line, and, backward, dQ for many rows. Forward, the heads
of a group share a row of tiles, so blocks grow with the group. The compiler adds room for the scores of the keys that
are multiplied at once. `benchmarks/tile_memory.py` asks the compiler for the sums, and a test compares them.
"""

import math

from stripectl.core.kernel import BLOCK_COPIES, LANES, padded_to_lanes
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.workload import DTYPE_BYTES, Workload

VMEM_BYTES = 64 * 2**20  # the most that a kernel may use, where a core has as much
DQ_BYTES = 4 * 2**20  # for dQ; a v4 core has 16 MiB in total
COMPUTE = 512  # keys that are multiplied at once, where the plan does not say
COPIES = {"forward": 1.2, "backward": 1.3}  # of the scores at once, for which the compiler reserves room
WIDE = {"forward": 0.5, "backward": 2}  # likewise of a result, for each column of a head above 128
SLOTS = 2  # of an accumulator, for two lines
FLOAT32 = DTYPE_BYTES["float32"]


def keys_at_once(tile: Tile) -> int:
    """Keys that are multiplied at once, out of the block_kv that is fetched."""
    return tile.block_kv_compute or math.gcd(tile.block_kv, COMPUTE)


def dq_rows(group: int, head: int) -> int:
    """The most rows of a query head whose dQ a kernel holds, if a tile has no more rows."""
    return DQ_BYTES // (group * max(head, LANES) * FLOAT32)


def forward_bytes(tile: Tile, heads: tuple[int, int], group: int, width: int) -> int:
    """Bytes of the blocks and accumulators of the forward pass for heads of keys and of values with elements of `width`
    bytes: Q, K and V; the output, a row's maxima and sums, and both again by lanes."""
    rows, (head, v_head) = tile.block_q * group, map(padded_to_lanes, heads)
    blocks = (rows * head + tile.block_kv * (head + v_head)) * width
    return BLOCK_COPIES * blocks + rows * (SLOTS * (v_head + 2) + 2 * LANES) * FLOAT32


def backward_bytes(tile: Tile, heads: tuple[int, int], group: int, width: int, rows: int) -> int:
    """Likewise of the backward pass, over `rows` rows of queries: Q, dO, K, V, the log-sum-exp and delta; dK and dV;
    dQ."""
    head, v_head = map(padded_to_lanes, heads)
    padded = -(-rows // tile.block_q) * tile.block_q
    held = max(tile.block_q, min(padded, dq_rows(group, heads[0])))
    blocks = sum(tile.sides) * (head + v_head) * width + tile.block_q * 2 * FLOAT32
    sums = SLOTS * tile.block_kv * (head + v_head) + held * group * head
    return BLOCK_COPIES * blocks + sums * FLOAT32


def vmem_bytes(workload: Workload, plan: Plan, passes: str, cores: int) -> int:
    """Bytes that a tile of the pass takes."""
    tile, heads, width = plan.tiles[passes], (workload.head_dim, workload.value_dim), DTYPE_BYTES[workload.dtype]
    group, rows = workload.heads // workload.kv_heads, sequence_sharding(workload, plan).query_rows
    if passes == "forward":
        held = forward_bytes(tile, heads, group, width)
    else:
        held = backward_bytes(tile, heads, group, width, rows)
    return held + score_bytes(tile, heads, passes)


def score_bytes(tile: Tile, heads: tuple[int, int], passes: str) -> int:
    """Bytes that the compiler reserves for scores, and for results of matmuls with heads above 128: at most, over the
    tiles of `benchmarks/tile_memory.json`."""
    wide = max(map(padded_to_lanes, heads)) - LANES
    return int(tile.block_q * (COPIES[passes] * keys_at_once(tile) + WIDE[passes] * wide) * FLOAT32)
