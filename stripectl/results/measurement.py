"""What was found of a plan, and the statistics of it.

Raw samples are stored and statistics derived from them. A plan that was refused or failed is a Measurement with a
reason.
"""

import functools
import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from stripectl.core.plan import Plan, UnreadablePlan, parse_plan, read_plan
from stripectl.core.workload import Workload
from stripectl.hardware.target import TargetName, read_target
from stripectl.statistics.bootstrap import medians, percentile_interval

SEARCH_PROBES = ("one_block", "short_run")  # what a search of tiles tried first


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One plan, workload and method: what it takes, and how that is known. Absent data is None."""

    workload: Workload
    plan: Plan
    target: TargetName
    method: str
    status: Literal["ok", "refused", "failed"] = "ok"
    reason: str | None = None
    samples_s: tuple[float, ...] = ()
    median_s: float | None = None
    ci95_s: tuple[float, float] | None = None
    compile_s: float | None = None
    peak_flops_per_s: float | None = None  # of one device, for the MFU
    speedup: Mapping[str, Any] | None = None
    bound: Mapping[str, float | None] | None = None
    tiles: Mapping[str, Any] | None = None
    bytes: Mapping[str, int] | None = None
    peak_bytes: int | None = None
    hbm_bytes: int | None = None
    overlap: Mapping[str, Any] | None = None
    check: Mapping[str, Any] | None = None
    cost_source: Mapping[str, Any] | None = None
    flags: Mapping[str, str] | None = None  # of the compiler, beyond those of the environment
    compiled_program: Mapping[str, Any] | None = None  # what the compiler says of a compiled plan
    profile: Mapping[str, Any] | None = None  # what a profile says of a measured one
    noise: Mapping[str, Any] | None = None  # what was beside its samples (`stripectl.results.noise`)
    step_parts: Mapping[str, float] | None = None  # seconds of the parts of a training step
    memory: Mapping[str, int] | None = None  # bytes of the parts of a step, at the peak, as they are predicted
    bottleneck_shares: Mapping[str, float] | None = (
        None  # what is saved were part of the machine twice as fast: a share
    )
    scaling: Sequence[Mapping[str, float]] | None = None  # the same plan at other lengths: seq_len, median_s

    @functools.cached_property
    def identity(self) -> tuple[str, ...]:
        """What it is a measurement of, by whatever method: workload, plan, target and the compiler's flags."""
        flags = json.dumps(self.flags or {}, sort_keys=True)
        return f"[{_text_of(self.workload)}, {flags}]", str(self.plan), str(self.target)

    @functools.cached_property
    def printed_plan(self) -> str:
        """The plan as text, with the compiler's flags."""
        return f"{self.plan}{flags_text(self.flags)}"

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for the same plan, workload, target, flags and method in two runs."""
        return *self.identity, self.method

    @property
    def is_search_probe(self) -> bool:
        """Whether its time stands on too little to be called the fastest by."""
        return (self.cost_source or {}).get("source") in SEARCH_PROBES

    @property
    def devices(self) -> int:
        return self.plan.devices

    @property
    def slowest_bytes_per_s(self) -> float | None:
        """Of the hops that its time stands on."""
        known = self.cost_source or {}
        hop = (known.get("hop") or {}).get("bytes_per_s_one_way")
        slower = [
            each["slowest_bytes_per_s"]
            for each in (known.get("slower_hops") or {}).values()
            if "slowest_bytes_per_s" in each
        ]
        return min([*([hop] if hop else []), *slower], default=None)

    @property
    def tokens_per_s(self) -> float | None:
        return self.workload.queries * self.workload.batch / self.median_s if self.median_s else None

    @property
    def flops_per_s_per_device(self) -> float | None:
        return self.workload.flops / self.median_s / self.devices if self.median_s else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs (no recomputation) per second over the peak of a device."""
        if self.flops_per_s_per_device is None or not self.peak_flops_per_s:
            return None
        return self.flops_per_s_per_device / self.peak_flops_per_s

    def to_json(self) -> dict[str, Any]:
        content = {name: getattr(self, name) for name in self.__dataclass_fields__}
        content |= {"workload": dict(_content_of(self.workload)), "pass": self.workload.passes}
        content |= {"plan": str(self.plan), "target": str(self.target)}
        rate = self.flops_per_s_per_device
        derived = {
            "tokens_per_s": self.tokens_per_s,
            "flops": self.workload.flops,
            "tflops_per_s_per_device": rate and rate / 1e12,
            "mfu": self.mfu,
        }
        return content | derived

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Measurement":
        known = {name: content[name] for name in cls.__dataclass_fields__ if name in content}
        known["workload"] = _workload_of(json.dumps(content["workload"]))
        known |= {"plan": read_plan(content["plan"]), "target": read_target(content["target"])}
        for name in ("samples_s", "ci95_s"):
            if known.get(name) is not None:
                known[name] = tuple(known[name])
        return cls(**known)


def readable(m: Measurement) -> Measurement:
    """The measurement; where its plan means nothing to this stripectl it has no time and says so."""
    if not isinstance(m.plan, UnreadablePlan):
        return m
    unread = {"status": "failed", "reason": f"this stripectl cannot read the plan: {m.plan.reason}"}
    figures = dict.fromkeys(("median_s", "peak_bytes", "compiled_program", "tiles"))
    return replace(m, **(unread if m.status == "ok" else {}), **figures)


@functools.lru_cache(4096)  # measurements of a run share their workloads
def _workload_of(text: str) -> Workload:
    return Workload.from_json(json.loads(text))


@functools.lru_cache(4096)
def _content_of(workload: Workload) -> dict[str, Any]:
    return workload.to_json()


@functools.lru_cache(4096)
def _text_of(workload: Workload) -> str:
    return json.dumps(_content_of(workload), sort_keys=True)


def check_error(check: Mapping[str, Any]) -> float:
    """The error that a check found, the larger the worse: one that is no number, or that nothing says, is infinite."""
    error = check.get("max_rel_error", float("nan"))
    return float("inf") if error != error else error


def flags_text(flags: Mapping[str, str] | None) -> str:
    """The compiler's flags, after a plan."""
    return "".join(f" {name}={value}" for name, value in (flags or {}).items())


def median_interval(samples_s: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """(median, its 95 % bootstrap interval); no interval from fewer than three samples."""
    median = statistics.median(samples_s)
    return median, percentile_interval(medians(samples_s)) if len(samples_s) >= 3 else None


def ratio_interval(slow_s: Sequence[float], fast_s: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of the ratio of medians. Samples of plans that are compared are interleaved, so the
    i-th of both were taken together and are resampled together."""
    count = min(len(slow_s), len(fast_s))
    return _ratio_interval(tuple(slow_s[:count]), tuple(fast_s[:count])) if count >= 3 else None


@functools.lru_cache(2**18)  # each is asked for several times
def _ratio_interval(slow_s: tuple[float, ...], fast_s: tuple[float, ...]) -> tuple[float, float]:
    return percentile_interval(medians(slow_s) / medians(fast_s))


class MeasurementSet(list[Measurement]):
    """Measurements of a run, with what others are looked up by: a large run is looked through once."""

    @functools.cached_property
    def simulated(self) -> dict[Any, Measurement]:
        """By what they are of, the first of each."""
        return {m.identity: m for m in reversed(self) if m.method == "simulated"}

    @functools.cached_property
    def alone(self) -> dict[Any, Measurement]:
        """Those of one device that have a time."""
        return {device_scaling_key(m): m for m in reversed(self) if m.median_s and m.devices == 1}

    @functools.cached_property
    def contiguous(self) -> dict[Any, Measurement]:
        """Those in the contiguous layout that have a time, by what else they are."""
        found = {}
        for m in reversed(self):
            if m.median_s and m.plan.layout == "contiguous":
                found[(*device_scaling_key(m), m.target, m.plan)] = m
        return found

    @functools.cached_property
    def overlaps(self) -> dict[Any, Measurement]:
        """Those of compiled schedules."""
        return {
            (m.identity[0], m.plan, m.target.hardware): m
            for m in reversed(self)
            if m.method == "compiled" and m.overlap
        }


def measurement_set(run: Iterable[Measurement]) -> MeasurementSet:
    return run if isinstance(run, MeasurementSet) else MeasurementSet(run)


def device_scaling_key(m: Measurement) -> tuple[Any, ...]:
    """What one device and several are compared by."""
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
    """The measurement itself where it knows its speed-up already, as those of a run do that was read."""
    speedup = None
    if base is not None and base is not m and base.median_s and m.median_s:
        interval = ratio_interval(base.samples_s, m.samples_s)
        speedup = {"over": str(base.plan), "value": base.median_s / m.median_s, "ci95": interval and list(interval)}
    return m if m.speedup == speedup else replace(m, speedup=speedup)


def attention_bound(m: Measurement) -> float | None:
    """The bound on the speed-up of a measurement; None where that is over another scheme, which the bound of a layout
    says nothing of."""
    same = not m.speedup or parse_plan(m.speedup["over"]).scheme == m.plan.scheme
    return (m.bound or {}).get("attention_only") if same and m.devices > 1 else None


def over_one_device(m: Measurement, run: Iterable[Measurement]) -> float | None:
    """How many times faster than the same workload on one device of the same target, by the same method."""
    if not m.median_s or m.devices == 1:
        return None
    base = measurement_set(run).alone.get(device_scaling_key(m))
    return base.median_s / m.median_s if base and base.median_s else None


def simulation_of(m: Measurement, run: Iterable[Measurement]) -> Measurement | None:
    """The simulation of what was measured, or None where there is none."""
    if m.method != "measured":
        return None
    return measurement_set(run).simulated.get(m.identity)


def simulation_error(m: Measurement, run: Iterable[Measurement]) -> float | None:
    """How far the simulation of what was measured is off: simulated over measured, minus 1."""
    other = simulation_of(m, run)
    return other.median_s / m.median_s - 1 if other and other.median_s and m.median_s else None


def refusals_and_failures(measurements: Iterable[Measurement]) -> list[list[Measurement]]:
    """Those that were refused or failed, together where their reasons differ in numbers only."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for m in measurements:
        if m.status != "ok":
            groups.setdefault((m.status, re.sub(r"\d+", "0", m.reason or "")), []).append(m)
    return list(groups.values())


def speedup_verdict(speedup: Mapping[str, Any] | None) -> str | None:
    """faster, slower or ambiguous (the interval holds 1), or None where there is no interval."""
    if not speedup or not speedup.get("ci95"):
        return None
    low, high = speedup["ci95"]
    return "faster" if low > 1 else "slower" if high < 1 else "ambiguous"


def predicted_overlap(m: Measurement, run: Iterable[Measurement]) -> float | None:
    """What the compiled schedule of the same plan, workload and flags predicts to hide, where the run holds it."""
    other = measurement_set(run).overlaps.get((m.identity[0], m.plan, m.target.hardware))
    return other.overlap.get("ratio") if other and other.overlap else None
