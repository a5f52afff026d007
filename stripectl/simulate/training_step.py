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
from typing import NamedTuple, Protocol

import numpy as np

from stripectl.core.intervals import Overlap
from stripectl.core.layer_groups import LayerGroup, layer_groups
from stripectl.core.mesh import AXES, BATCH_AXES, HEAD_AXES, SEQUENCE_AXES
from stripectl.core.plan import STATES, Plan
from stripectl.core.scheme import schemes
from stripectl.core.scopes import ATTENTION, OPTIMIZER, SECTIONS
from stripectl.core.sequence_sharding import sequence_sharding
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
from stripectl.simulate.step_clock import AttentionTime, Seconds, StepClock
from stripectl.simulate.step_ops import AttentionMemory, AttentionTimes
from stripectl.simulate.step_program import (
    LEFT_OUT,
    PARTS,
    recomputes_attention,
    repeats_moves,
    run_step,
)
from stripectl.simulate.step_state import STATE_BYTES
from stripectl.simulate.transfers import StepTransfer, seconds_sent

PREDICTED = "predicted from the compiled schedule"  # the source of an overlap that was not measured
COMMUNICATION = "communication"  # the exposed part
ROUNDING = 1e-9  # of sums of seconds


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
    m: Measurement, hardware: Hardware, clock: StepClock, attention: Sequence[GroupTimes], at: int = 0
) -> Measurement:
    """Add the simulated time and bytes of the step to a measurement. `attention` holds the times of a layer of each
    kind, and `clock` the times of the step, where the plan is number `at` of those simulated together."""
    sent, time = step_sent_bytes(m.layers, clock.sent, attention), step_time(clock, at)
    return with_step_sources(replace(m, bytes=sent, median_s=time.seconds), time.parts, hardware)


def explained_step(m: Measurement, hardware: Hardware, machines: Sequence[CostModel]) -> Measurement:
    """The simulated step with the times of its parts, its overlap, its limits and its scaling."""
    return with_step_time(m, SimulatedStep(m.workload, m.plan, hardware, machines, m.flags), hardware.kind, "simulated")


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


class StepModel(Protocol):
    """A step whose time can be predicted again for another machine or length."""

    @property
    def plan(self) -> Plan: ...

    def timed(self) -> StepTime:
        """The times of its parts."""
        ...

    def with_part_sped_up(self, part: str) -> float:
        """Seconds if a part of the machine were twice as fast; memory includes the optimizer, compute the matrices."""
        ...

    def scaled_to_length(self, other: Workload) -> float:
        """Seconds at another length."""
        ...


@dataclass(frozen=True)
class SimulatedStep:
    """The programs of a step on the clocks of a machine for each kind of layer."""

    workload: Workload
    plan: Plan
    hardware: Hardware
    machines: Sequence[CostModel]
    flags: Mapping[str, str] | None = None
    gradient_bytes: int = STATE_BYTES  # per element, where gradients are sent
    faster: Mapping[str, float] | None = None

    @cached_property
    def layers(self) -> list[LayerGroup]:
        return layer_groups(self.workload, self.plan)

    def timed(self) -> StepTime:
        return step_time(self._run([*map(explained_attention, self.layers, self.machines)]))

    def run(self, attention: Sequence[GroupTimes] = ()) -> StepClock:
        """The clock after a step. `attention` holds the times of a simulated layer of each kind where they are known
        already, also of plans that differ from this plan only in their tiles."""
        found = attention or attention_times(self.layers, self.machines)
        return self._run([layer_attention(*each) for each in zip(self.layers, found, strict=True)])

    def outside_attention(self) -> dict[str, float]:
        """Seconds of the parts outside attention, without their transfers."""
        return {name: float(seconds) for name, seconds in self._run(()).parts.items() if seconds}

    def _run(self, attention: Sequence[AttentionTimes]) -> StepClock:
        return run_step(
            self.workload,
            self.plan,
            self.machines[0],
            attention,
            kind=self.hardware.kind,
            rate=matrix_rate(self.hardware, self.workload.dtype, self.flags),
            memory_bytes_per_s=self.hardware.figure("hbm_bytes_per_s"),
            faster=self.faster,
            gradient_bytes=self.gradient_bytes,
        )

    def seconds(self) -> float:
        """The seconds of `timed`, without its parts."""
        return step_time(self.run()).seconds

    def with_part_sped_up(self, part: str) -> float:
        machines = [each.with_part_sped_up(part) for each in self.machines]
        return replace(self, machines=machines, faster={part: 2.0}).seconds()

    def scaled_to_length(self, other: Workload) -> float:
        times = other.seq_len / self.workload.seq_len
        machines = [each.scaled_to_length(times) for each in self.machines]
        return replace(self, workload=other, machines=machines).seconds()


def of_one_plan(time: AttentionTime) -> AttentionTime:
    """The times of a group of one plan, as numbers."""
    return time._replace(seconds=float(np.ravel(time.seconds)[0]), exposed_s=float(np.ravel(time.exposed_s)[0]))


def step_time(clock: StepClock, at: int = 0) -> StepTime:
    """The parts of a step on a clock, of the plan number `at` that it times."""

    def own(seconds: Seconds) -> float:
        return float(seconds) if np.ndim(seconds) == 0 else float(np.ravel(seconds)[at])

    known = {name: own(seconds) for name, seconds in clock.parts.items()}
    exposed_s, hidden_s = own(clock.exposed_s), own(clock.hidden_s)
    hides = hidden_s > ROUNDING * exposed_s
    return ordered_parts({name: seconds for name, seconds in known.items() if seconds}, exposed_s, hidden_s * hides)


def ordered_parts(known: Mapping[str, float], exposed_s: float, hidden_s: float) -> StepTime:
    """The seconds of a step's parts in their order, with exposed and hidden communication."""
    ordered = {name: known[name] for name in (*SECTIONS, *known) if name in known}
    return StepTime(ordered | ({COMMUNICATION: exposed_s} if exposed_s else {}), hidden_s)


def layer_attention(layer: LayerGroup, times: GroupTimes) -> AttentionTimes:
    """The times and the memory of a layer's attention, as if it never waited for transfers."""
    plan, forward_s, seconds, moves_s = layer.plan, times.forward_s, times.seconds, times.moves_s
    forward = AttentionTime(forward_s, along=times.forward_along)
    moves = AttentionTime(moves_s, moves_s, along=times.moves_along) if repeats_moves(plan) else None
    backward = AttentionTime(seconds - forward_s, along=times.along - times.forward_along)
    memory = AttentionMemory(times.peak_bytes, times.held_bytes, attention_residual(layer))
    return AttentionTimes(forward, forward if recomputes_attention(plan) else None, moves, backward, memory)


def attention_residual(layer: LayerGroup) -> float:
    """Bytes that the backward pass of a layer's scheme needs besides queries, keys, values and output: the logarithms
    of the sums of exponentials, or the states before each run of tokens of a linear layer."""
    _, workload, plan = layer
    if schemes[plan.scheme].backward is None:
        return 0.0
    requests = workload.batch / plan.product(BATCH_AXES)
    if workload.attention != "linear":
        rows = workload.seq_len // plan.product(SEQUENCE_AXES)
        return requests * rows * workload.heads / plan.product(HEAD_AXES) * STATE_BYTES
    runs = requests * sequence_sharding(workload, plan).runs
    heads = workload.kv_heads / plan.product(HEAD_AXES) / plan.size("ulysses")
    return (plan.states == STATES[0]) * runs * heads * workload.head_dim * workload.value_dim * STATE_BYTES


def explained_attention(layer: LayerGroup, machine: CostModel) -> AttentionTimes:
    """The times of a layer's attention, and of its exposed and hidden transfers: of both passes in the second."""
    _, own, plan = layer
    forward, again, moves, backward, memory = layer_attention(layer, *attention_times([layer], [machine]))

    def with_overlap(time: AttentionTime, passes: str) -> AttentionTime:
        known = simulate(own.one_layer(passes), plan, machine, layer=True).overlap or Overlap(0.0, 0.0)
        return time._replace(exposed_s=known.exposed_s, hidden_s=known.hidden_s)

    return AttentionTimes(
        of_one_plan(forward),
        again and with_overlap(of_one_plan(again), "forward"),
        moves and of_one_plan(moves),
        with_overlap(of_one_plan(backward), "forward-backward"),
        memory,
    )


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
