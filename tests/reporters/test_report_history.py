"""The section of the report that asks how times changed."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from stripectl.cli.report import command
from stripectl.core.plan import read_plan
from stripectl.reporters.html.history import ABSENT, MAX_CHARTS, NO_OTHER_RUN, TITLE
from stripectl.results.history import History
from stripectl.results.run import Run
from tests.support.command import run as stripectl
from tests.support.factories import FORWARD, because, timed_ring
from tests.support.histories import BUNDLES, EVIL, night, past
from tests.support.pages import Page, carried_by, check_harmless, content_of, page_of


def section_of(runs: Sequence[Run] | None, run: Run | None = None) -> dict[str, Any]:
    return content_of(run or (runs or [night(0)])[-1], runs)["sections"]["history"]


def test_a_chart_shows_the_runs_their_levels_and_the_change() -> None:
    (group,) = section_of(past())["groups"]
    changed, same = group["charts"]
    assert changed.title == TITLE and changed.subject == "ring/striped/xla@ring=4,tile=64x64 forward"
    assert [mark.at for mark in changed.drawing.marks] == list(range(1, 19))
    assert [mark.at for mark in changed.drawing.marks if mark.new] == [13]
    assert all(mark.low < mark.value < mark.high for mark in changed.drawing.marks)
    assert [(level.at, level.to) for level in changed.drawing.levels] == [(0.6, 12.4), (12.6, 18.4)]
    (rule,) = changed.drawing.rules
    assert rule.at == 12.5 and rule.words.startswith("+9.")
    assert "since 0000000 (2026-11-13): 9." in changed.note and changed.note in changed.label
    assert same.note == "No change in 18 runs." and same.drawing.rules == []


def test_its_table_has_the_newest_run_first() -> None:
    (group,) = section_of(past())["groups"]
    rows = group["charts"][0].table["rows"]
    assert [rows[0][-1], rows[-1][-1]] == ["night 17", "night 0"]
    assert rows[5][-2].endswith("slower; jax 1 -> 2")


def test_plans_without_a_past_are_counted() -> None:
    (group,) = section_of(past())["groups"]
    assert group["notes"] == ["2 of this run's plans are new in the history, or on this machine."]


def test_what_is_not_drawn_is_said() -> None:
    tiles = [
        replace(timed_ring("striped", float(n)), plan=read_plan(f"ring/striped/xla@ring=4,tile={64 * n}"))
        for n in range(1, 10)
    ]
    found = section_of([night(at, *tiles) for at in range(2)])
    (group,) = found["groups"]
    assert len(group["charts"]) == MAX_CHARTS and group["left_out"] == 9 - MAX_CHARTS
    assert group["charts"][0].note == "2 runs are too few for a change to be sure."


def test_plans_that_changed_go_first() -> None:
    quiet, loud = (timed_ring(name, 1.0, "compiled", cost_source=BUNDLES) for name in ("striped", "zigzag"))
    found = section_of([night(0, quiet, loud), night(1, quiet, replace(loud, median_s=1.1))])
    assert ["zigzag" in chart.subject for chart in found["groups"][0]["charts"]] == [True, False]


def test_without_a_history_it_says_what_makes_one() -> None:
    page = content_of(night(0))
    assert {"title": TITLE, "why": ABSENT} in page["lacking"]
    assert {"title": TITLE, "why": NO_OTHER_RUN} in content_of(night(0), [night(0)])["lacking"]


def test_a_run_that_failed_leaves_a_cross() -> None:
    runs = past()
    broken = replace(runs[5].measurements[0], status="failed", reason=because("it died"), median_s=None)
    runs[5] = replace(runs[5], measurements=[broken])
    text = page_of(runs[-1], past=runs)
    assert "✕" in text
    chart = section_of(runs)["groups"][0]["charts"][0]
    assert chart.drawing.marks[5].value is None and chart.table["rows"][-6][2] == "failed"


def test_the_page_has_it_for_eyes_and_screen_readers() -> None:
    page = Page(page_of(past()[-1], past=past()))
    check_harmless(page)
    (own,) = [attributes for tag, attributes in page.tags if tag == "section" and attributes.get("id") == "history"]
    assert own["aria-labelledby"] == "history-h"
    labels = [attributes["aria-label"] or "" for tag, attributes in page.tags if attributes.get("role") == "img"]
    (striped,) = [label for label in labels if "in 18 runs" in label and "striped" in label]
    assert "from 2026-11-01 to 2026-11-18" in striped and "slower" in striped


@pytest.mark.parametrize("text", EVIL)
def test_a_past_of_anybodys_making_is_text(text: str) -> None:
    versions = ({text: text}, {text: "other"})
    runs = [night(at, timed_ring("striped", 0.5), commit=text, versions=each) for at, each in enumerate(versions)]
    runs = [replace(run, id=text) for run in runs]
    check_harmless(Page(page_of(runs[-1], past=runs)))


def test_a_bench_draws_its_past_and_itself_though_it_began_in_the_same_second(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    begun = (datetime(2026, 11, 1, microsecond=at, tzinfo=UTC) for at in (1000, 2000))
    monkeypatch.setattr("stripectl.runner.open_run.datetime", SimpleNamespace(now=lambda zone: next(begun)))
    bench = ["bench", "--target", "v5p:8", "--method", "simulated", "--quiet", "--seqlen", "64k", "--pass", "forward"]
    for out in ("one", "two"):
        assert stripectl(*bench, "--history", "kept", "--output", out) == 0
    assert 'id="history"' not in Path("one/report.html").read_text()
    text = Path("two/report.html").read_text()
    assert 'id="history"' in text and text.count(", in 2 runs") + text.count("No change in 2 runs.") >= 4


def invoke(*words: object) -> tuple[int, str, Exception | None]:
    done = CliRunner().invoke(command, [str(each) for each in words], standalone_mode=False)
    return done.exit_code, done.output, done.exception  # type: ignore[return-value]


def test_the_command_draws_a_run_and_what_was_before_it(tmp_path: Path) -> None:
    history = History(tmp_path / "kept")
    for run in past():
        history.add(run)
    path = past()[12].save(tmp_path)
    assert invoke(path, "--history", history.folder, "--quiet", "--no-open")[2] is None
    text = (tmp_path / "report.html").read_text()
    assert re.search(r"Times of [^\"]*striped[^\"]* in 13 runs, from 2026-11-01 to 2026-11-13", text)
    assert carried_by(text, tmp_path).id == "night 12"
    assert history.count() == 18


def test_a_run_that_is_not_in_the_history_is_drawn_too(tmp_path: Path) -> None:
    history = History(tmp_path / "kept")
    history.add(past()[0])
    found = section_of(history.before(past()[1]))
    assert [chart.table["rows"][0][-1] for chart in found["groups"][0]["charts"]] == ["night 1"] * 2
    assert history.count() == 1


@pytest.mark.parametrize("more", [["--format", "md"], ["--format", "json"], ["{run}"]])
def test_other_forms_do_not_draw_it(more: list[str], tmp_path: Path, monkeypatch) -> None:
    path = night(0).save(tmp_path)
    History(tmp_path / "kept").add(night(0))
    words = [path, *(each.format(run=path) for each in more), "--quiet", "--no-open"]
    assert "--history is for the HTML page of one run" in str(invoke(*words, "--history", tmp_path / "kept")[2])
    monkeypatch.setenv("STRIPECTL_HISTORY", str(tmp_path / "kept"))
    assert invoke(*words)[2] is None


def test_a_history_that_was_named_must_be_there(tmp_path: Path, monkeypatch) -> None:
    words = night(0).save(tmp_path), "--quiet", "--no-open"
    assert "there is no history in" in str(invoke(*words, "--history", tmp_path / "kept")[2])
    monkeypatch.setenv("STRIPECTL_HISTORY", str(tmp_path / "kept"))
    assert invoke(*words)[2] is None and not (tmp_path / "kept").exists()


def test_only_its_own_plans_are_drawn(tmp_path: Path) -> None:
    other = replace(timed_ring("striped", 0.5), workload=replace(FORWARD, batch=2))
    runs = [night(0, timed_ring("striped", 0.5), other), night(1, timed_ring("striped", 0.5))]
    (group,) = section_of(runs)["groups"]
    assert len(group["charts"]) == 1 and "batch" not in group["title"]
