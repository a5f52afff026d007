"""The time of a step whose parts outside attention take the cycles that the compiler of its program estimates."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from stripectl.core.layer_groups import LayerGroup, layer_groups
from stripectl.core.mesh import AXES, HEAD_AXES
from stripectl.core.plan import Plan
from stripectl.core.scopes import ATTENTION, OPTIMIZER
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import CostModel
from stripectl.hardware.profile import Hardware
from stripectl.results.compiled_program import CompiledProgram, ScheduledCollective
from stripectl.results.measurement import Measurement
from stripectl.simulate.layer_attention import explained_attention
from stripectl.simulate.training_step import (
    COPIES,
    PREDICTED,
    SimulatedStep,
    StepTime,
    leaving_out,
    ordered_parts,
    with_step_sources,
    with_step_time,
)
from stripectl.simulate.transfers import StepTransfer, seconds_sent


def compiled_step(
    case: Measurement, hardware: Hardware, machines: Sequence[CostModel], program: CompiledProgram
) -> Measurement:
    """The case, with the sources of its machines and the time of its step from the compiler's facts about its program;
    matrices without an estimate take the times of
    their shapes."""
    plan, workload = case.plan, case.workload
    clock = hardware.figure("clock_hz")
    estimated = {name: cycles / clock for name, cycles in (program.beside or {}).items()} if clock else {}
    beside = estimated or SimulatedStep(workload, plan, hardware, machines, case.flags).outside_attention()
    parts = CompiledStep(workload, plan, machines, beside, sent_beside(program.collectives, plan))
    case = case if estimated else with_step_sources(case, beside, hardware)
    if plan.offloaded:
        case = leaving_out(case, COPIES)
    return with_step_time(case, parts, hardware.kind, PREDICTED)


def sent_beside(collectives: Sequence[ScheduledCollective], plan: Plan) -> list[tuple[StepTransfer, bool]]:
    """The collectives outside attention, and whether the schedule computes during them."""
    found = []
    for each in collectives:
        if each.section != ATTENTION:
            found.append((transfer_of(each, plan), each.asynchronous and each.beside_work))
    return found


def transfer_of(collective: ScheduledCollective, plan: Plan) -> StepTransfer:
    """A collective as the compiler describes it; along all axes of the plan where it names none."""
    axes = tuple(axis for axis in (collective.axis or "").split("+") if axis in AXES) or tuple(plan.axes)
    return StepTransfer(collective.opcode, axes, collective.sent_bytes, collective.times)


@dataclass(frozen=True)
class CompiledStep:
    """A step whose parts outside attention take the compiler's cycles: attention on a machine for each kind of layer,
    other parts with their seconds, and collectives, some of them hidden."""

    workload: Workload
    plan: Plan
    machines: Sequence[CostModel]
    beside: Mapping[str, float]
    sent: Sequence[tuple[StepTransfer, bool]]

    @cached_property
    def layers(self) -> list[LayerGroup]:
        return layer_groups(self.workload, self.plan)

    def timed(self) -> StepTime:
        """The times of its parts."""
        inside = [
            (layer.layers, each)
            for layer, machine in zip(self.layers, self.machines, strict=True)
            for each in explained_attention(layer, machine).all
        ]
        exposed_s = math.fsum(count * each.exposed_s for count, each in inside)
        hidden_s = math.fsum(count * each.hidden_s for count, each in inside)
        attention_s = math.fsum(count * each.seconds for count, each in inside) - exposed_s
        for each, hides in self.sent:
            seconds = seconds_sent(each, self.plan, self.machines[0])
            hidden_s, exposed_s = hidden_s + seconds * hides, exposed_s + seconds * (not hides)
        return ordered_parts({ATTENTION: attention_s, **self.beside}, exposed_s, hidden_s)

    def seconds(self) -> float:
        """The seconds of `timed`, without its parts."""
        return self.timed().seconds

    def with_part_sped_up(self, part: str) -> float:
        """Seconds if a part of the machine were twice as fast; memory includes the optimizer, compute the matrices."""
        of = {OPTIMIZER: "memory"}
        beside = {name: each / (2 if of.get(name, "compute") == part else 1) for name, each in self.beside.items()}
        return replace(self, machines=[each.with_part_sped_up(part) for each in self.machines], beside=beside).seconds()

    def scaled_to_length(self, other: Workload) -> float:
        """Seconds at another length: everything grows with it, except the optimizer and communication of parameters."""
        times = other.seq_len / self.workload.seq_len
        grows = [
            (each._replace(nbytes=each.nbytes * (times if set(each.axes) & set(HEAD_AXES) else 1)), hides)
            for each, hides in self.sent
        ]
        beside = {name: each * (1 if name == OPTIMIZER else times) for name, each in self.beside.items()}
        machines = [each.scaled_to_length(times) for each in self.machines]
        return replace(self, workload=other, machines=machines, beside=beside, sent=grows).seconds()
