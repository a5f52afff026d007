"""How long collectives take on the links of one mesh axis of a machine, where all devices start together.

`size` is the number of devices of the axis; rates are in bytes per second, `nbytes` of one device.
"""

import math
from typing import NamedTuple

from stripectl.costs.cost_model import CostModel


class CollectiveTime(NamedTuple):
    """How long the links are busy, how long the last byte then travels, and in how many directions links are used."""

    busy_s: float
    latency_s: float
    directions: int


def gather_time(machine: CostModel, opcode: str, axis: str, size: int, nbytes: int) -> CollectiveTime:
    """The time of a ring all-gather or reduce-scatter of blocks, which may use both directions."""
    if timed := machine.measured_collective(opcode, {axis: size}, size * nbytes):
        return CollectiveTime(*timed, 2)
    _, latency_s = machine.hop(axis, size, 1)
    near, network_s = machine.devices_per_slice(axis, size), machine.longest_hop_s(axis, size, network=True)
    per_s, ways = machine.received_bytes_per_s(opcode, {axis: size}), machine.ring_directions(axis, size)
    far_s = latency_s.sum() - latency_s.min() if ways == 1 else math.ceil((size - 1) / ways) * latency_s.max()
    if machine.torus and near < size:  # along the links of a slice, and once through the network
        far_s = latency_s[: near - 1].sum() + network_s
    return CollectiveTime((size - 1) * nbytes / per_s, far_s, ways)


def all_to_all_time(machine: CostModel, axis: str, size: int, nbytes: int) -> CollectiveTime:
    """The time of an exchange of parts of `nbytes`; parts within a slice or a node and parts between them travel in
    parallel. On a torus every part takes the shorter direction round its ring."""
    if timed := machine.measured_collective("all-to-all", {axis: size}, size * nbytes):
        return CollectiveTime(*timed, 2)
    near, spread = machine.devices_per_slice(axis, size), machine.collective_spread({axis: size})
    link_s, network_s = (machine.longest_hop_s(axis, size, network=each) for each in (False, True))
    far = [min(places, near - places) for places in range(1, near)]
    within_s = (sum(far) / min(2, near - 1) if machine.torus and far else near - 1) / machine.slowest_hop(axis, size)
    if spread:
        within_s = near * spread.load / machine.link_bytes_per_s_one_way
    busy_s = nbytes * max(within_s, (size - near) / machine.slowest_hop(axis, size, network=True))
    return CollectiveTime(busy_s, max(link_s * (max(far, default=0) if machine.torus else 1), network_s), 2)


def all_reduce_time(machine: CostModel, axis: str, size: int, nbytes: int) -> CollectiveTime:
    """The time by a ring of parts (2 (N-1) hops), or by exchanges of whole arrays with devices 1, 2, 4 ... places away,
    whichever is faster."""
    if timed := machine.measured_collective("all-reduce", {axis: size}, nbytes):
        return CollectiveTime(*timed, 2)
    rates, latencies = machine.hop(axis, size, 1)
    rate, latency_s, ways = rates.min(), latencies.max(), machine.ring_directions(axis, size)
    per_s = machine.received_bytes_per_s("all-reduce", {axis: size})
    scatter_s, near = (size - 1) * nbytes / size / per_s, machine.devices_per_slice(axis, size)
    if machine.torus and near < size:  # there and back along the links of a slice, and once through the network
        link_s, network_s = (machine.longest_hop_s(axis, size, network=each) for each in (False, True))
        return CollectiveTime(2 * (scatter_s + (near - 1) * link_s) + network_s, 0.0, ways)
    ring_s = 2 * (scatter_s + math.ceil((size - 1) / ways) * latency_s)
    far = [min(2**k, size - 2**k) if machine.torus else 1 for k in range((size - 1).bit_length())]
    whole_s = sum(places * (nbytes / rate + latency_s) for places in far)
    return CollectiveTime(min(ring_s, whole_s), 0.0, ways)
