"""Two runs compared by the compiler's facts about their plans. These are equal on any machine, so runners without
devices can use them as a gate.

A plan is worse where it no longer fits, sends more, has more transfers or more of them synchronous or without tiles at
the same time, computes more tiles, needs more memory, copies more, or is predicted to hide less.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stripectl.analysis.comparison import differences_in_parts
from stripectl.core.plan import Plan
from stripectl.core.workload import Workload
from stripectl.errors import BadInput
from stripectl.hardware.target import TargetName
from stripectl.results.compiled_program import CompiledProgram
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from stripectl.statistics.verdict import Verdict
from stripectl.util.units import NOTHING, nbytes

MORE_IS_BETTER = ("fits", "predicted overlap")
ScheduleKey: TypeAlias = tuple[Workload, Plan, TargetName]


@dataclass(frozen=True)
class ScheduleFact:
    """The compiler's fact about the same plan in two runs, as numbers; None where it is missing."""

    base: Measurement
    new: Measurement
    name: str
    was: float | None
    now: float | None
    verdict: Verdict

    def shown(self, value: float | None) -> str:
        """A value in words."""
        return NOTHING if value is None else shape_of(self.name)(value)

    @property
    def sentence(self) -> str:
        """The fact in both runs, and why the new run has no program."""
        reason = f", {self.new.reason}" if self.new.reason else ""
        return f"{self.name}: {self.shown(self.was)} to {self.shown(self.now)}{reason}"


def shape_of(name: str) -> Callable[[float], str]:
    """How a fact is printed."""
    if name == "fits":
        return lambda value: "yes" if value else "no"
    if name.startswith(("sent", "memory", "copied")):
        return nbytes
    return (lambda value: f"{value:.1%}") if name == "predicted overlap" else (lambda value: f"{value:,.0f}")


def compare_schedules(base: Run, new: Run, threshold: float) -> list[ScheduleFact]:
    """Every fact of the base's compiled plans, with the new run's value; changes within `threshold` count as equal. A
    plan is paired with itself under other compiler flags where each run has it with only one set of flags.

    Raises:
        BadInput: the base has no compiled plan.
    """
    known = {m.key: m for m in compiled_measurements(base) if m.status == "ok"}
    if not known:
        raise BadInput("BASE has no compiled plan. Try stripectl bench --method compiled --target v5e:4x4.")
    found, alike = {m.key: m for m in compiled_measurements(new)}, plans_with_one_flag_set(new)
    return [
        fact
        for key, was in known.items()
        for fact in compare_values(
            was,
            found.get(key) or (plans_with_one_flag_set(base).get(schedule_key(was)) and alike.get(schedule_key(was))),
            threshold,
        )
    ]


def schedule_notes(base: Run, new: Run, facts: Sequence[ScheduleFact]) -> list[str]:
    """How many facts are equal, and the differences of the environments that may explain the others."""
    equal = sum(each.was == each.now for each in facts)
    plans = len({each.base.key for each in facts})
    unlike = differences_in_parts(base, new, ("versions", "flags"))
    said = f"{equal} of {len(facts)} facts of {plans} compiled plans are equal"
    return [said, *(f"differs: {each}" for each in unlike)]


def compiled_measurements(run: Run) -> list[Measurement]:
    return [m for m in run.measurements if m.method == "compiled"]


def schedule_key(m: Measurement) -> ScheduleKey:
    """A key for a measurement that does not depend on flags."""
    return m.workload, m.plan, m.target


def plans_with_one_flag_set(run: Run) -> Mapping[ScheduleKey, Measurement]:
    """The compiled plans of a run that have only one set of flags."""
    times = Counter(map(schedule_key, compiled_measurements(run)))
    return {schedule_key(m): m for m in compiled_measurements(run) if times[schedule_key(m)] == 1}


def compare_values(was: Measurement, now: Measurement | None, threshold: float) -> Iterator[ScheduleFact]:
    """The facts of a plan in either run; where it does not fit, no other fact is known."""
    if now is None:
        yield ScheduleFact(was, was, "fits", 1, None, Verdict.MISSING)
        return
    before, after = schedule_facts(was), schedule_facts(now)
    for name in dict.fromkeys((*before, *after)) if after["fits"] else ("fits",):
        values = before.get(name, 0), after.get(name, 0)
        yield ScheduleFact(was, now, name, *values, fact_verdict(name, *values, threshold))


def fact_verdict(name: str, was: float | None, now: float | None, threshold: float) -> Verdict:
    if was is None or now is None or abs(now - was) <= threshold * abs(was):
        return Verdict.UNCHANGED
    return Verdict.IMPROVED if (now > was) == (name in MORE_IS_BETTER) else Verdict.REGRESSED


def schedule_facts(m: Measurement) -> dict[str, float | None]:
    """The compiler's facts about a plan, by name."""
    program = m.compiled_program or CompiledProgram()
    found: dict[str, float | None] = {"fits": float(m.status == "ok"), "memory": m.peak_bytes}
    found["tiles computed"] = m.tiles and m.tiles.computed
    found["predicted overlap"] = m.overlap and m.overlap.ratio
    found["copied a round"] = program.copies.bytes_per_round if program.copies else 0
    kinds = sorted({each.opcode for each in program.collectives})
    for kind in kinds:
        alike = [each for each in program.collectives if each.opcode == kind]
        found[f"sent by {kind}"] = sum(each.sent_bytes * each.times for each in alike)
        found[f"{kind}s"] = sum(each.times for each in alike)
        found[f"synchronous {kind}s"] = sum(each.times for each in alike if not each.asynchronous)
        found[f"{kind}s without tiles"] = sum(each.times for each in alike if not each.beside_tiles)
    return found
