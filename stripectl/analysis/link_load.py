"""What a device of a plan sends along each axis of its mesh, and what that puts on the links of the target.

A collective over several axes is shared out among them alike. Of an all-to-all every part counts on each link between
its ends; all else counts as sent to the next device of its axis.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stripectl.core.workload import STEP
from stripectl.hardware.placement import MeshPlacement, TorusLink, is_torus
from stripectl.results.measurement import Measurement
from stripectl.simulate.cost_model import COUNTING
from stripectl.simulate.simulation import simulate
from stripectl.simulate.step_work import StepTransfer, step_work
from stripectl.simulate.training_step import sent_in_step, transfer_of

Traffic = Mapping[tuple[str, str], float]  # bytes by (axis, opcode)


class CarriedBytes(NamedTuple):
    """Bytes over each link, both ways together, and over the network between slices."""

    links: Mapping[TorusLink, float]
    network: float


def traffic(m: Measurement) -> Traffic:
    """Bytes that a device sends: as the compiler says, else as the program does on clocks."""
    plan, work, told = m.plan, m.workload, m.compiled_program and m.compiled_program.collectives
    if told:
        return _shared_out(transfer_of(each, plan) for each in told)
    if work.passes == STEP:
        return _shared_out(sent_in_step(work, plan, step_work(work, plan).sent))
    return dict(simulate(work, plan, COUNTING).along)


def _shared_out(sent: Iterable[StepTransfer]) -> Traffic:
    total: dict[tuple[str, str], float] = defaultdict(float)
    for each in sent:
        for axis in each.axes:
            total[axis, each.opcode] += each.nbytes * each.times / len(each.axes)
    return total


def carried_bytes(wiring: MeshPlacement, along: Traffic) -> CarriedBytes:
    """What the links carry; nothing of links that nobody can name, as behind a switch."""
    links: dict[TorusLink, float] = defaultdict(float)
    network = 0.0
    for axis, size in wiring.mesh:
        crossed = wiring.link_load(axis)
        for (name, opcode), nbytes in along.items():
            if name != axis:
                continue
            everywhere = opcode == "all-to-all"
            far = _places(size, is_torus(wiring.target)) if everywhere else 1.0
            network += nbytes * (wiring.cross_slice_fraction(axis) if everywhere else crossed.network)
            for link, transfers in crossed.links.items():
                links[link] += nbytes * transfers * far
    return CarriedBytes(links, network)


def _places(size: int, closed: bool) -> float:
    """How many places on the parts of an all-to-all go, on the mean: round a ring the shorter way."""
    far = [min(places, size - places) for places in range(1, size)]
    return sum(far) / len(far) if closed and far else 1.0
