"""The measurements of a run together: speed-ups, baselines, and the simulations of measured plans."""

import functools
import re
from collections.abc import Hashable, Iterable
from dataclasses import replace

from stripectl.results.case import flags_text
from stripectl.results.findings import Speedup
from stripectl.results.measurement import Measurement
from stripectl.statistics.intervals import ratio_interval


class MeasurementSet(list[Measurement]):
    """The measurements of a run with indexes, so that a large run is searched once. It is not changed after it is
    made."""

    @functools.cached_property
    def simulated(self) -> dict[Hashable, Measurement]:
        """The first simulation of each plan, workload and target."""
        return {m.identity: m for m in reversed(self) if m.method == "simulated"}

    @functools.cached_property
    def alone(self) -> dict[Hashable, Measurement]:
        """Measurements on one device that have a time."""
        return {device_scaling_key(m): m for m in reversed(self) if m.median_s and m.devices == 1}

    @functools.cached_property
    def contiguous(self) -> dict[Hashable, Measurement]:
        """Measurements in the contiguous layout that have a time, by their other properties."""
        found: dict[Hashable, Measurement] = {}
        for m in reversed(self):
            if m.median_s and m.plan.layout == "contiguous":
                found[(*device_scaling_key(m), m.target, m.plan)] = m
        return found

    @functools.cached_property
    def overlaps(self) -> dict[Hashable, Measurement]:
        """Measurements of compiled schedules, by plan, workload and flags."""
        return {
            (m.identity[0], m.plan, m.target.hardware): m
            for m in reversed(self)
            if m.method == "compiled" and m.overlap
        }

    def simulation_of(self, m: Measurement) -> Measurement | None:
        """The simulation of a measured plan; None where the run has none."""
        return self.simulated.get(m.identity) if m.method == "measured" else None

    def simulation_error(self, m: Measurement) -> float | None:
        """The relative error of the simulation of a measured plan: simulated over measured, minus 1."""
        other = self.simulation_of(m)
        return other.median_s / m.median_s - 1 if other and other.median_s and m.median_s else None

    def over_one_device(self, m: Measurement) -> float | None:
        """The speed-up over the same workload on one device of the same target, by the same method."""
        base = self.alone.get(device_scaling_key(m)) if m.devices > 1 else None
        return base.median_s / m.median_s if base and base.median_s and m.median_s else None

    def predicted_overlap(self, m: Measurement) -> float | None:
        """The share of communication that the compiled schedule of the same plan, workload and flags hides; None where
        the run has no such schedule."""
        other = self.overlaps.get((m.identity[0], m.plan, m.target.hardware))
        return other.overlap.ratio if other and other.overlap else None


def indexed(measurements: Iterable[Measurement]) -> MeasurementSet:
    """Some measurements of a run with indexes."""
    return measurements if isinstance(measurements, MeasurementSet) else MeasurementSet(measurements)


def device_scaling_key(m: Measurement) -> tuple[Hashable, ...]:
    """The properties that are equal in a comparison of one device with several."""
    return m.target.hardware, m.workload, m.method, flags_text(m.flags)


def with_speedups(measurements: Iterable[Measurement]) -> MeasurementSet:
    """Every measurement with its speed-up over the contiguous ring of the same workload, target, method and number of
    devices (without such a ring, over the first contiguous plan, else the first)."""
    measurements = list(measurements)
    baselines: dict[tuple[Hashable, ...], Measurement] = {}

    def group(m: Measurement) -> tuple[Hashable, ...]:
        return (m.workload, m.target, m.method, m.devices)

    timed = [m for m in measurements if m.status == "ok" and m.median_s]
    known = {m.key for m in timed}
    for m in sorted(timed, key=_baseline_rank):
        baselines.setdefault(group(m), m)
    return MeasurementSet(_over(m, baselines.get(group(m))) if m.key in known else m for m in measurements)


def _baseline_rank(m: Measurement) -> int:
    """The contiguous ring first, then other contiguous plans, then the rest."""
    return 2 if m.plan.layout != "contiguous" else int(m.plan.scheme != "ring")


def _over(m: Measurement, base: Measurement | None) -> Measurement:
    """Add the speed-up over the base; a measurement that has one, as in a run that was read from a file, stays."""
    speedup = None
    if base is not None and base is not m and base.median_s and m.median_s:
        interval = ratio_interval(base.samples_s, m.samples_s)
        speedup = Speedup(over=base.plan, value=base.median_s / m.median_s, ci95=interval)
    return m if m.speedup == speedup else replace(m, speedup=speedup)


def refusals_and_failures(measurements: Iterable[Measurement]) -> list[list[Measurement]]:
    """Refused and failed measurements, grouped where their reasons differ only in numbers."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for m in measurements:
        if m.status != "ok":
            groups.setdefault((m.status, re.sub(r"\d+", "0", str(m.reason or ""))), []).append(m)
    return list(groups.values())
