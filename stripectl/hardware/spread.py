"""How a collective spreads over the links of a torus, where the devices of its group fill a box of chips.

TPU compilers gather over all sides of the torus at once only where the devices follow the torus (`follow_torus`). In
any other order they gather round one ring or, over a whole slice whose links make that faster, sum arrays that are zero
but for a device's part (libtpu 0.0.42: benchmarks/gather_order.py).
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from stripectl.hardware.target import Position, Target


class Spread(NamedTuple):
    """The links that a collective uses. `ways` links bring the data of an all-reduce to a device, over all sides of the
    box at once; `load` is the data of an all-to-all on the busiest link, as a fraction of all data that a device
    exchanges. `gather_ways` links bring the data of an all-gather, or None where it is compiled as an all-reduce."""

    ways: float
    load: float
    gather_ways: float | None


class BoxSide(NamedTuple):
    """A side of a box of chips: chips, the number of groups of devices that share its links, and whether its links
    close a ring. Data arrives from both directions where they do, otherwise from one."""

    length: int
    stride: float
    closed: bool

    @property
    def directions(self) -> int:
        return 2 if self.closed else 1


def spread_over(target: Target, group: Sequence[Position]) -> Spread | None:
    """The spread over a group of devices of one slice, in the order of their mesh; None where they fill no box."""
    if (sides := sides_of_box(target, group)) is None:
        return None
    wide = [side for side in sides if side.length > 1]
    if not wide:
        return None
    ways = sum(side.directions / side.stride for side in wide)
    load = max(side.length / (4 * side.directions) * side.stride for side in wide)
    return Spread(ways, load, gather_ways(target, group, wide, ways))


def sides_of_box(target: Target, group: Sequence[Position]) -> list[BoxSide] | None:
    """The sides of the box that devices fill. Groups with interleaved devices share links, as do the cores of a chip
    that belong to different groups."""
    along = [sorted({each.coords[side] for each in group}) for side in range(len(target.shape))]
    cores = len({each.core for each in group})
    if math.prod(map(len, along)) * cores != len(group):
        return None
    sides = list[BoxSide]()
    for at, size, wraps in zip(along, target.shape, target.wrap, strict=True):
        step = at[1] - at[0] if len(at) > 1 else 1
        closed = wraps and step * len(at) == size and len(at) > 2
        sides.append(BoxSide(len(at), step * target.hardware.devices_per_chip / cores, closed))
    return sides


def gather_ways(target: Target, group: Sequence[Position], wide: Sequence[BoxSide], ways: float) -> float | None:
    """The links of an all-gather (`Spread`), over a box with these sides of several chips."""
    alike = all(side.closed for side in wide) or all(side.length == 2 for side in wide)
    if alike and len(wide) <= target.hardware.gather_dims and follow_torus([each.coords for each in group]):
        return ways
    cycle = len(wide) > 1 and any(side.length % 2 == 0 for side in wide)
    ring = (2 if cycle or wide[0].closed else 1) / max(side.stride for side in wide)
    return None if len(group) == target.slice_devices and ways / 2 > ring else ring


def follow_torus(coords: Sequence[tuple[int, ...]]) -> bool:
    """Whether chips are in the order of their coordinates, with the sides of the torus in any order, each ascending."""
    sides = range(len(coords[0]))
    return any(
        all(a <= b for a, b in itertools.pairwise([tuple(at[side] for side in order) for at in coords]))
        for order in itertools.permutations(sides)
    )
