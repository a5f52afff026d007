"""Measures plans on a worker group, side by side: prepared one by one, then sampled in alternation, so that a machine
that speeds up or slows down affects all of them."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from stripectl.compile.compiler import COMPILE_TIMEOUT_S
from stripectl.core.reason import Reason, ReasonKind
from stripectl.profiling.profiler import Tracer
from stripectl.results.findings import Check
from stripectl.results.measurement import Measurement
from stripectl.results.noise import MAX_RETAKES, Disturbances, SampleAnswer
from stripectl.results.records import read_record
from stripectl.statistics.intervals import median_interval
from stripectl.util.progress import Say
from stripectl.workers.failure import failure_kind, failure_reason
from stripectl.workers.hosts import HostLost
from stripectl.workers.worker_group import WorkerError, WorkerGroup

UNFINISHED = Reason(ReasonKind.UNFINISHED, "its sampling was cut short")  # --resume completes it
NARROW_INTERVAL = 0.02  # half a 95 % interval over its median: a narrower interval is narrow enough
MAX_SAMPLES = 30  # more samples would not average out the remaining noise
REPORT_EVERY_S = 1.0  # for the samples so far
MIN_SAMPLE_TIMEOUT_S = 60.0  # of a sample, in addition to a multiple of the plan's warm-up time


@dataclass(frozen=True)
class SamplingOptions:
    """How much to measure: `budget_s` is for all sampling of a command; compiling and calibrating count towards it, but
    are not cut short. `compile_timeout_s` is for one plan."""

    budget_s: float = 180.0
    min_samples: int = 5
    warmup: int = 1
    compile_timeout_s: float = COMPILE_TIMEOUT_S
    profile_folder: Path | None = None  # the run's folder, where a profile of every plan is to be captured
    profile_steps: int = Tracer.steps


@dataclass
class SamplingState:
    """A measurement that is being sampled."""

    measurement: Measurement
    key: str
    samples_s: list[float]
    warmup_s: float = 0.0
    is_active: bool = True
    watch: Disturbances = field(default_factory=Disturbances)

    @classmethod
    def begin(cls, key: str, known: Measurement) -> "SamplingState":
        """Start or continue a measurement from its samples."""
        bare = replace(known, samples_s=(), median_s=None, ci95_s=None, noise=None)
        return cls(bare, key, list(known.samples_s), watch=Disturbances.before(known))

    def fail(self, reason: Reason, status: Literal["failed", "refused"] = "failed") -> None:
        self.measurement = replace(self.measurement, status=status, reason=reason)
        self.is_active = False

    def sample(self, devices: WorkerGroup) -> float:
        """Seconds of a run, repeated where something was compiled during it.

        Raises:
            WorkerError: it could not run, or compiles in every run.
        """
        for _ in range(MAX_RETAKES):
            answers = devices.ask("sample", self.limit_s, key=self.key)
            seconds = self.watch.seconds([read_record(SampleAnswer, each) for each in answers])
            if seconds is not None:
                return seconds
        raise WorkerError("every run compiles something, so none is a sample", group_alive=True)

    @property
    def is_known(self) -> bool:
        """Whether it has a sample, or failed."""
        return bool(self.samples_s) or not self.is_active

    @property
    def limit_s(self) -> float:
        """The time limit of a sample."""
        return MIN_SAMPLE_TIMEOUT_S + 20 * self.warmup_s

    @property
    def is_narrow(self) -> bool:
        median, interval = median_interval(self.samples_s)
        return interval is not None and (interval[1] - interval[0]) / 2 <= NARROW_INTERVAL * median

    def to_measurement(self, least: int = 0) -> Measurement:
        """Put the samples into a measurement; it is unfinished with fewer than `least`."""
        kept = replace(self.measurement, samples_s=tuple(self.samples_s))
        if kept.status != "ok":
            return kept
        if not self.samples_s:
            reason = Reason(ReasonKind.NOT_RUN, "no sample was taken before the run ended")
            return replace(kept, status="failed", reason=reason)
        median, interval = median_interval(self.samples_s)
        reason = UNFINISHED if len(self.samples_s) < least else None
        return replace(kept, median_s=median, ci95_s=interval, reason=reason, noise=self.watch.noise)


def measure(
    devices: WorkerGroup,
    wanted: Sequence[Measurement],
    effort: SamplingOptions,
    budget_s: float,
    say: Say,
    link_bytes_per_s: float | None = None,
    tracer: Tracer | None = None,
) -> Iterator[list[Measurement]]:
    """The requested measurements (with workload, plan and target, and samples to continue from), sampled in alternation
    for at most `budget_s`, and traced where there is a tracer; the rate of a link in one direction tells whether it
    limits a hop. Yields from time to time the measurements that have samples, or failed, and at the end, or before an
    interrupt continues, all of them.

    A plan that fails costs only itself: where it took the workers down they are started again, and the other plans are
    prepared again.
    """
    cases = [SamplingState.begin(str(index), m) for index, m in enumerate(wanted)]

    def known() -> list[Measurement]:
        return [case.to_measurement(effort.min_samples) for case in cases if case.is_known]

    try:
        prepare_all(devices, cases, effort, say)
        for _ in _sample(devices, cases, effort, budget_s, say):
            yield known()
        yield known()
        if tracer:
            _trace(devices, cases, tracer, effort, say, link_bytes_per_s)
        if devices.workers:
            with contextlib.suppress(WorkerError):  # no request follows
                devices.ask("release")
    except KeyboardInterrupt as error:
        if isinstance(error, HostLost):
            fail_without_host(cases, error)
        yield known()
        raise
    yield [case.to_measurement() for case in cases]


def prepare_all(devices: WorkerGroup, cases: Sequence[SamplingState], effort: SamplingOptions, say: Say) -> None:
    """Prepare the plans one by one."""
    for done, case in enumerate(cases):
        say(f"check and compile {case.measurement.plan}", done, len(cases))
        prepare(devices, case, effort)
        prepare_again(devices, cases[:done], effort)


def fail_without_host(cases: Sequence[SamplingState], lost: HostLost) -> None:
    """Fail the plan that ran when a host was lost, and refuse the later plans without a sample."""
    waiting = [case for case in cases if case.is_active and not case.samples_s]
    running = next((case for case in waiting if not case.warmup_s), waiting[0] if waiting else None)
    for case in waiting:
        if case is running:
            case.fail(Reason(ReasonKind.HOST_LOST, f"a host was lost while this plan ran: {lost.fact}"))
        else:
            case.fail(refused_without(lost), "refused")


def refused_without(lost: HostLost) -> Reason:
    """The reason of a plan that did not run before a host was lost."""
    return Reason(ReasonKind.HOST_LOST, f"a host was lost before this plan ran: {lost.fact}")


def prepare(devices: WorkerGroup, case: SamplingState, effort: SamplingOptions, verify: bool = True) -> None:
    """Check the plan unless it was checked, compile it and run it until it is warm; it may fail, or be refused."""
    wanted = case.measurement
    request = {"workload": wanted.workload.to_json(), "plan": str(wanted.plan), "flags": dict(wanted.flags or {})}
    request |= {} if verify else {"verify": False}
    try:
        answers = devices.ask("prepare", effort.compile_timeout_s, key=case.key, warmup=effort.warmup, **request)
    except WorkerError as failure:
        return case.fail(*failure_reason(failure))
    checks = [read_record(Check, answer["check"]) for answer in answers if answer["check"]]
    worst = max(checks, key=lambda check: check.error, default=wanted.check)
    case.warmup_s = max(answer["warm_s"] for answer in answers)
    case.measurement = replace(
        wanted,
        check=worst,
        compile_s=max(answer["compile_s"] for answer in answers),
        bytes=answers[0]["bytes"] or wanted.bytes,
        peak_bytes=max((answer["peak_bytes"] or 0 for answer in answers), default=0) or None,
    )
    if worst is not None and not worst.passes:
        found, allowed = f"{worst.max_rel_error:.1e}", f"{worst.tolerance:.0e}"
        fact = f"wrong numbers: error {found} against {worst.reference}; at most {allowed} is allowed"
        case.fail(Reason(ReasonKind.WRONG_NUMBERS, fact))


def prepare_again(devices: WorkerGroup, cases: Sequence[SamplingState], effort: SamplingOptions) -> None:
    """After the workers were lost: prepare the plans again in new workers, until none of them takes the workers
    down."""
    while not devices.workers and (left := [case for case in cases if case.is_active]):
        for case in left:
            prepare(devices, case, effort, verify=case.measurement.check is None)
            if not devices.workers:
                break


def _trace(
    devices: WorkerGroup,
    cases: Sequence[SamplingState],
    tracer: Tracer,
    effort: SamplingOptions,
    say: Say,
    link: float | None,
) -> None:
    """Capture profiles of the plans that have samples."""
    live = [case for case in cases if case.is_active]
    for done, case in enumerate(live):
        say(f"profile {case.measurement.plan}", done, len(live))
        limit_s = MIN_SAMPLE_TIMEOUT_S + 20 * case.warmup_s * (tracer.steps + 1)
        case.measurement = tracer.trace(devices, case.key, case.measurement, limit_s, link)
        prepare_again(devices, live, effort)


def _sample(
    devices: WorkerGroup,
    cases: Sequence[SamplingState],
    effort: SamplingOptions,
    budget_s: float,
    say: Say,
) -> Iterator[None]:
    """Sample all open cases in alternation until they have enough; when continuing, the cases with the fewest samples
    first. Yields every REPORT_EVERY_S."""
    told_s = time.monotonic()
    deadline = told_s + budget_s
    while live := [case for case in cases if case.is_active]:
        turns = min(len(case.samples_s) for case in live)
        spent = time.monotonic() + sum(case.warmup_s for case in live) > deadline
        enough = turns >= effort.min_samples and all(case.is_narrow for case in live)
        if turns and (spent or enough or turns >= max(MAX_SAMPLES, effort.min_samples)):
            return
        for position, case in enumerate(live):
            if not case.is_active or len(case.samples_s) > turns:
                continue
            done = turns * len(live) + position
            say(f"sample {turns + 1} of {case.measurement.plan}", done, max(effort.min_samples * len(live), done + 1))
            try:
                case.samples_s.append(case.sample(devices))
            except WorkerError as failure:
                case.fail(Reason(failure_kind(failure), str(failure)))
                prepare_again(devices, live, effort)
            if time.monotonic() - told_s > REPORT_EVERY_S:
                yield
                told_s = time.monotonic()
