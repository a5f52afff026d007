"""The measurement of a plan, and the statistics over it.

Raw samples are stored, and statistics are derived from them. A plan that was refused or failed is a Measurement with a
reason.
"""

import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from stripectl.core.method import Method
from stripectl.core.plan import Plan, UnreadablePlan
from stripectl.core.workload import Workload
from stripectl.hardware.target import TargetName
from stripectl.results.compiled_program import CompiledProgram
from stripectl.results.cost_source import CostSource
from stripectl.results.findings import Bound, Check, CommunicationOverlap, Noise, Speedup, TileTally
from stripectl.results.profile import Profile
from stripectl.results.records import Amount, Count, read_record, record_json, workload_json
from stripectl.results.schema import MAX_SAMPLES
from stripectl.statistics.intervals import ratio_interval
from stripectl.util.json import JsonObject


@dataclass(frozen=True)
class TimeAtLength:
    """The time in seconds at a sequence length in tokens."""

    seq_len: Amount
    median_s: Amount


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One plan, workload and method: its time and other results, and their sources. Absent data is None."""

    workload: Workload
    plan: Plan
    target: TargetName
    method: Method
    status: Literal["ok", "refused", "failed"] = "ok"
    reason: str | None = None
    samples_s: tuple[Amount, ...] = ()
    median_s: Amount | None = None
    ci95_s: tuple[Amount, Amount] | None = None
    compile_s: Amount | None = None
    peak_flops_per_s: Amount | None = None  # of one device, for the MFU
    speedup: Speedup | None = None
    bound: Bound | None = None
    tiles: TileTally | None = None
    bytes: Mapping[str, Count] | None = None  # sent by a device, by opcode
    peak_bytes: Count | None = None
    hbm_bytes: Count | None = None
    overlap: CommunicationOverlap | None = None
    check: Check | None = None
    cost_source: CostSource | None = None
    flags: Mapping[str, str] | None = None  # of the compiler, in addition to the environment's
    compiled_program: CompiledProgram | None = None
    profile: Profile | None = None
    noise: Noise | None = None
    step_parts: Mapping[str, Amount] | None = None  # seconds of the parts of a training step
    memory: Mapping[str, Count] | None = None  # predicted bytes of the parts of a step, at the peak
    bottleneck_shares: Mapping[str, Amount] | None = (
        None  # of the time, saved if a part of the machine were twice as fast
    )
    scaling: tuple[TimeAtLength, ...] | None = None  # the same plan at other lengths

    def __post_init__(self) -> None:
        if len(self.samples_s) > MAX_SAMPLES:
            raise TypeError(f"a measurement has at most {MAX_SAMPLES:,} samples")

    @functools.cached_property
    def identity(self) -> tuple[str, ...]:
        """The subject of the measurement, by any method: workload, plan, target and the compiler's flags."""
        flags = json.dumps(self.flags or {}, sort_keys=True)
        return f"[{_text_of(self.workload)}, {flags}]", str(self.plan), str(self.target)

    @functools.cached_property
    def printed_plan(self) -> str:
        """The plan as text, with the compiler's flags."""
        return f"{self.plan}{flags_text(self.flags)}"

    @property
    def key(self) -> tuple[str, ...]:
        """Equal in two runs for the same plan, workload, target, flags and method."""
        return *self.identity, self.method

    @property
    def is_search_probe(self) -> bool:
        """Whether its time is too rough for the plan to be called the fastest."""
        return self.cost_source is not None and self.cost_source.source.is_search_probe

    @property
    def devices(self) -> int:
        return self.plan.devices

    @property
    def slowest_bytes_per_s(self) -> float | None:
        """The rate of the slowest hop that its time depends on."""
        return self.cost_source.slowest_bytes_per_s if self.cost_source else None

    @property
    def tokens_per_s(self) -> float | None:
        return self.workload.queries * self.workload.batch / self.median_s if self.median_s else None

    @property
    def flops_per_s_per_device(self) -> float | None:
        return self.workload.flops / self.median_s / self.devices if self.median_s else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs (no recomputation) per second divided by the device's peak."""
        if self.flops_per_s_per_device is None or not self.peak_flops_per_s:
            return None
        return self.flops_per_s_per_device / self.peak_flops_per_s

    def to_json(self) -> JsonObject:
        rate = self.flops_per_s_per_device
        derived = {
            "pass": self.workload.passes,
            "tokens_per_s": self.tokens_per_s,
            "flops": self.workload.flops,
            "tflops_per_s_per_device": rate and rate / 1e12,
            "mfu": self.mfu,
        }
        return {**record_json(self), **derived}

    @classmethod
    def from_json(cls, content: Mapping[str, object]) -> "Measurement":
        """A measurement from its JSON, by the names of this schema or an older one.

        Raises:
            TypeError: it is not one.
        """
        named = {RENAMED.get(name, name): value for name, value in content.items() if value is not None}
        return read_record(cls, named)


# Fields by their names in schema `stripectl.run/1`.
RENAMED = {
    "calibration": "cost_source",
    "guards": "noise",
    "limits": "bottleneck_shares",
    "parts": "step_parts",
    "program": "compiled_program",
    "trace": "profile",
}


def readable(m: Measurement) -> Measurement:
    """The measurement; without a time, and with a reason, where this version of stripectl cannot read its plan."""
    if not isinstance(m.plan, UnreadablePlan):
        return m
    unread = {"status": "failed", "reason": f"this version of stripectl cannot read the plan: {m.plan.reason}"}
    figures = dict.fromkeys(("median_s", "peak_bytes", "compiled_program", "tiles"))
    return replace(m, **(unread if m.status == "ok" else {}), **figures)


@functools.lru_cache(4096)
def _text_of(workload: Workload) -> str:
    return json.dumps(workload_json(workload), sort_keys=True)


def flags_text(flags: Mapping[str, str] | None) -> str:
    """The compiler's flags as text after a plan."""
    return "".join(f" {name}={value}" for name, value in (flags or {}).items())


class MeasurementSet(list[Measurement]):
    """The measurements of a run with indexes, so that a large run is searched once."""

    @functools.cached_property
    def simulated(self) -> dict[Any, Measurement]:
        """The first simulation of each plan, workload and target."""
        return {m.identity: m for m in reversed(self) if m.method == "simulated"}

    @functools.cached_property
    def alone(self) -> dict[Any, Measurement]:
        """Measurements on one device that have a time."""
        return {device_scaling_key(m): m for m in reversed(self) if m.median_s and m.devices == 1}

    @functools.cached_property
    def contiguous(self) -> dict[Any, Measurement]:
        """Measurements in the contiguous layout that have a time, by their other properties."""
        found = {}
        for m in reversed(self):
            if m.median_s and m.plan.layout == "contiguous":
                found[(*device_scaling_key(m), m.target, m.plan)] = m
        return found

    @functools.cached_property
    def overlaps(self) -> dict[Any, Measurement]:
        """Measurements of compiled schedules, by plan, workload and flags."""
        return {
            (m.identity[0], m.plan, m.target.hardware): m
            for m in reversed(self)
            if m.method == "compiled" and m.overlap
        }


def measurement_set(run: Iterable[Measurement]) -> MeasurementSet:
    return run if isinstance(run, MeasurementSet) else MeasurementSet(run)


def device_scaling_key(m: Measurement) -> tuple[Any, ...]:
    """The properties that are equal in a comparison of one device with several."""
    return m.target.hardware, m.workload, m.method, flags_text(m.flags)


def with_speedups(measurements: Iterable[Measurement]) -> MeasurementSet:
    """Every measurement with its speed-up over the contiguous ring of the same workload, target, method and number of
    devices (where there is none, over the first contiguous plan, else the first)."""
    measurements = list(measurements)
    baselines: dict[tuple[Any, ...], Measurement] = {}

    def group(m: Measurement) -> tuple[Any, ...]:
        return (m.workload, m.target, m.method, m.devices)

    timed = [m for m in measurements if m.status == "ok" and m.median_s]
    known = set(map(id, timed))
    for m in sorted(timed, key=_baseline_rank):
        baselines.setdefault(group(m), m)
    return MeasurementSet(_over(m, baselines.get(group(m))) if id(m) in known else m for m in measurements)


def _baseline_rank(m: Measurement) -> int:
    """The contiguous ring first, then other contiguous plans, then the rest."""
    return 2 if m.plan.layout != "contiguous" else int(m.plan.scheme != "ring")


def _over(m: Measurement, base: Measurement | None) -> Measurement:
    """The measurement with its speed-up over the base; unchanged where it already has one, as in a run that was read
    from a file."""
    speedup = None
    if base is not None and base is not m and base.median_s and m.median_s:
        interval = ratio_interval(base.samples_s, m.samples_s)
        speedup = Speedup(over=base.plan, value=base.median_s / m.median_s, ci95=interval)
    return m if m.speedup == speedup else replace(m, speedup=speedup)


def attention_bound(m: Measurement) -> float | None:
    """The bound on the speed-up of a measurement; None where the speed-up is over another scheme, because a layout's
    bound does not hold there."""
    same = m.speedup is None or m.speedup.over.scheme == m.plan.scheme
    return m.bound.attention_only if m.bound and same and m.devices > 1 else None


def over_one_device(m: Measurement, run: Iterable[Measurement]) -> float | None:
    """The speed-up over the same workload on one device of the same target, by the same method."""
    if not m.median_s or m.devices == 1:
        return None
    base = measurement_set(run).alone.get(device_scaling_key(m))
    return base.median_s / m.median_s if base and base.median_s else None


def simulation_of(m: Measurement, run: Iterable[Measurement]) -> Measurement | None:
    """The simulation of a measured plan; None where the run has none."""
    if m.method != "measured":
        return None
    return measurement_set(run).simulated.get(m.identity)


def simulation_error(m: Measurement, run: Iterable[Measurement]) -> float | None:
    """The relative error of the simulation of a measured plan: simulated over measured, minus 1."""
    other = simulation_of(m, run)
    return other.median_s / m.median_s - 1 if other and other.median_s and m.median_s else None


def refusals_and_failures(measurements: Iterable[Measurement]) -> list[list[Measurement]]:
    """Refused and failed measurements, grouped where their reasons differ only in numbers."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for m in measurements:
        if m.status != "ok":
            groups.setdefault((m.status, re.sub(r"\d+", "0", m.reason or "")), []).append(m)
    return list(groups.values())


def predicted_overlap(m: Measurement, run: Iterable[Measurement]) -> float | None:
    """The share of communication that the compiled schedule of the same plan, workload and flags hides; None where the
    run has no such schedule."""
    other = measurement_set(run).overlaps.get((m.identity[0], m.plan, m.target.hardware))
    return other.overlap.ratio if other and other.overlap else None
