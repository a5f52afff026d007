"""Collectives of a training step, and how long they take over several axes of a mesh."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stripectl.core.plan import Plan
from stripectl.costs.cost_model import CostModel


class StepTransfer(NamedTuple):
    """A collective that runs `times` per step: bytes that a device sends each time, over the devices of these axes."""

    opcode: str
    axes: tuple[str, ...]
    nbytes: float
    times: float
    links: float = 1.0  # that a byte crosses on a torus, where that is not all of a gather's
    gradients: bool = False
    follows: bool = False  # another one, issued with it, whose bytes the network's latency already preceded


def seconds_sent(sent: StepTransfer, plan: Plan, machine: CostModel) -> float:
    """Seconds of a collective over the devices of its axes, at the rate of `CostModel.received_bytes_per_s`.

    Gradients that would be scattered over several slices of TPUs are summed whole: the compiler gathers the sum before
    each device takes its part (`benchmarks/slices.py`).
    """
    axes = {axis: plan.size(axis) for axis in sent.axes if plan.size(axis) > 1}
    if machine.node and sent.opcode != "collective-permute":
        devices, both_ways = math.prod(axes.values()), 2 if sent.opcode == "all-reduce" else 1
        array = sent.nbytes / both_ways / (1 - 1 / devices)
        if timed := machine.measured_collective(sent.opcode, axes, array):
            return sent.times * sum(timed)
    crossed = sent.nbytes * (sent.links if machine.torus else 1.0)
    slices = any(machine.devices_per_slice(axis, size) < size for axis, size in axes.items())
    whole = sent.gradients and machine.torus and slices
    opcodes = [sent.opcode, "all-gather"] if whole else [sent.opcode]
    each_s = crossed * sum(1 / machine.received_bytes_per_s(opcode, axes) for opcode in opcodes)
    each_s += travel_s("all-reduce" if whole else sent.opcode, axes, machine, network=not sent.follows)
    return sent.times * (machine.collective_latency_s + each_s)


def share_sent(plan: Plan, axes: Sequence[str]) -> float:
    """The fraction of a whole array that a device sends round axes where each device holds a shard."""
    return (plan.product(axes) - 1) / plan.product(axes)


def travel_s(opcode: str, axes: Mapping[str, int], machine: CostModel, network: bool = True) -> float:
    """Seconds of a collective's hops without its bytes: along the links of each slice, there and back for a sum, and
    once through the `network`, where all slices exchange their parts at the same time."""
    within = {axis: machine.devices_per_slice(axis, size) for axis, size in axes.items()}
    near = {axis: size for axis, size in within.items() if size > 1}
    link_s = max((machine.longest_hop_s(axis, axes[axis]) for axis in near), default=0.0)
    network_s = network * max(machine.longest_hop_s(axis, size, network=True) for axis, size in axes.items())
    rounds = hops_round(near, machine) * (2 if opcode == "all-reduce" else 1) if near else 0
    return rounds * link_s + network_s


def hops_round(axes: Mapping[str, int], machine: CostModel) -> int:
    """The number of hops from the farthest device of a slice: on a torus along each axis in sequence, in both
    directions."""
    if machine.collective_spread(axes):
        return sum(math.ceil(size / 2) for size in axes.values())
    return math.ceil(
        (math.prod(axes.values()) - 1) / min(machine.ring_directions(axis, size) for axis, size in axes.items())
    )
