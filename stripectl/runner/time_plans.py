"""Simulated plans: their time and memory, and of the fastest also their limits and their scaling.

Plans that differ only in their tiles run together: the clocks have an axis of plans.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from stripectl.core.layer_groups import mean_bytes, mean_of_layers
from stripectl.core.plan import Plan
from stripectl.core.reason import Reason, ReasonKind
from stripectl.core.workload import STEP, Workload
from stripectl.costs.core_memory import VMEM_FLAG
from stripectl.costs.cost_model import COUNTING, CostModel
from stripectl.costs.determinism import DETERMINISM_FLAG, with_determinism
from stripectl.errors import BadInput
from stripectl.hardware.profile import Hardware
from stripectl.measure.local_target import LocalTarget
from stripectl.measure.machine_timings import MachineTimings
from stripectl.measure.plan_costs import plan_costs
from stripectl.results.case import Case
from stripectl.results.fit import check_memory
from stripectl.results.measurement import Measurement
from stripectl.runner.static_facts import facts_of_counts, why_not_unrolled, with_static_facts
from stripectl.simulate.sensitivity import with_sensitivity
from stripectl.simulate.simulation import GroupTimes, simulate_times
from stripectl.simulate.step_clock import StepClock
from stripectl.simulate.step_memory import layer_in_memory
from stripectl.simulate.training_step import SimulatedStep, attention_cost_source, explained_step, simulated_step
from stripectl.util.plug_in_errors import plug_in_reason, show_traceback
from stripectl.workers.failure import failure_kind
from stripectl.workers.worker_group import WorkerError

SIMULATED_FLAGS = {VMEM_FLAG, DETERMINISM_FLAG}


def time_plans(
    cases: Sequence[Case], place: LocalTarget, timings: MachineTimings, explained: int = 0
) -> Iterator[Measurement]:
    """The cases simulated, in their order, with time, memory and bytes. A case is refused where it does not fit in
    memory or the datasheet lacks a figure, and fails where its tiles cannot be timed or its scheme raises an error.
    The `explained` fastest have their limits and their scaling too, which take ten times as long."""
    groups: dict[tuple[Workload, Plan], list[Case]] = {}
    for case in cases:
        if case.is_ready:
            groups.setdefault((case.workload, case.plan.without_tiles()), []).append(case)
    found = dict[tuple[str, ...], Measurement]()
    for group in groups.values():
        if len(cases) > 1:
            timings.workers.say("simulate plans", len(found), len(cases))
        found |= {case.identity: made for case, made in _group(group, place, timings)}
    made = [found[case.identity] if case.is_ready else Measurement.of(case) for case in cases]
    timed = sorted((m for m in made if m.status == "ok" and m.median_s), key=lambda m: m.median_s or 0.0)
    fastest = {m.identity for m in timed[:explained]}
    for case, m in zip(cases, made, strict=True):
        yield explain(case, m, place, timings) if m.identity in fastest else m


def explain(case: Case, m: Measurement, place: LocalTarget, timings: MachineTimings) -> Measurement:
    """Add tiles by round, limits and scaling to the measurement of a simulated case."""
    _, machines = with_cost_models(case, place, timings)
    hardware = place.target.hardware
    if facts := with_static_facts(case, hardware).facts:
        m = replace(m, tiles=facts.tiles)
    if case.workload.passes == STEP:
        return explained_step(m, timings.hardware(place, case.workload.dtype), machines)
    return with_sensitivity(m, machines, hardware.kind)


def with_cost_models(case: Case, place: LocalTarget, timings: MachineTimings) -> tuple[Measurement, list[CostModel]]:
    """The case to be simulated, with the source of its time, and the cost model for each kind of its layers; refused or
    failed without such a model."""
    refused = Measurement.of(case)
    if not case.is_ready:
        return refused, []
    hardware, flags = place.target.hardware, case.flags or {}
    if unknown := ", ".join(sorted(flags.keys() - SIMULATED_FLAGS)):
        known = " and ".join(sorted(SIMULATED_FLAGS))
        fact = f"cannot simulate the flag {unknown} because only {known} affect a simulation"
        reason = Reason.unsupported(fact, "Try --method compiled, or --method measured.")
        return replace(refused, status="refused", reason=reason), []
    try:
        machines = [
            with_determinism(plan_costs(group, place, timings), hardware, group.workload, group.plan, flags)
            for group in case.layers
        ]
        if case.workload.passes == STEP:
            timings.hardware(place, case.workload.dtype)
    except BadInput as error:
        return replace(refused, status="refused", reason=Reason(ReasonKind.NO_COSTS, str(error))), []
    except WorkerError as failure:
        reason = Reason(failure_kind(failure), f"its tiles could not be timed: {failure}")
        return replace(refused, status="failed", reason=reason), []
    said = replace(attention_cost_source(case.workload, machines), not_compiled=place.why_not_compiled or None)
    return replace(Measurement.of(case, "simulated"), cost_source=said), machines


def _group(group: Sequence[Case], place: LocalTarget, timings: MachineTimings) -> Iterator[tuple[Case, Measurement]]:
    """Each case of plans that differ only in their tiles, and its result."""
    prepared = [(case, *with_cost_models(case, place, timings)) for case in group]
    yield from ((case, made) for case, made, _ in prepared if made.status != "ok")
    runnable = [each for each in prepared if each[1].status == "ok"]
    if not runnable:
        return
    first, step = runnable[0][0], runnable[0][0].workload.passes == STEP
    kinds = list[GroupTimes]()
    for at, (_, alike, _) in enumerate(first.layers):
        plans = [case.layers[at].plan for case, *_ in runnable]
        work = alike.one_layer("forward-backward") if step else alike
        try:
            kinds.append(simulate_times(work, plans, [machines[at] for *_, machines in runnable], layer=step))
            if step and (whole := layer_in_memory(alike, plans[0])) != work:
                wide = simulate_times(whole, plans, [COUNTING] * len(plans), layer=True)
                kinds[-1] = kinds[-1]._replace(peak_bytes=wide.peak_bytes, held_bytes=wide.held_bytes)
        except Exception as error:  # a scheme may be foreign code, and must not break the others
            show_traceback(error)
            reason = Reason(ReasonKind.ERROR, f"simulating this scheme failed: {plug_in_reason(error)}")
            yield from ((case, replace(Measurement.of(case), status="failed", reason=reason)) for case, *_ in runnable)
            return
    if reason := why_not_unrolled(first.plan, max(each.turns for each in kinds)):
        yield from ((case, replace(made, status="refused", reason=reason)) for case, made, _ in runnable)
        return
    clocks = Clocks(timings.hardware(place, first.workload.dtype), runnable[0][2], kinds)
    for at, (case, made, _) in enumerate(runnable):
        if not case.facts:
            counts = int(kinds[0].computed[at]), mean_bytes(case.layers, [each.sent for each in kinds])
            made = made.with_facts(facts_of_counts(case, place.target.hardware, *counts))
        yield case, _step(made, clocks, at) if step else _attention(made, kinds, at)


def _attention(made: Measurement, kinds: Sequence[GroupTimes], at: int) -> Measurement:
    made = check_memory(replace(made, peak_bytes=max(int(each.peak_bytes[at]) for each in kinds)))
    seconds = mean_of_layers(made.layers, [float(each.seconds[at]) for each in kinds])
    return replace(made, median_s=seconds) if made.status == "ok" else made


@dataclass(frozen=True)
class Clocks:
    """The clocks of steps whose plans differ only in their tiles; `attention` holds the times of their layers."""

    hardware: Hardware
    machines: Sequence[CostModel]
    attention: Sequence[GroupTimes]
    known: dict[tuple[tuple[str, str], ...], StepClock] = field(
        default_factory=dict[tuple[tuple[str, str], ...], StepClock]
    )  # by flags

    def clock(self, m: Measurement) -> StepClock:
        flags = tuple(sorted((m.flags or {}).items()))
        if flags not in self.known:
            step = SimulatedStep(m.workload, m.plan, self.hardware, self.machines, m.flags)
            self.known[flags] = step.run(self.attention)
        return self.known[flags]


def _step(made: Measurement, clocks: Clocks, at: int) -> Measurement:
    clock = clocks.clock(made)
    memory = clock.ledger.peak(at)
    host_bytes = round(clock.host_bytes) or None
    made = check_memory(replace(made, memory=memory, peak_bytes=sum(memory.values()), host_bytes=host_bytes))
    return simulated_step(made, clocks.hardware, clock, clocks.attention, at) if made.status == "ok" else made
