"""Backends without a device or a compiler, through which tests drive the command line."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from stripectl.core.method import Method
from stripectl.hardware.target import parse_target
from stripectl.measure.local_target import LocalTarget
from stripectl.results.backend import Backend, DevicesFound, Event, Final, Partial, Tell, ignore
from stripectl.results.case import Case
from stripectl.results.cost_source import FROM_DATASHEET, CostOrigin, CostSource
from stripectl.results.devices import DeviceGroup
from stripectl.results.findings import Check
from stripectl.results.measurement import Measurement
from stripectl.runner.request import Request
from stripectl.util.progress import Say
from stripectl.workers.hosts import Cluster, HostLost
from tests.support.factories import because, with_samples

SLOWDOWN = {"contiguous": 1.2, "striped": 1.0, "zigzag": 1.1}  # on several devices, by layout: less than any bound
SAMPLES = (0.98, 0.99, 1.0, 1.01, 1.02)


@dataclass(frozen=True)
class FakeBackend:
    """Plans scale with their devices, but for their layout; `refuses` is a text in plans that it refuses, and
    before a plan with `interrupted` in it the user interrupts, or a host is lost."""

    method: Method
    refuses: str | None = None
    interrupted: str | None = None
    interrupt: type[KeyboardInterrupt] | HostLost = KeyboardInterrupt
    previous: Sequence[Measurement] = ()  # of a resumed run
    sampled: list[str] = field(default_factory=list)  # the plan of every sample that a search took

    def prepare(self, cases: Sequence[Case]) -> None:
        """It is always ready."""

    def run(self, cases: Sequence[Case], budget_s: float = math.inf) -> Iterator[Event]:
        for case in cases:
            self.may_interrupt(case)
            made = self.begin(case)
            if made.status != "ok":
                yield Final(made)
            elif self.method != "measured":
                yield Final(replace(made, median_s=seconds_of(case), cost_source=FROM_DATASHEET))
            else:
                samples = tuple(seconds_of(case) * each for each in SAMPLES)
                yield Partial(replace(made, samples_s=samples[:1], median_s=samples[0]))
                yield Final(checked(made, samples))

    def begin(self, case: Case) -> Measurement:
        """The case before it runs, or refused."""
        made = Measurement.of(case, self.method)
        if case.is_ready and self.refuses and self.refuses in str(case.plan):
            return replace(made, status="refused", reason=because("the fake backend refuses it"))
        return made

    def may_interrupt(self, case: Case) -> None:
        if self.interrupted and self.interrupted in str(case.plan):
            raise self.interrupt

    def sampler(self, cases: Sequence[Case]) -> "FakeSampler":
        known = {m.identity: list(m.samples_s) for m in self.previous}
        return FakeSampler(self, cases, [known.get(case.identity, []) for case in cases])


def seconds_of(case: Case) -> float:
    slower = SLOWDOWN[case.plan.layout] if case.devices > 1 else 1.0
    rows = case.plan.tile.block_q if case.plan.tile else 128
    return slower * case.workload.flops / case.devices / 1e13 * (1 + 16 / rows)


def checked(made: Measurement, samples_s: Sequence[float]) -> Measurement:
    check = Check(max_rel_error=1e-6, tolerance=2e-5, reference="float64")
    return replace(with_samples(made, samples_s), check=check)


@dataclass
class FakeSampler:
    """One sample of one case at a time. A simulated backend times blocks, so its results are only rough."""

    backend: FakeBackend
    cases: Sequence[Case]
    known: list[list[float]]  # samples of a resumed run, used first
    spent_s: float = 0.0

    def __post_init__(self) -> None:
        self.samples_s, self.shorts_s = ([list[float]() for _ in self.cases] for _ in range(2))
        self.prior_s = [1.0 for _ in self.cases]

    def pull_short(self, index: int) -> float | None:
        return self.pull(index, self.shorts_s[index])

    def pull_full(self, index: int) -> float | None:
        return self.pull(index, self.samples_s[index], self.known[index])

    def pull(self, index: int, samples_s: list[float], known: Sequence[float] = ()) -> float | None:
        case, nth = self.cases[index], len(samples_s)
        self.backend.may_interrupt(case)
        if self.backend.begin(case).status != "ok":
            return None
        if nth >= len(known):
            self.backend.sampled.append(str(case.plan))
        seconds = known[nth] if nth < len(known) else seconds_of(case) * SAMPLES[nth % len(SAMPLES)]
        samples_s.append(seconds)
        self.spent_s += seconds
        return seconds

    def result(self, index: int) -> Measurement | None:
        made, samples_s, shorts_s = self.backend.begin(self.cases[index]), self.samples_s[index], self.shorts_s[index]
        if made.status != "ok":
            return made
        if samples_s and self.backend.method == "measured":
            return checked(made, samples_s)
        rough = CostOrigin.SHORT_RUN if self.backend.method == "measured" else CostOrigin.ONE_BLOCK
        seconds = next(iter([*samples_s, *shorts_s]), None)
        source = CostSource(source=rough)
        return replace(made, method="simulated", median_s=seconds, cost_source=source) if seconds else None

    def release(self) -> None:
        """Nothing is held."""


@dataclass
class FakeBackends:
    """In place of `LocalBackends`: the target's devices are all here where it is a CPU's."""

    request: Request
    say: Say
    cluster: Cluster | None = None
    tell: Tell = ignore
    refuses: str | None = None
    interrupted: str | None = None
    interrupt: type[KeyboardInterrupt] | HostLost = KeyboardInterrupt
    sampled: list[str] = field(default_factory=list)

    def __enter__(self) -> "FakeBackends":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    @property
    def place(self) -> LocalTarget:
        target = parse_target("cpu:8" if self.request.target == "local" else self.request.target, self.request.hardware)
        if target.hardware.kind != "cpu":
            return LocalTarget(target)
        count = target.devices
        found = DeviceGroup(processes=count, platform="cpu", kind="cpu", count=count, coordinates=[None] * count)
        self.tell(DevicesFound([found]))
        return LocalTarget(target, target.devices, target.devices)

    def simulated(self, place: LocalTarget, explains: bool = True) -> FakeBackend:
        return self.backend("simulated")

    def compiled(self, place: LocalTarget) -> Backend:
        return self.backend("compiled")

    def measured(self, place: LocalTarget) -> FakeBackend:
        return self.backend("measured")

    def backend(self, method: Method) -> FakeBackend:
        return FakeBackend(method, self.refuses, self.interrupted, self.interrupt, self.request.previous, self.sampled)
