"""Plans that run on the local devices one sample at a time, as a search asks: short runs first, then full runs."""

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stripectl.core.reason import Reason
from stripectl.core.sequence_sharding import axes_of, min_heads, query_sharding
from stripectl.measure.prior import work_of
from stripectl.measure.sampler import SamplingOptions, SamplingState, prepare
from stripectl.results.case import Case
from stripectl.results.cost_source import CostOrigin, CostSource, Timings
from stripectl.results.measurement import Measurement
from stripectl.results.noise import Disturbances
from stripectl.util.progress import Say
from stripectl.workers.failure import failure_kind
from stripectl.workers.worker_group import WorkerError, WorkerGroup


class PlanSampler:
    """Plans that run here (`Sampler`). A short run has one key/value group per device, because cost is linear in heads
    and batch. The warm-up run is the first short run; where the workload is no larger than that, short runs count as
    full runs."""

    def __init__(self, workers: WorkerGroup, cases: Sequence[Case], effort: SamplingOptions, say: Say) -> None:
        self.workers, self.effort, self.say = workers, effort, say
        begun = [Measurement.of(case, "measured") for case in cases]
        self.cases = [SamplingState(each, f"whole {i}", []) for i, each in enumerate(begun)]
        self.brief = [
            SamplingState(cut_to_a_group(each.measurement)[0], f"short {i}", []) for i, each in enumerate(self.cases)
        ]
        self.prior_s = [work_of(case) for case in cases]
        self.shorts_s: list[list[float]] = [[] for _ in cases]  # short runs, scaled to a full run
        self.known_s: list[list[float]] = [[] for _ in cases]  # of a resumed run, used before any new run
        self.kept_s: list[list[float]] = [[] for _ in cases]  # short runs that are full runs
        self.known_whole_s: list[list[float]] = [[] for _ in cases]
        self.spent_s, self.ready = 0.0, dict[str, SamplingState]()

    def pull_short(self, index: int) -> float | None:
        case, brief = self.cases[index], self.brief[index]
        times = cut_to_a_group(case.measurement)[1]
        if times == 1:
            seconds = self._whole_as_short(index)
        elif self.known_s[index]:
            seconds = self.known_s[index].pop(0)
        else:
            self.say(f"short run of {case.measurement.plan}", index, len(self.cases))
            one = self._sample(brief) if self.shorts_s[index] else self._warm(brief)
            seconds = None if one is None else times * one
            case.measurement = replace(case.measurement, check=brief.measurement.check)
            if not brief.is_active:
                case.measurement = replace(
                    case.measurement, status=brief.measurement.status, reason=brief.measurement.reason
                )
        if seconds is None:
            return None
        if times != 1:
            self.spent_s += seconds / times
        self.shorts_s[index].append(seconds)
        return seconds

    def _whole_as_short(self, index: int) -> float | None:
        """The warm-up run, then full runs, which are kept for later requests."""
        if self.shorts_s[index]:
            if (seconds := self.pull_full(index)) is not None:
                self.kept_s[index].append(self.cases[index].samples_s.pop())
            return seconds
        known = self.known_s[index]
        seconds = known.pop(0) if known else self._warm(self.cases[index])
        self.spent_s += seconds or 0.0
        return seconds

    def pull_full(self, index: int) -> float | None:
        case = self.cases[index]
        if self.kept_s[index]:
            seconds = self.kept_s[index].pop(0)
            case.samples_s.append(seconds)
            return seconds
        warms_up = not case.samples_s and cut_to_a_group(case.measurement)[1] != 1
        if self.known_whole_s[index]:
            seconds = self.known_whole_s[index].pop(0)
        else:
            self.say(f"sample {len(case.samples_s) + 1} of {case.measurement.plan}", index, len(self.cases))
            sampled = self._sample(case)
            if sampled is None:
                return None
            seconds = sampled
        case.samples_s.append(seconds)
        self.spent_s += seconds + ((case.warmup_s or seconds) if warms_up else 0.0)
        return seconds

    def _warm(self, case: SamplingState) -> float | None:
        """Seconds of the warm-up run."""
        self._make_ready(case)
        return case.warmup_s if case.is_active else None

    def _sample(self, case: SamplingState) -> float | None:
        self._make_ready(case)
        try:
            return case.sample(self.workers) if case.is_active else None
        except WorkerError as failure:
            case.fail(Reason(failure_kind(failure), str(failure)))
            return None

    def _make_ready(self, case: SamplingState) -> None:
        """Prepare the plan; where the workers were lost, other plans are prepared again when they are needed."""
        if not self.workers.workers:
            self.ready.clear()
        if case.is_active and case.key not in self.ready:
            prepare(self.workers, case, self.effort, verify=case.measurement.check is None)
            if not self.workers.workers:
                self.ready.clear()
            elif case.is_active:
                self.ready[case.key] = case

    def resume(self, done: Mapping[tuple[str, ...], Measurement]) -> None:
        """Use earlier results instead of running again."""
        for index, case in enumerate(self.cases):
            known = done.get(case.measurement.identity)
            if not known or known.status != "ok":
                continue
            shorts_s = known.cost_source.timings.shorts_s if known.cost_source else ()
            if shorts_s or known.samples_s:
                self.known_s[index], self.known_whole_s[index] = list(shorts_s), list(known.samples_s)
                # The limit of a race is device time: a resumed race must know all that was spent.
                case.warmup_s = (known.cost_source.timings.warmup_s if known.cost_source else None) or 0.0
                case.watch = Disturbances.before(known)
                case.measurement = replace(known, method="measured", samples_s=(), median_s=None, ci95_s=None)

    def result(self, index: int) -> Measurement | None:
        """The latest result of a case: measured, or simulated from its short runs."""
        case, shorts_s = self.cases[index], [*self.shorts_s[index], *self.known_s[index]]
        case = replace(case, samples_s=[*case.samples_s, *self.known_whole_s[index]])
        cut, times = cut_to_a_group(case.measurement)
        short = CostSource(
            source=CostOrigin.SHORT_RUN,
            timings=Timings(
                shorts_s=tuple(shorts_s), warmup_s=case.warmup_s or None, heads=cut.workload.heads, times=times
            ),
        )
        if case.samples_s or not case.is_active:
            return replace(case.to_measurement(), cost_source=short if case.is_active else None)
        if not shorts_s:
            return None
        return replace(case.measurement, method="simulated", median_s=statistics.median(shorts_s), cost_source=short)

    def release(self) -> None:
        """Forget the plans."""
        if self.workers.workers:
            with contextlib.suppress(WorkerError):  # no request follows
                self.workers.ask("release")


def cut_to_a_group(case: Measurement) -> tuple[Measurement, float]:
    """(the case with one key/value group and one sequence per device, the factor by which the full case is larger)."""
    plan, work = case.plan, case.workload
    batch = plan.product(axes_of(plan, query_sharding(work, plan))[0])
    short = replace(work, **min_heads(work, plan), batch=batch, model=None)
    return replace(case, workload=short), work.heads / short.heads * (work.batch / batch)
