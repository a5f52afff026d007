"""The bytes that a device of a plan sends along each axis of its mesh, and the resulting load of the target's links.

A collective over several axes is divided equally among them. Each part of an all-to-all counts on every link between
its ends; everything else counts as sent to the next device of its axis.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stripectl.core.workload import STEP
from stripectl.costs.cost_model import COUNTING
from stripectl.hardware.placement import MeshPlacement, TorusLink, is_torus
from stripectl.results.measurement import Measurement
from stripectl.simulate.compiled_step import transfer_of
from stripectl.simulate.simulation import simulate
from stripectl.simulate.step_program import run_step
from stripectl.simulate.training_step import sent_in_step
from stripectl.simulate.transfers import StepTransfer

Traffic = Mapping[tuple[str, str], float]  # bytes by (axis, opcode)


class CarriedBytes(NamedTuple):
    """Bytes over each link, both directions together, and over the network between slices."""

    links: Mapping[TorusLink, float]
    network: float


def traffic(m: Measurement) -> Traffic:
    """Bytes that a device sends: from the compiler, else from the simulated program."""
    plan, work, told = m.plan, m.workload, m.compiled_program and m.compiled_program.collectives
    if told:
        return _shared_out(transfer_of(each, plan) for each in told)
    if work.passes == STEP:
        return _shared_out(sent_in_step(m.layers, run_step(work, plan).sent))
    total: Counter[tuple[str, str]] = Counter()
    for count, own, each in m.layers:
        for key, nbytes in simulate(own, each, COUNTING).along.items():
            total[key] += nbytes * count
    layers = sum(group.layers for group in m.layers)
    return {key: nbytes / layers for key, nbytes in total.items()}


def _shared_out(sent: Iterable[StepTransfer]) -> Traffic:
    total: dict[tuple[str, str], float] = defaultdict(float)
    for each in sent:
        for axis in each.axes:
            total[axis, each.opcode] += each.nbytes * each.times / len(each.axes)
    return total


def carried_bytes(placement: MeshPlacement, along: Traffic) -> CarriedBytes:
    """The loads of the links; empty where links have no names, as behind a switch."""
    links: dict[TorusLink, float] = defaultdict(float)
    network = 0.0
    for axis, size in placement.mesh:
        crossed = placement.link_load(axis)
        for (name, opcode), nbytes in along.items():
            if name != axis:
                continue
            everywhere = opcode == "all-to-all"
            far = _places(size, is_torus(placement.target)) if everywhere else 1.0
            network += nbytes * (placement.cross_slice_fraction(axis) if everywhere else crossed.network)
            for link, transfers in crossed.links.items():
                links[link] += nbytes * transfers * far
    return CarriedBytes(links, network)


def _places(size: int, closed: bool) -> float:
    """The mean number of places that the parts of an all-to-all travel: round a ring in the shorter direction."""
    far = [min(places, size - places) for places in range(1, size)]
    return sum(far) / len(far) if closed and far else 1.0
