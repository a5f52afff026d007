"""Runs in files, intervals, speed-ups and comparisons."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stripectl.core.plan import read_plan
from stripectl.errors import BadInput
from stripectl.hardware.target import read_target
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import indexed, with_speedups
from stripectl.results.run import Run, newest_run
from stripectl.statistics.intervals import median_interval, ratio_interval
from stripectl.statistics.verdict import Verdict
from tests.support.factories import because, noisy_ring, run_of, with_parts


def test_a_run_survives_its_file(tmp_path: Path) -> None:
    failed = replace(
        noisy_ring("zigzag", 1.0), status="failed", reason=because("because"), samples_s=(), median_s=None, ci95_s=None
    )
    before = run_of(noisy_ring("contiguous", 2.0), noisy_ring("striped", 1.0), failed, devices=[], warnings=[])
    path = before.save(tmp_path)
    after = Run.load(path)
    assert after.measurements == with_speedups(before.measurements)
    assert Run.load(tmp_path).to_json() == before.to_json()
    assert newest_run(tmp_path.parent) == path
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_the_schema_of_a_measurement() -> None:
    content: dict[str, Any] = run_of(noisy_ring("striped", 1.0)).to_json()
    assert content["schema"] == "stripectl.run/3"
    wanted = {
        *("workload", "plan", "target", "method", "pass", "status", "reason", "kind", "advice"),
        *("samples_s", "median_s", "ci95_s"),
        *("compile_s", "tokens_per_s", "flops", "tflops_per_s_per_device", "mfu", "speedup", "bound", "tiles", "bytes"),
        *("peak_bytes", "hbm_bytes", "overlap", "check", "cost_source"),
    }
    assert wanted <= set(content["measurements"][0])
    json.dumps(content, allow_nan=False)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "cut short"),
        ('{"schema": "stripectl.run/1", "id":', "cut short"),
        ("[]", "not a stripectl run"),
        ('{"schema": "stripectl.run/4"}', "newer than this stripectl"),
        ('{"schema": "stripectl.run/1", "id": "x"}', "not a complete stripectl run"),
        ("[" * 100000, "cut short"),
    ],
)
def test_files_that_are_no_run(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(BadInput, match=why):
        Run.load(tmp_path)


def test_speedups_are_over_the_contiguous_plan_with_an_interval() -> None:
    striped, contiguous = with_speedups([noisy_ring("striped", 1.0), noisy_ring("contiguous", 1.5)])
    assert contiguous.speedup is None
    assert striped.speedup and striped.speedup.over == contiguous.plan
    assert striped.speedup.value == pytest.approx(1.5, rel=0.01)
    low, high = striped.speedup.ci95 or (0.0, 0.0)
    assert low < striped.speedup.value < high
    assert striped.speedup.verdict == Verdict.IMPROVED


def test_overlapping_samples_are_ambiguous() -> None:
    striped, _ = with_speedups([noisy_ring("striped", 1.0, noise=0.2), noisy_ring("contiguous", 1.01, noise=0.2)])
    assert striped.speedup and striped.speedup.verdict == Verdict.INCONCLUSIVE


def test_two_samples_have_no_interval() -> None:
    assert median_interval([1.0, 2.0]) == (1.5, None)
    assert ratio_interval([1.0, 2.0], [1.0, 2.0]) is None


def test_one_device_and_simulations_are_set_beside() -> None:
    ring = noisy_ring("striped", 1.0)
    twin = replace(ring, method="simulated", samples_s=(), ci95_s=None, median_s=0.9 * (ring.median_s or 0))
    alone = replace(
        ring,
        plan=read_plan("ring/contiguous/xla@tile=128x128"),
        target=read_target("cpu:1"),
        median_s=2 * (ring.median_s or 0),
    )
    assert indexed([ring, alone]).over_one_device(ring) == pytest.approx(2.0)
    assert indexed([ring, alone]).over_one_device(alone) is None
    assert indexed([ring, twin]).simulation_error(ring) == pytest.approx(-0.1)
    assert indexed([ring, twin]).simulation_error(twin) is None


def test_a_run_of_the_first_schema_is_read_by_the_names_of_the_newest(tmp_path: Path) -> None:
    m = noisy_ring("striped", 1.0)
    linear = replace(m, workload=replace(m.workload, attention="linear", decay="per-head"))
    content: Any = run_of(with_parts(linear, cost_source={"source": "datasheet"})).to_json()
    old = {"cost_source": "calibration", "noise": "guards", "bottleneck_shares": "limits", "step_parts": "parts"}
    old |= {"compiled_program": "program", "profile": "trace"}
    [given] = content["measurements"]
    assert old.keys() <= given.keys()
    of_old_names = {old.get(name, name): x for name, x in given.items()}
    of_old_names["workload"] = given["workload"] | {"decay": "tnl"}
    content |= {"schema": "stripectl.run/1", "measurements": [of_old_names]}
    (tmp_path / "run.json").write_text(json.dumps(content))
    assert Run.load(tmp_path).to_json()["measurements"] == [given]


def test_reading_ends_at_the_first_wrong_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each of a million wrong parts gets an error of its own, with its place."""
    tried = list[object]()

    def is_no_text(value: object) -> bool:
        tried.extend([value] if isinstance(value, str) else [])
        return not isinstance(value, str)

    monkeypatch.setattr("stripectl.results.records.is_number", is_no_text)
    for name, value, where in (
        ("samples_s", ["x"] * 1000, "$.samples_s[0]"),
        ("bytes", dict.fromkeys(map(str, range(1000)), "x"), "$.bytes['0']"),
        ("scaling", [{"seq_len": "x", "median_s": 1}] * 1000, "$.scaling[0].seq_len"),
    ):
        tried.clear()
        with pytest.raises(TypeError, match=re.escape(where)):
            Measurement.from_json({**noisy_ring("striped", 1.0).to_json(), name: value})
        assert len(tried) == 2, name  # once to read it, and once to find its place


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("samples_s", "x" * 1_000_000, "'xxxxxxxxxxxx...xxxxxxxxxxxxx' is not a list @ $.samples_s"),
        ("ci95_s", "ab", "'ab' is not a list @ $.ci95_s"),
        ("ci95_s", [1.0], "a list has 1 parts, not 2 @ $.ci95_s"),
        ("distortions", {}, "{} is not a list @ $.distortions"),
        ("bytes", [], "[] is not a mapping @ $.bytes"),
        ("median_s", "1" * 1000, "'111111111111...1111111111111' is not a number of zero or more @ $.median_s"),
    ],
)
def test_a_wrong_type_is_named_with_its_place(name: str, value: object, why: str) -> None:
    with pytest.raises(TypeError) as error:
        Measurement.from_json({**noisy_ring("striped", 1.0).to_json(), name: value})
    assert str(error.value) == why
