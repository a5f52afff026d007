"""What links give the hops and collectives of a mesh."""

from typing import NamedTuple

import numpy as np


class Hops(NamedTuple):
    """What every hop of an axis costs: `[0, i]` the one from place i to the next, `[1, i]` to the previous."""

    bytes_per_s: np.ndarray
    latency_s: np.ndarray


class Spread(NamedTuple):
    """What a collective over some axes of a mesh finds on a torus, where their devices lie on a box of it: it can use
    the links of all of the box's sides at once. `ways` links bring a device what is gathered; `load` is what the
    busiest link carries of an all-to-all, as a part of all that a device exchanges."""

    ways: float
    load: float
