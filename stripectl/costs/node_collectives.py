"""Collectives in a node of GPUs as others measured them with nccl-tests (`profiles/distilled/collectives.csv`).

A collective has a floor, the time of its smallest size, and then rises to the rate of its largest: at 2 MiB an H200
reaches a fifth of that rate. `nbytes` is the array that a device has after an all-gather, or before another operation.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from stripectl.hardware.profile import Hardware
from stripectl.util.files import table_rows

OPERATIONS = {
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "all-reduce": "all_reduce",
}
HOP = "all_gather", 2  # two devices that send each other their half: no row has a send alone
LARGE_HOP = 2**28  # bytes, for which a hop takes the rate of its link
SOURCE = "nccl-tests by NVIDIA, profiles/distilled/collectives.csv"


class Curve(NamedTuple):
    """Seconds by bytes, ascending."""

    nbytes: tuple[float, ...]
    seconds: tuple[float, ...]

    def at(self, nbytes: float) -> float:
        """Seconds of a size: interpolated in logarithms, and at the rate of the largest size beyond it."""
        beyond = max(1.0, nbytes / self.nbytes[-1])
        known = np.interp(math.log(max(nbytes, 1.0)), np.log(self.nbytes), np.log(self.seconds))
        return float(np.exp(known)) * beyond


class TimedCollective(NamedTuple):
    """Seconds in which links are busy, and seconds that a call takes whatever its size."""

    busy_s: float
    latency_s: float


@dataclass(frozen=True, eq=False)
class NodeCollectives:
    """Measured collectives of a node, by operation and number of devices; `rate` and `latency` are how much faster than
    measured bytes travel and calls begin."""

    curves: Mapping[tuple[str, int], Curve]
    rate: float = 1.0
    latency: float = 1.0

    def faster(self, rate: float, latency: float) -> "NodeCollectives":
        return replace(self, rate=self.rate * rate, latency=self.latency * latency)

    def collective(self, opcode: str, devices: int, nbytes: float) -> TimedCollective:
        """The time of a collective. A number of devices without rows has the curve of the nearest number, and links are
        busy in proportion to the bytes that leave a device."""
        operation = OPERATIONS[opcode]
        near = self._nearest(operation, devices)
        timed, sent = self._timed((operation, near), nbytes), (1 - 1 / devices) / (1 - 1 / near)
        return timed._replace(busy_s=timed.busy_s * sent)

    def hop(self, nbytes: float, devices: int = 2) -> TimedCollective:
        """The time of a hop: two devices send each other `nbytes`, or, where this takes longer, a round of the ring in
        which `devices` gather: over PCIe, all devices of a server share its bridges."""
        pair, operation = self._timed(HOP, 2 * nbytes), HOP[0]
        near = self._nearest(operation, devices)
        round_s = self._timed((operation, near), near * nbytes).busy_s / (near - 1)
        return pair._replace(busy_s=max(pair.busy_s, round_s))

    def _nearest(self, operation: str, devices: int) -> int:
        """The nearest number of devices with rows."""
        return min((n for of, n in self.curves if of == operation), key=lambda n: abs(math.log(n / devices)))

    def _timed(self, key: tuple[str, int], nbytes: float) -> TimedCollective:
        curve = self.curves[key]
        floor_s = curve.seconds[0]
        return TimedCollective((curve.at(nbytes) - floor_s) / self.rate, floor_s / self.latency)


def node_collectives(hardware: Hardware) -> NodeCollectives | None:
    """The collectives of a machine's node, or of the machine whose links it has or that it is based on, with bytes at
    the ratio of the rates of their links. None where nobody measured them, and where the profile has a latency of hops:
    it was then measured itself."""
    base, link = hardware.links_of or hardware.tables_of, "link_bytes_per_s_one_way"
    if hardware.figure("hop_latency_s"):
        return None
    if own := _tables().get(hardware.name):
        return own
    if base not in _tables():
        return None
    return _tables()[base].faster(hardware.figures[link] / Hardware.load(base).figures[link], 1.0)


@cache
def _tables() -> dict[str, NodeCollectives]:
    found: dict[str, dict[tuple[str, int], Curve]] = {}
    rows = table_rows("distilled/collectives")
    for (target, operation, devices), points in groupby(rows, key=itemgetter("target", "operation", "devices")):
        sizes, times = zip(*((float(each["bytes"]), float(each["us"]) * 1e-6) for each in points), strict=True)
        found.setdefault(target, {})[operation, int(devices)] = Curve(sizes, times)
    return {target: NodeCollectives(curves) for target, curves in found.items()}
