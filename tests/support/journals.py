"""Measurements of one run and the lines of its journal, also for processes that a test starts."""

import json

from stripectl.core.method import Method
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from tests.support.factories import measurement_of, run_of


def nth_ring(at: int, seconds: float, method: Method = "measured") -> Measurement:
    samples = (seconds, 1.1 * seconds, 0.9 * seconds) if method == "measured" else ()
    plan = f"ring/striped/xla@ring=2,tile=128x128,unroll={at + 1}"
    return measurement_of(plan, seconds, method=method, samples_s=samples)


def empty_run() -> Run:
    return run_of(devices=[], warnings=[])


def told(measurements: list[Measurement]) -> list[tuple]:
    return [(m.key, m.samples_s, m.median_s) for m in measurements]


def line_for(continued: str, measurement: object) -> str:
    """A line of a journal."""
    return json.dumps({"continues": continued, "by": "key", "measurement": measurement})
