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
from stripectl.core.layer_groups import LayerGroup, layer_groups, parts_of_plan
from stripectl.core.plan import Plan
from stripectl.core.scopes import OPTIMIZER, SECTIONS
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import COUNTING, CostModel
from stripectl.costs.matrices import matrix_rate
from stripectl.hardware.profile import Hardware
from stripectl.results.cost_source import CostOrigin, CostSource
from stripectl.results.findings import CommunicationOverlap
from stripectl.results.measurement import Measurement
from stripectl.simulate.layer_attention import (
    LayerAttention,
    attention_times,
    explained_attention,
    layer_attention,
    recomputes_attention,
    repeats_moves,
)
from stripectl.simulate.sensitivity import bottleneck_shares, scaling
from stripectl.simulate.simulation import GroupTimes
from stripectl.simulate.step_clock import Seconds, StepClock
from stripectl.simulate.step_program import (
    LEFT_OUT,
    PARTS,
    run_step,
)
from stripectl.simulate.step_state import STATE_BYTES
from stripectl.simulate.transfers import StepTransfer

PREDICTED = "predicted from the compiled schedule"  # the source of an overlap that was not measured
COMMUNICATION = "communication"  # the exposed part
COPIES = "of a step: copies to and from the host's memory"
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


def attention_cost_source(workload: Workload, machines: Sequence[CostModel]) -> CostSource:
    """The source of attention's times, with the sources of the layers that a plan names apart."""
    first, *rest = (each.cost_source for each in machines)
    _, *parts = parts_of_plan(workload).values()
    return replace(first, **dict(zip(reversed(parts), reversed(rest), strict=True)))


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


def with_step_sources(case: Measurement, beside: Mapping[str, float], hardware: Hardware) -> Measurement:
    """The case, with the source of the times of matrices, and notes in its calibration of the parts that its time does
    not include and of matrices whose times other machines tell."""
    known = case.cost_source or CostSource(source=CostOrigin.NONE)
    without = [name for name in (*PARTS, OPTIMIZER) if name not in beside]
    unknown = [f"of a step: {', '.join(without)} (no rate is known)"] * bool(without)
    if rate := matrix_rate(hardware, case.workload.dtype, case.flags):
        known = replace(known, sources={**(known.sources or {}), "matrices": rate.source})
        unknown += [f"of a step: rates of matrices on this machine ({rate.source} hold)"] * (not rate.own)
    if case.plan.offloaded and hardware.figure("host_bytes_per_s_one_way") is None:
        unknown.append(f"{COPIES} (no rate is known)")
    return leaving_out(replace(case, cost_source=known), LEFT_OUT, *unknown)


def leaving_out(case: Measurement, *parts: str) -> Measurement:
    """The case, with a note of parts that its time does not include."""
    known = case.cost_source or CostSource(source=CostOrigin.NONE)
    left_out = "; ".join(filter(None, [known.left_out, *parts]))
    return replace(case, cost_source=replace(known, left_out=left_out))


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

    def _run(self, attention: Sequence[LayerAttention]) -> StepClock:
        return run_step(
            self.workload,
            self.plan,
            self.machines[0],
            attention,
            kind=self.hardware.kind,
            rate=matrix_rate(self.hardware, self.workload.dtype, self.flags),
            memory_bytes_per_s=self.hardware.figure("hbm_bytes_per_s"),
            host_bytes_per_s=self.hardware.figure("host_bytes_per_s_one_way"),
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
