"""The time of a training step from its parts: simulated attention, matrices, the optimizer, and communication.

Parts follow one another. With a compiled program, the parts outside attention take the compiler's cycles, and their
collectives are hidden where the schedule computes at the same time. Otherwise matrices take the times of their shapes
(`costs.matrices`), and collectives are exposed.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from stripectl.core.intervals import Overlap
from stripectl.core.layer_groups import LayerGroup, layer_groups
from stripectl.core.mesh import AXES, HEAD_AXES
from stripectl.core.plan import Plan
from stripectl.core.scopes import ATTENTION, OPTIMIZER, SECTIONS
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import COUNTING, CostModel
from stripectl.costs.matrices import matrix_rate
from stripectl.hardware.profile import Hardware
from stripectl.results.compiled_program import CompiledProgram, ScheduledCollective
from stripectl.results.cost_source import CostOrigin, CostSource
from stripectl.results.findings import CommunicationOverlap
from stripectl.results.measurement import Measurement
from stripectl.simulate.sensitivity import bottleneck_shares, scaling
from stripectl.simulate.simulation import GroupTimes, simulate, simulate_times
from stripectl.simulate.step_work import (
    LEFT_OUT,
    PARTS,
    StepTransfer,
    recomputes_attention,
    repeats_moves,
    seconds_computed,
    seconds_sent,
    step_work,
)

PREDICTED = "predicted from the compiled schedule"  # the source of an overlap that was not measured
COMMUNICATION = "communication"  # the exposed part


class StepTime(NamedTuple):
    """Seconds of a step's parts, which follow one another, and of the communication that they hide."""

    parts: dict[str, float]
    hidden_s: float

    @property
    def seconds(self) -> float:
        return math.fsum(self.parts.values())

    @property
    def overlap(self) -> Overlap | None:
        exposed_s = self.parts.get(COMMUNICATION, 0.0)
        return Overlap(self.hidden_s, exposed_s) if self.hidden_s or exposed_s else None


def attention_cost_source(machines: Sequence[CostModel]) -> CostSource:
    """The source of attention's times; `softmax` is the source for softmax layers of a hybrid model."""
    first, *rest = (each.cost_source for each in machines)
    return replace(first, softmax=rest[0]) if rest else first


def simulated_step(
    m: Measurement, hardware: Hardware, machines: Sequence[CostModel], attention: Sequence[GroupTimes], at: int = 0
) -> Measurement:
    """Add the simulated time and bytes of the step to a measurement; every collective outside attention is exposed.
    `attention` holds the times of a layer of each kind, where the plan is number `at` of those simulated together."""
    parts = simulated_step_model(m.workload, m.plan, hardware, machines, m.flags)
    sent = step_sent_bytes(m.layers, (each for each, _ in parts.sent), attention)
    timed = replace(m, bytes=sent, median_s=parts.seconds(attention, at))
    return with_step_sources(timed, parts.beside, hardware)


def explained_step(m: Measurement, hardware: Hardware, machines: Sequence[CostModel]) -> Measurement:
    """The simulated step with the times of its parts, its overlap, its limits and its scaling."""
    parts = simulated_step_model(m.workload, m.plan, hardware, machines, m.flags)
    return with_step_time(m, parts, hardware.kind, "simulated")


def step_sent_bytes(
    layers: Sequence[LayerGroup], beside: Iterable[StepTransfer], attention: Sequence[GroupTimes] = ()
) -> dict[str, int]:
    """Bytes that a device sends in a step, by opcode."""
    total: Counter[str] = Counter()
    for each in sent_in_step(layers, beside, attention):
        total[each.opcode] += round(each.nbytes * each.times)
    return dict(total)


def sent_in_step(
    layers: Sequence[LayerGroup], beside: Iterable[StepTransfer], attention: Sequence[GroupTimes] = ()
) -> Iterator[StepTransfer]:
    """The transfers of a device in a step, inside and outside the attention of its layers. `attention` holds the times
    of a simulated layer of each kind, where they are known already."""
    attention = attention or attention_times(layers, [COUNTING] * len(layers))
    for (count, _, own), times in zip(layers, attention, strict=True):
        again = [times.forward_along] * recomputes_attention(own) + [times.moves_along] * repeats_moves(own)
        for along in (times.along, *again):
            for (axis, opcode), nbytes in along.items():
                yield StepTransfer(opcode, (axis,), nbytes, count)
    yield from beside


def attention_times(layers: Sequence[LayerGroup], machines: Sequence[CostModel]) -> list[GroupTimes]:
    """The times of attention in a layer of each kind, forward and backward."""
    pairs = zip(layers, machines, strict=True)
    return [
        simulate_times(own.one_layer("forward-backward"), [each], [machine], layer=True)
        for (_, own, each), machine in pairs
    ]


def attention_passes(plan: Plan) -> list[str]:
    """The passes of attention in a layer: forward and backward, and forward again where its output was not kept."""
    return ["forward-backward"] + ["forward"] * recomputes_attention(plan)


def compiled_step(
    case: Measurement, hardware: Hardware, machines: Sequence[CostModel], program: CompiledProgram
) -> Measurement:
    """The case, with the sources of its machines and the time of its step from the compiler's facts about its program;
    matrices without an estimate take the times of
    their shapes."""
    plan, workload = case.plan, case.workload
    clock = hardware.figure("clock_hz")
    estimated = {name: cycles / clock for name, cycles in (program.beside or {}).items()} if clock else {}
    beside = estimated or seconds_computed(step_work(workload, plan), hardware, workload.dtype, case.flags)
    parts = StepModel(workload, plan, machines, beside, sent_beside(program.collectives, plan))
    return with_step_time(
        case if estimated else with_step_sources(case, beside, hardware), parts, hardware.kind, PREDICTED
    )


def with_step_sources(case: Measurement, beside: Mapping[str, float], hardware: Hardware) -> Measurement:
    """The case, with the source of the times of matrices, and notes in its calibration of the parts that its time does
    not include and of matrices whose times other machines tell."""
    known = case.cost_source or CostSource(source=CostOrigin.NONE)
    without = [name for name in (*PARTS, OPTIMIZER) if name not in beside]
    unknown = [f"of a step: {', '.join(without)} (no rate is known)"] * bool(without)
    if rate := matrix_rate(hardware, case.workload.dtype, case.flags):
        known = replace(known, sources={**(known.sources or {}), "matrices": rate.source})
        unknown += [f"of a step: rates of matrices on this machine ({rate.source} hold)"] * (not rate.own)
    left_out = "; ".join(filter(None, [known.left_out, LEFT_OUT, *unknown]))
    return replace(case, cost_source=replace(known, left_out=left_out))


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
class StepModel:
    """The components of a step's time: attention on a machine for each kind of layer, other parts with their seconds,
    and collectives, some of them hidden."""

    workload: Workload
    plan: Plan
    machines: Sequence[CostModel]
    beside: Mapping[str, float]
    sent: Sequence[tuple[StepTransfer, bool]]

    @cached_property
    def layers(self) -> list[LayerGroup]:
        return layer_groups(self.workload, self.plan)

    def timed(self) -> StepTime:
        went = [
            (count, own, simulate(alike.one_layer(passes), own, machine, layer=True))
            for (count, alike, own), machine in zip(self.layers, self.machines, strict=True)
            for passes in attention_passes(own)
        ]
        shown = [(count, each.overlap or Overlap(0.0, 0.0)) for count, _, each in went]
        exposed_s = math.fsum(count * each.exposed_s for count, each in shown)
        hidden_s = math.fsum(count * each.hidden_s for count, each in shown)
        attention_s = math.fsum(count * each.seconds for count, _, each in went) - exposed_s
        exposed_s += math.fsum(count * each.moves_s for count, own, each in went if repeats_moves(own))
        for each, hides in self.sent:
            seconds = seconds_sent(each, self.plan, self.machines[0])
            hidden_s, exposed_s = hidden_s + seconds * hides, exposed_s + seconds * (not hides)
        known = {ATTENTION: attention_s, **self.beside}
        ordered = {name: known[name] for name in (*SECTIONS, *known) if name in known}
        return StepTime(ordered | ({COMMUNICATION: exposed_s} if exposed_s else {}), hidden_s)

    def attention(self) -> list[GroupTimes]:
        return attention_times(self.layers, self.machines)

    def seconds(self, attention: Sequence[GroupTimes] = (), at: int = 0) -> float:
        """The seconds of `timed`, without its parts. `attention` holds the times of a simulated layer of each kind,
        where they were simulated with other plans; `at` is the place of this plan among them."""
        parts = [*self.beside.values()]
        for (count, _, own), times in zip(self.layers, attention or self.attention(), strict=True):
            again_s = recomputes_attention(own) * times.forward_s[at] + repeats_moves(own) * times.moves_s[at]
            parts.append(count * float(times.seconds[at] + again_s))
        parts += [seconds_sent(each, self.plan, self.machines[0]) for each, hides in self.sent if not hides]
        return math.fsum(parts)

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


def simulated_step_model(
    workload: Workload,
    plan: Plan,
    hardware: Hardware,
    machines: Sequence[CostModel],
    flags: Mapping[str, str] | None = None,
) -> StepModel:
    """The parts of a step without a compiled program, under these flags: every collective outside attention is
    exposed."""
    step = step_work(workload, plan)
    beside = seconds_computed(step, hardware, workload.dtype, flags)
    return StepModel(workload, plan, machines, beside, [(each, False) for each in step.sent])


def with_step_time(case: Measurement, parts: StepModel, kind: str, source: str) -> Measurement:
    """Add the time of the step, limits and scaling to a case; `source` is the source of the overlap."""
    found = parts.timed()
    return replace(
        case,
        median_s=found.seconds,
        step_parts=found.parts,
        bottleneck_shares=bottleneck_shares(found.seconds, parts.with_part_sped_up),
        scaling=scaling(case.workload, parts.plan, found.seconds, kind, parts.scaled_to_length),
        overlap=CommunicationOverlap.predicted(found.overlap, source),
    )
