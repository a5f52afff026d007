"""The cost of a mesh's hops and collectives on links."""

from typing import NamedTuple

import numpy as np


class Hops(NamedTuple):
    """The cost of every hop of an axis: `[0, i]` from place i to the next place, `[1, i]` to the previous place."""

    bytes_per_s: np.ndarray
    latency_s: np.ndarray


class Spread(NamedTuple):
    """A collective over some axes of a mesh on a torus, where their devices fill a box. `ways` links bring the data of
    an all-reduce to a device, over all sides of the box at once; `load` is the data of an all-to-all on the busiest
    link, as a fraction of all data that a device exchanges. `gathered` links bring the data of an all-gather, or None
    where it is compiled as an all-reduce of arrays that are zero but for a device's part."""

    ways: float
    load: float
    gathered: float | None
