"""Measurements, runs and requests that tests make; keyword arguments are their fields."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from stripectl.core.method import Method
from stripectl.core.plan import Plan, read_plan
from stripectl.core.reason import Reason, ReasonKind
from stripectl.core.workload import Workload
from stripectl.hardware.target import read_target
from stripectl.measure.sampler import SamplingOptions
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from stripectl.runner.request import Request
from stripectl.statistics.intervals import median_interval

SMALL = Workload(seq_len=2048, heads=1, kv_heads=1, head_dim=16, dtype="float32")
WORK = Workload(seq_len=4096, heads=2, kv_heads=2, head_dim=16, dtype="float32")
FORWARD = Workload(seq_len=512, heads=2, kv_heads=2, head_dim=64, dtype="float32")
LONG = replace(FORWARD, seq_len=4096, heads=4, kv_heads=4, model="1b")
QUICK = SamplingOptions(budget_s=60, min_samples=3)
PLANS = [Plan("ring", layout, "xla") for layout in ("contiguous", "striped", "zigzag")]
SLOW, FAST = [1.9, 2.0, 2.1, 2.0, 2.05, 1.95], [0.95, 1.0, 1.05, 1.0, 1.02, 0.98]  # samples in seconds
PER_ROUND = {
    "contiguous": [[3, 0, 0, 0], [3, 4, 0, 0], [3, 4, 4, 0], [3, 4, 4, 4]],
    "striped": [[3, 3, 3, 3]] * 4,
    "zigzag": [[3, 2, 2, 2]] * 4,
}
CALIBRATION = {
    "source": "measured_tile",
    "tile": "64x64",
    "forward": {
        "whole_s": 7.5e-4,
        "boundary_s": 8e-4,
        "held_out": {"block": "6144 causal", "measured_s": 0.1, "error": -0.017},
    },
    "hop": {"latency_s": 8.5e-5, "bytes_per_s_one_way": 1.35e9},
}


def because(fact: str) -> Reason:
    """The reason of a plan without a time, of no kind that decides anything."""
    return Reason(ReasonKind.ERROR, fact)


def with_parts(m: Measurement, **parts: object) -> Measurement:
    """The measurement with these fields; mappings and lists are read as a file's are, so no test names a record."""
    content = {name: value for name, value in parts.items() if isinstance(value, dict | list)}
    m = replace(m, **{name: value for name, value in parts.items() if name not in content})
    return Measurement.from_json({**m.to_json(), **content}) if content else m


def with_samples(m: Measurement, samples_s: Iterable[float]) -> Measurement:
    """The measurement with these samples, their median and its interval."""
    samples = tuple(samples_s)
    median, interval = median_interval(samples)
    return replace(m, samples_s=samples, median_s=median, ci95_s=interval)


def measurement_of(
    plan: str | Plan,
    seconds: float | None = 1.0,
    workload: Workload = WORK,
    target: str = "cpu:2",
    method: Method = "simulated",
    **parts: Any,
) -> Measurement:
    """A measurement of a plan, with the parts that `with_parts` takes; without a time, it is refused."""
    m = Measurement(
        workload=workload,
        plan=read_plan(str(plan)),
        target=read_target(target),
        method=method,
        status="refused" if seconds is None else "ok",
        median_s=seconds,
    )
    return with_parts(m, **parts)


def sampled_measurement_of(plan: str, samples_s: Iterable[float], **parts: Any) -> Measurement:
    return with_samples(measurement_of(plan, method="measured", **parts), samples_s)


def noisy_ring(layout: str, median_s: float, noise: float = 0.001, count: int = 15) -> Measurement:
    """A ring on two CPU devices, with samples that differ by a share `noise` of the median."""
    samples = median_s * (1 + noise * np.random.default_rng(len(layout)).standard_normal(count))
    return sampled_measurement_of(f"ring/{layout}/xla@ring=2,tile=128x128", samples)


def ring_plan(layout: str) -> str:
    return f"ring/{layout}/xla@ring=4,tile=64x64"


def timed_ring(
    layout: str, seconds: float, method: Method = "measured", workload: Workload = FORWARD, **parts: Any
) -> Measurement:
    """A ring on four CPU devices, with all that bench finds out; a measured one has samples 1 % around its time."""
    rows = PER_ROUND[layout]
    known: dict[str, Any] = {
        "tiles": {"tile": "64x64", "computed": sum(map(sum, rows)), "useful": 1, "efficiency": 0.9, "per_round": rows},
        "bytes": {"collective-permute": 2**20},
        "bound": {"attention_only": 1.7, "layer": None},
    }
    if method == "measured":
        known["samples_s"] = tuple(seconds * (1 + jitter / 100) for jitter in (-1, -0.5, 0, 0.5, 1))
        known["ci95_s"] = (0.99 * seconds, 1.01 * seconds)
        known["check"] = {"max_rel_error": 2e-7, "tolerance": 2e-6, "reference": "dense float64"}
    else:
        known["cost_source"] = CALIBRATION
    return measurement_of(ring_plan(layout), seconds, workload, "cpu:4", method, **known | parts)


def run_of(*measurements: Measurement, **environment: Any) -> Run:
    return Run("one", "2026-11-21T08:00:00+00:00", "stripectl bench --seqlen 512", environment, list(measurements))


def request_of(**fields: Any) -> Request:
    """A request for measurements of three rings on two cores, with few samples."""
    known = {"workloads": [SMALL], "plans": PLANS, "target": "cpu:2", "method": "measured", "sampling": QUICK}
    return Request(**known | fields)
