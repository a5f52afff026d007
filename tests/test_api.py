"""The Python interface: the commands as functions."""

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stripectl
from stripectl.api import BenchOptions
from stripectl.cli.bench import command as bench_command
from stripectl.core.layout import Tile
from stripectl.core.plan import parse_plan
from stripectl.errors import BadInput
from stripectl.results.run import Run
from stripectl.runner.options import RequestOptions
from stripectl.runner.parse import parse_request
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
        ({"seqlenn": "4k"}, "unknown argument of stripectl.bench: 'seqlenn'. Did you mean seqlen "),
        ({"passes": "forward"}, "unknown argument of stripectl.bench: 'passes'. Did you mean pass_"),
        ({"heads": "many"}, "cannot use heads='many' because heads is int."),
        ({"heads": True}, "cannot use heads=True because heads is int."),
        ({"mesh": {"ring": True}}, "cannot use mesh={'ring': True} because mesh is str | Mapping[str, int] | "),
        ({"layers": 0}, "cannot use layers=0 because layers is at least 1."),
        ({"tile": 3.5}, "cannot use tile=3.5 because tile is int | str | tuple[int, int] | "),
        ({"mesh": {"ring": "8"}}, "because mesh is str | Mapping[str, int] | Sequence[str | Mapping[str, int]]."),
        ({"seqlen": []}, "cannot use seqlen=[] because it is empty. Omit seqlen."),
        ({"method": "simulate"}, "unknown method 'simulate'. Did you mean simulated?"),
        ({"tile": "x"}, "'x' is not a tile"),
        ({"tile": (0, 512)}, "(0, 512) is not a tile"),
        ({"mesh": {"rong": 8}}, "Did you mean ring"),
        ({"mesh": ["auto", "ring=8"]}, "mesh='auto' means every mesh."),
        ({"plan": "ring/zigzag", "layout": "striped"}, "layout contradicts the plan ring/zigzag"),
        ({"seqlen": "4q"}, "4q"),
        ({"target": "v9:3"}, "v9"),
    ],
)
def test_bad_arguments_are_one_line(told: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=re.escape(why)) as error:
        stripectl.bench(**told)
    assert "\n" not in str(error.value)


def test_a_call_with_too_few_or_too_many_values_is_refused_as_by_python() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'plan'"):
        stripectl.trace()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="too many positional arguments"):
        stripectl.bench("64k")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ({"tile": (1024, 512)}, {"tile": "1024x512"}),
        ({"tile": [(1024, 512), 256, (512, 1024, 256)]}, {"tile": "1024x512,256,512x1024x256"}),
        ({"tile": [Tile(1024, 512), "256"]}, {"tile": "1024x512,256"}),
        ({"mesh": {"ring": 4, "tensor": 2}}, {"mesh": "ring=4,tensor=2"}),
        ({"seqlen": [4096, "8k..32k"]}, {"seqlen": "4k,8k..32k"}),
        ({"layout": ["striped", "zigzag"]}, {"layout": "striped,zigzag"}),
        ({"unroll": [1, 2]}, {"unroll": "1,2"}),
        ({"plan": parse_plan("ring/striped/xla@ring=8,tile=512")}, {"plan": "ring/striped/xla@ring=8,tile=512"}),
        (
            {"documents": [4096, "1k"], "mask": ["causal", "sliding:2k"]},
            {"documents": "4k,1k", "mask": "causal,sliding:2k"},
        ),
        ({"decay": 0.5, "scheme": "lasp2"}, {"decay": "0.5", "scheme": "lasp2"}),
        ({"time_budget": 90}, {"time_budget": "90s"}),
    ],
)
def test_values_mean_the_same_as_texts(values: dict[str, Any], texts: dict[str, Any]) -> None:
    asked = {"seqlen": "64k", "target": "v5p:8", "layout": "striped"}
    if "plan" in values:
        del asked["layout"]
    assert parse_request(BenchOptions(**{**asked, **values})) == parse_request(BenchOptions(**{**asked, **texts}))


def test_lists_of_plans_and_lengths_are_run() -> None:
    plans = [parse_plan("ring/striped/xla@ring=8"), "ring/zigzag/xla@ring=8"]
    run = stripectl.bench(
        target="v5p:8", method="simulated", plan=plans, seqlen=["4k", 8192], pass_="forward", progress=False
    )
    assert sorted({str(row["seq_len"]) for row in run.rows()}) == ["4096", "8192"]
    assert {str(row["layout"]) for row in run.rows() if row["devices"] == 8} == {"striped", "zigzag"}


@pytest.mark.parametrize(
    ("function", "own"),
    [
        (stripectl.bench, {"output", "progress", "resume"}),
        (stripectl.tune_tiles, {"output", "progress", "resume", "strategy"}),
        (stripectl.trace, {"output", "progress", "steps"}),
    ],
)
def test_the_signature_has_every_option_with_its_type(function: Callable[..., Run], own: set[str]) -> None:
    shown = inspect.signature(function).parameters
    assert shown.keys() == {each.name for each in fields(RequestOptions)} | own
    assert shown["heads"].annotation == int | None and shown["target"].default == "local"


def test_the_arguments_are_the_options_of_the_command_line() -> None:
    typed = {each.name for each in bench_command.params}
    assert {each.name for each in fields(RequestOptions)} <= typed


def test_accuracy_is_plain_data() -> None:
    found = stripectl.accuracy()
    assert {"attention", "paper", "meshes", "memory"} <= found.keys()


def test_the_interface_does_not_import_jax() -> None:
    import subprocess

    code = "import sys, stripectl; stripectl.bench, stripectl.Run; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
