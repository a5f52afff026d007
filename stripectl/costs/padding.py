"""The copies of a kernel's call that pads rows of a shard to its tile."""

from typing import NamedTuple

ACCUMULATOR_BYTES = 4


class PaddingTraffic(NamedTuple):
    """Bytes that the copies of a call hold in memory, and bytes that it reads and writes for them."""

    held: float
    moved: float


def padding_traffic(
    passes: str, queries: float, keys: float, itemsize: int, result_bytes: int = ACCUMULATOR_BYTES
) -> PaddingTraffic:
    """The copies of a call over `queries` elements of queries and `keys` elements of keys and values: its arguments are
    copied, and its results too, by default in float32, before with padding and afterwards without."""
    arguments, results = (1, 1) if passes == "forward" else (2, 1)  # of the size of the queries
    written = results * queries * result_bytes
    held = (arguments * queries + keys) * itemsize + written
    gradients = keys * result_bytes if passes == "backward" else 0
    return PaddingTraffic(held + gradients, 2 * (held + written + gradients))
