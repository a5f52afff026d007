"""Backends without a device or a compiler, through which tests drive the command line."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from stripectl.core.method import Method
from stripectl.hardware.target import parse_target
from stripectl.measure.device_pool import LocalTarget
from stripectl.results.backend import Event, Final, Partial
from stripectl.results.case import Case
from stripectl.results.cost_source import FROM_DATASHEET
from stripectl.results.devices import DeviceGroup
from stripectl.results.findings import Check
from stripectl.results.measurement import Measurement
from stripectl.runner.request import Request
from stripectl.statistics.intervals import median_interval
from stripectl.util.progress import Say
from stripectl.workers.hosts import Cluster

SLOWDOWN = {"contiguous": 1.2, "striped": 1.0, "zigzag": 1.1}  # on several devices, by layout: less than any bound
SAMPLES = (0.98, 0.99, 1.0, 1.01, 1.02)


@dataclass(frozen=True)
class FakeBackend:
    """Plans scale with their devices, but for their layout; `refuses` is a text in plans that it refuses, and
    before a plan with `interrupted` in it the user interrupts."""

    method: Method
    refuses: str | None = None
    interrupted: str | None = None

    def prepare(self, cases: Sequence[Case]) -> None:
        """It is always ready."""

    def run(self, cases: Sequence[Case], budget_s: float = math.inf) -> Iterator[Event]:
        for case in cases:
            if self.interrupted and self.interrupted in str(case.plan):
                raise KeyboardInterrupt
            made = Measurement.of(case, self.method)
            if not case.is_ready:
                yield Final(made)
                continue
            if self.refuses and self.refuses in str(case.plan):
                yield Final(replace(made, status="refused", reason="the fake backend refuses it"))
                continue
            slower = SLOWDOWN[case.plan.layout] if case.devices > 1 else 1.0
            seconds = slower * case.workload.flops / case.devices / 1e13
            if self.method != "measured":
                yield Final(replace(made, median_s=seconds, cost_source=FROM_DATASHEET))
                continue
            samples = tuple(seconds * each for each in SAMPLES)
            yield Partial(replace(made, samples_s=samples[:1], median_s=samples[0]))
            median, interval = median_interval(samples)
            check = Check(max_rel_error=1e-6, tolerance=2e-5, reference="float64")
            yield Final(replace(made, samples_s=samples, median_s=median, ci95_s=interval, check=check))


@dataclass
class FakeBackends:
    """In place of `LocalBackends`: the target's devices are all here where it is a CPU's."""

    request: Request
    say: Say
    cluster: Cluster | None = None
    discovered: Sequence[DeviceGroup] = field(default_factory=list)
    refuses: str | None = None
    interrupted: str | None = None

    def __enter__(self) -> "FakeBackends":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    @cached_property
    def place(self) -> LocalTarget:
        target = parse_target("cpu:8" if self.request.target == "local" else self.request.target, self.request.hardware)
        if target.hardware.kind != "cpu":
            return LocalTarget(target)
        count = target.devices
        found = DeviceGroup(processes=count, platform="cpu", kind="cpu", count=count, coordinates=[None] * count)
        self.discovered = [found]
        return LocalTarget(target, target.devices, target.devices)

    def simulated(self, place: LocalTarget, explains: bool = True) -> FakeBackend:
        return FakeBackend("simulated", self.refuses, self.interrupted)

    def compiled(self, place: LocalTarget) -> FakeBackend:
        return FakeBackend("compiled", self.refuses, self.interrupted)

    def measured(self, place: LocalTarget) -> FakeBackend:
        return FakeBackend("measured", self.refuses, self.interrupted)
