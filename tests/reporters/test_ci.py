"""What CI systems read: whatever a run says, the files are whole, and names tell measurements apart."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from junitparser import Failure, JUnitXml, Skipped

from stripectl.core.workload import Workload
from stripectl.reporters.ci import (
    MAX_NAME_CHARACTERS,
    MAX_SUMMARY_BYTES,
    SUMMARY,
    JUnitCase,
    benchmark_name,
    step_summary,
    timed_by_name,
    write_bencher,
    write_github_benchmark,
    write_junit,
)
from stripectl.results.run import Run
from tests.support.factories import because, measurement_of

RUNS = sorted((Path(__file__).parents[2] / "examples" / "runs").glob("*.json.gz"))
CPU = next(path for path in RUNS if path.name == "cpu.json.gz")
ANY = st.text(st.characters(exclude_categories=()), max_size=12)  # half characters and control characters too


def case(**given: Any) -> JUnitCase:
    return replace(JUnitCase(name="n", group="g", verdict="PASS", outcome="passed", message="m"), **given)


def read(path: Path) -> list[Any]:
    return [each for suite in JUnitXml.fromfile(str(path)) for each in suite]


def test_verdicts_become_results(tmp_path: Path) -> None:
    cases = [
        case(time_s=1.25),
        case(name="slow", verdict="FAIL", outcome="failed", message="too slow", detail="1.1x\n1.2x"),
        case(name="who knows", verdict="INCONCLUSIVE", outcome="skipped"),
    ]
    write_junit(tmp_path / "j.xml", "suite", cases, {"run": "a & b"})
    (suite,) = JUnitXml.fromfile(str(tmp_path / "j.xml"))
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (3, 1, 0, 1)
    assert [(each.name, each.value) for each in suite.properties()] == [("run", "a & b")]
    good, bad, unsure = suite
    assert good.is_passed and good.time == 1.25 and good.system_out == "PASS: m"
    assert isinstance(bad.result[0], Failure) and bad.result[0].type == "FAIL"
    assert bad.result[0].message == "too slow" and bad.result[0].text == "FAIL: too slow\n1.1x\n1.2x"
    assert isinstance(unsure.result[0], Skipped) and (unsure.time, suite.time) == (0, 1.25)


@settings(max_examples=60)
@given(st.lists(st.builds(case, name=ANY, group=ANY, verdict=ANY, message=ANY, detail=ANY), max_size=5), ANY)
def test_any_text_makes_a_whole_file(
    tmp_path_factory: pytest.TempPathFactory, cases: list[JUnitCase], text: str
) -> None:
    path = tmp_path_factory.mktemp("junit") / "j.xml"
    outcomes: Any = ["passed", "failed", "skipped"]
    cases = [replace(each, outcome=outcomes[at % 3]) for at, each in enumerate(cases)]
    write_junit(path, text, cases, {text: text})
    found = read(path)
    assert len(found) == len(cases)
    assert len({(each.classname, each.name) for each in found}) == len(cases)


def test_a_name_that_comes_again_is_told_apart(tmp_path: Path) -> None:
    cases = [case(), case(), case(group="other"), case(name="n (2)"), case()]
    write_junit(tmp_path / "j.xml", "suite", cases, {})
    found = [(each.classname, each.name) for each in read(tmp_path / "j.xml")]
    assert found == [("g", "n"), ("g", "n (2)"), ("other", "n"), ("g", "n (2) (2)"), ("g", "n (3)")]


def test_the_summary_is_added_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    monkeypatch.setenv(SUMMARY, str(path))
    step_summary("### half a character \ud800\n")
    assert path.read_text() == "before\n### half a character ?\n"


def test_a_long_summary_ends_in_a_whole_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.md"
    monkeypatch.setenv(SUMMARY, str(path))
    for _ in range(3):
        step_summary("| äöü |\n" * 60_000)
    text = path.read_bytes()
    assert len(text) <= MAX_SUMMARY_BYTES and text.count(b"did not fit") == 1
    assert set(text.decode().splitlines()) == {"| äöü |", "", "More did not fit."}


def test_a_summary_that_cannot_be_written_fails_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SUMMARY, str(tmp_path))
    step_summary("text\n")
    monkeypatch.delenv(SUMMARY)
    step_summary("text\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_every_time_of_a_run_has_its_name(path: Path, tmp_path: Path) -> None:
    measurements = Run.load(path).measurements
    have = {m.key for m in measurements if m.status == "ok" and m.median_s}
    found = timed_by_name(measurements)
    assert {m.key for m in found.values()} == have
    assert found == {name: found[name] for name in timed_by_name(measurements[::-1])}, "in whatever order they come"
    write_github_benchmark(tmp_path / "g.json", measurements)
    write_bencher(tmp_path / "b.json", measurements)
    entries, metrics = (json.loads((tmp_path / name).read_text()) for name in ("g.json", "b.json"))
    assert [each["name"] for each in entries] == list(found) == list(metrics)
    assert all(len(name) <= MAX_NAME_CHARACTERS for name in found)


def test_times_are_those_of_the_run(tmp_path: Path) -> None:
    measurements = [m for m in Run.load(CPU).measurements if m.method == "measured"]
    write_github_benchmark(tmp_path / "g.json", measurements)
    write_bencher(tmp_path / "b.json", measurements)
    entries, metrics = (json.loads((tmp_path / name).read_text()) for name in ("g.json", "b.json"))
    for m, entry, metric in zip(measurements, entries, metrics.values(), strict=True):
        assert m.ci95_s and m.median_s
        assert entry["value"] == m.median_s and entry["unit"] == "s" and "samples" in entry["extra"]
        half = re.fullmatch(r"± (\d.+)", entry["range"])  # as the action reads it
        assert half and float(half[1]) == pytest.approx((m.ci95_s[1] - m.ci95_s[0]) / 2, rel=0.01)
        assert metric["latency"]["value"] == pytest.approx(m.median_s * 1e9)
        assert metric["latency"]["lower_value"] <= metric["latency"]["value"] <= metric["latency"]["upper_value"]


def test_a_long_name_is_cut_and_stays_its_own() -> None:
    work = Workload(seq_len=2**20, heads=2, kv_heads=2, head_dim=16, documents=tuple(range(1, 600)))
    m = measurement_of("ring/striped/xla@ring=8", 1.0, work, "cpu:8")
    other = replace(m, method="compiled")
    assert len(benchmark_name(m)) == len(benchmark_name(other)) == MAX_NAME_CHARACTERS
    assert benchmark_name(m) != benchmark_name(other)


def test_what_has_no_time_is_left_out() -> None:
    m = measurement_of("ring/striped/xla@ring=8", None, target="cpu:8", status="ok")
    assert timed_by_name([m, replace(m, status="failed", reason=because("no"), median_s=1.0)]) == {}
