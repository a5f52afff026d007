"""The memory that a tile of tokamax's splash attention takes: of a TPU core (VMEM), and for partial sums of dQ.

Blocks of arguments and results have two copies, since they are loaded and stored while another tile is computed.
Compiled by libtpu 0.0.50.1 for v6e and TPU7x, a backward tile of 2048x2048x512 with heads of 256 takes 38.2 MiB, and
a tile of 1024x2048x1024 takes 33.3 MiB; this arithmetic says 38.4 and 33.2.
"""

import math

from stripectl.core.kernel import BLOCK_COPIES, LANES, SUBLANES
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.workload import DTYPE_BYTES, Workload

DQ_SUMS = 3  # partial sums of dQ, with more columns of tiles than that; with as few, each column has its own
FLOAT32 = DTYPE_BYTES["float32"]


def dq_sums(keys: int, tile: Tile) -> tuple[int, int]:
    """(the partial sums of dQ, the arrays of their size that are read and written for them). Each is read, and their
    sum is written; where a grid lists live tiles, zeros are written first."""
    if lists_live_tiles(keys, tile):
        return DQ_SUMS, 2 * DQ_SUMS + 1
    columns = math.ceil(keys / tile.block_kv)
    return columns, columns + 1


def lists_live_tiles(keys: int, tile: Tile) -> bool:
    """Whether the grid of a backward pass lists live tiles, as the library's does: with few columns of tiles, it holds
    dead tiles too, and gradients of grouped heads are added in a core's memory."""
    return math.ceil(keys / tile.block_kv) > DQ_SUMS


def vmem_bytes(workload: Workload, plan: Plan, passes: str, cores: int) -> int:
    """Bytes that a tile of the pass takes."""
    tile, width = plan.tiles[passes], DTYPE_BYTES[workload.dtype]
    at_once = tile.block_kv_compute or tile.block_kv
    head, v_head = workload.head_dim, workload.value_dim
    queries, keys, both = tile.block_q * width, tile.block_kv * width, head + v_head
    per_row = tile.block_q * SUBLANES * FLOAT32  # a value per row, such as the log-sum-exp
    scores = tile.block_q * at_once * FLOAT32
    if passes == "forward":
        blocks = (queries + keys) * both + 2 * per_row  # Q and the output, K and V; positions and the log-sum-exp
        return BLOCK_COPIES * blocks + tile.block_q * (2 * LANES + v_head) * FLOAT32 + scores
    lists = lists_live_tiles(sequence_sharding(workload, plan).key_piece, tile)
    blocks = (queries + keys) * both + 3 * per_row  # Q and dO, K and V; positions, the log-sum-exp and delta
    blocks += queries * head * (2 if lists else 1)  # dQ, and what it is added to
    grouped = workload.heads > workload.kv_heads
    blocks += tile.block_kv * both * (2 * FLOAT32 if lists and grouped else width)  # dK and dV likewise
    sums = tile.block_kv * both + (0 if at_once == tile.block_kv else tile.block_q * head)
    return BLOCK_COPIES * blocks + sums * FLOAT32 + scores
