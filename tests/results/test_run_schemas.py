"""Stored runs of every schema are read, compared and rendered with the figures and reasons they hold: of
`stripectl.run/1`, made on 22 November 2026, and of `/2` and `/3`, made by one command before and after reasons had
kinds."""

import gzip
import json
import runpy
import shutil
from pathlib import Path

import pytest

from stripectl.analysis.comparison import compare_runs
from stripectl.core.reason import ReasonKind
from stripectl.results.run import VERSION, Run
from tests.support.pages import markdown_of, page_of

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
RUNS = {path.name.partition(".")[0]: path for path in sorted(GOLDEN.glob("*.json.gz"))}
SCHEMAS = {"cpu": 1, "empty": 1, "refused-2": 2, "refused-3": 3, "traced": 1, "tuning": 1}


def test_a_run_of_every_schema_is_stored() -> None:
    assert RUNS.keys() == SCHEMAS.keys() and {*SCHEMAS.values()} == {*range(1, VERSION + 1)}


@pytest.mark.parametrize("name", RUNS)
def test_a_stored_run_is_read_and_rendered_with_its_figures(name: str, tmp_path: Path) -> None:
    content = json.loads(gzip.decompress(RUNS[name].read_bytes()))
    assert content["schema"] == f"stripectl.run/{SCHEMAS[name]}"
    run = Run.load(RUNS[name])
    assert [(str(m.plan), m.method, m.status, m.median_s) for m in run.measurements] == [
        (m["plan"], m["method"], m["status"], m["median_s"]) for m in content["measurements"]
    ]
    said = [(m["reason"], m.get("kind", "unknown")) for m in content["measurements"] if m["reason"]]
    assert [(str(m.reason), m.reason.kind) for m in run.measurements if m.reason] == said
    if SCHEMAS[name] < VERSION:  # other tests render runs of the newest schema
        page, markdown = page_of(run), markdown_of([run])
        if advice := content["recommendation"]:
            assert advice["plan"] in page
            assert advice["plan"] in markdown
    run.save(tmp_path / "again.json")
    again = Run.load(tmp_path / "again.json")
    assert [m.to_json() for m in again.measurements] == [m.to_json() for m in run.measurements]


def test_runs_of_two_schemas_are_compared_and_give_the_same_sentences() -> None:
    old, new = (Run.load(RUNS[name]) for name in ("refused-2", "refused-3"))
    assert [str(m.reason) for m in old.measurements] == [str(m.reason) for m in new.measurements]
    assert {m.reason.kind for m in new.measurements if m.reason} == {ReasonKind.NO_AXIS}
    compared = compare_runs(old, new, 0.0)
    assert compared and {each.change for each in compared} == {0.0}


def test_the_command_of_the_example_runs_writes_the_newest_schema_and_keeps_what_has_it(tmp_path: Path) -> None:
    rewrite = runpy.run_path(str(ROOT / "tools" / "example_runs.py"))["rewrite"]
    examples = sorted((ROOT / "examples" / "runs").glob("*.json.gz"))
    assert examples
    for path in (*examples, RUNS["refused-2"]):
        shutil.copy(path, tmp_path)
        rewrite(tmp_path / path.name)
        assert (tmp_path / path.name).read_bytes() == path.read_bytes() or path == RUNS["refused-2"], path
    newest = Run.load(RUNS["refused-3"])
    assert [m.reason for m in Run.load(tmp_path / RUNS["refused-2"].name).measurements] == [
        m.reason for m in newest.measurements
    ]
