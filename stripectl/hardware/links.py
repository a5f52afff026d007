"""The cost of a mesh's hops on links."""

from typing import NamedTuple

import numpy as np


class Hops(NamedTuple):
    """The cost of every hop of an axis: `[0, i]` from place i to the next place, `[1, i]` to the previous place.
    `network` marks the hops that leave a slice (a node of GPUs)."""

    bytes_per_s: np.ndarray
    latency_s: np.ndarray
    network: np.ndarray
