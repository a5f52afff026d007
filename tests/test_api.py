"""The Python interface: the commands as functions."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stripectl
from stripectl.errors import BadInput
from stripectl.results.run import Run
from tests.support.fake_backend import FakeBackends

SMALL = {"seqlen": "4k", "heads": 4, "head_dim": 64, "tile": 128, "pass_": "forward", "progress": False}


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in ("bench", "tuning.search"):
        monkeypatch.setattr(f"stripectl.runner.{user}.LocalBackends", FakeBackends)


def test_a_bench_returns_its_run_with_a_recommendation_and_rows() -> None:
    run = stripectl.bench(target="v5e:4x4", method="compiled", layout=["striped", "contiguous"], **SMALL)
    assert run.recommendation and str(run.recommendation.plan).startswith("ring/striped")
    rows = {row["layout"]: row for row in run.rows() if row["devices"] == 16}
    assert rows["striped"]["speedup"] == pytest.approx(1.2) and rows["contiguous"]["speedup"] is None
    assert {str(row["method"]) for row in rows.values()} == {"compiled"} and rows["striped"]["tile"] == "128x128"
    assert run.command.startswith("stripectl.bench(target='v5e:4x4'")


def test_a_run_with_a_folder_is_kept_there_and_compares_with_another(tmp_path: Path) -> None:
    asked = {**SMALL, "target": "cpu:4", "method": "measured"}
    first = stripectl.bench(output=tmp_path / "run", **asked)
    assert [m.median_s for m in Run.load(tmp_path / "run").measurements] == [m.median_s for m in first.measurements]
    assert [each["count"] for each in first.environment["devices"]] == [4]
    with pytest.raises(BadInput, match="holds a run"):
        stripectl.bench(output=tmp_path / "run", **asked)
    assert {each.verdict for each in stripectl.compare(tmp_path / "run", first)} == {"UNCHANGED"}


def test_an_interrupt_keeps_what_was_measured(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("stripectl.runner.bench.LocalBackends", partial(FakeBackends, interrupted="zigzag"))
    with pytest.raises(KeyboardInterrupt):
        stripectl.bench(target="v5e:4x4", method="compiled", output=tmp_path / "run", **SMALL)
    assert {m.plan.layout for m in Run.load(tmp_path / "run").measurements} == {"contiguous", "striped"}
    monkeypatch.setattr("stripectl.runner.bench.LocalBackends", FakeBackends)
    run = stripectl.bench(target="v5e:4x4", method="compiled", output=tmp_path / "run", resume=True, **SMALL)
    assert {m.plan.layout for m in run.measurements} == {"contiguous", "striped", "zigzag"}
    with pytest.raises(BadInput, match="cannot resume a run without its folder"):
        stripectl.bench(resume=True, **SMALL)


def test_a_trace_takes_the_small_size_on_cpu_where_nobody_names_one() -> None:
    run = stripectl.trace("ring/striped/xla@ring=4", target="cpu:4", pass_="forward", progress=False)
    (found,) = run.measurements
    assert (found.workload.seq_len, found.workload.heads, found.method) == (2**14, 4, "measured")


def test_tiles_are_searched_and_the_page_of_a_run_is_written_and_shown(tmp_path: Path) -> None:
    asked = {**SMALL, "seqlen": "16k", "tile": None, "layout": "striped", "cache": False}
    run = stripectl.tune_tiles(target="v5e:4x4", method="compiled", refine=3, **asked)
    assert [m.method for m in run.measurements].count("compiled") == 3
    page = stripectl.report(run, output=tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>") and "<iframe srcdoc=" in str(run._repr_html_())


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"seqlenn": "4k"}, "Did you mean seqlen"),
        ({"passes": "forward"}, "Did you mean"),
        ({"seqlen": "4q"}, "4q"),
        ({"target": "v9:3"}, "v9"),
    ],
)
def test_bad_options_are_one_line(told: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why) as error:
        stripectl.bench(**told)
    assert "\n" not in str(error.value)


def test_lists_stand_for_commas_and_for_repeated_options() -> None:
    plans = ["ring/striped/xla@ring=8", "ring/zigzag/xla@ring=8"]
    run = stripectl.bench(
        target="v5p:8", method="simulated", plan=plans, seqlen=["4k", 8192], pass_="forward", progress=False
    )
    assert sorted({str(row["seq_len"]) for row in run.rows()}) == ["4096", "8192"]
    assert {str(row["layout"]) for row in run.rows() if row["devices"] == 8} == {"striped", "zigzag"}


def test_accuracy_is_plain_data() -> None:
    found = stripectl.accuracy()
    assert {"attention", "paper", "meshes", "memory"} <= found.keys()


def test_the_interface_does_not_import_jax() -> None:
    import subprocess

    code = "import sys, stripectl; stripectl.bench, stripectl.Run; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
