"""Runs of schema `stripectl.run/1`, made on 22 November 2026, are read and rendered with the figures they hold."""

import gzip
import json
from pathlib import Path

import pytest

from stripectl.reporters.html.page import page_markdown, render
from stripectl.results.run import Run

RUNS = sorted((Path(__file__).parent / "golden").glob("*.json.gz"))


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name.partition(".")[0])
def test_a_run_of_schema_1_is_rendered_with_its_figures(path: Path, tmp_path: Path) -> None:
    content = json.loads(gzip.decompress(path.read_bytes()))
    assert content["schema"] == "stripectl.run/1"
    run = Run.load(path)
    assert [(str(m.plan), m.method, m.status, m.median_s) for m in run.measurements] == [
        (m["plan"], m["method"], m["status"], m["median_s"]) for m in content["measurements"]
    ]
    page, markdown = render(run), page_markdown([run])
    if advice := content["recommendation"]:
        assert advice["plan"] in page
        assert advice["plan"] in markdown
    run.save(tmp_path / "again.json")
    again = Run.load(tmp_path / "again.json")
    assert [m.to_json() for m in again.measurements] == [m.to_json() for m in run.measurements]
