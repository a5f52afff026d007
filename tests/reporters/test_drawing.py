"""Charts are drawn in a process that may die: then there is no report, but a line, and the run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stripectl.errors import BadInput
from stripectl.reporters.html.drawing import draw_svg, start_drawer
from stripectl.reporters.html.vega_lite import filled, svg
from stripectl.util.files import data_folder
from tests.support.command import BENCH

FILES = data_folder("templates") / "charts"
CHART = {"mark": "point", "data": {"values": [{"a": 1}]}, "encoding": {"x": {"field": "a"}}}


def test_a_process_that_died_costs_one_chart() -> None:
    assert draw_svg(CHART).startswith("<svg")
    start_drawer().kill()
    start_drawer().wait()
    with pytest.raises(BadInput, match=r"cannot draw the report because the process .* was killed by SIGKILL"):
        draw_svg(CHART)
    assert draw_svg(CHART).startswith("<svg")


def test_what_is_no_chart_is_an_error_and_the_process_goes_on() -> None:
    process = start_drawer()
    with pytest.raises(ValueError, match=r"."):
        draw_svg({"mark": ["no"]})
    assert draw_svg(CHART).startswith("<svg") and start_drawer() is process


@pytest.mark.faults
def test_where_addresses_are_limited_the_run_is_kept(tmp_path: Path) -> None:
    """As `ulimit -v` of a login node."""
    script = f"ulimit -v 4000000; {sys.executable} -P -m stripectl {BENCH} --output run --history kept"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith("error: cannot draw the report") and "ulimit -v unlimited" in line
    assert "report  not written" in done.stdout
    assert os.listdir(tmp_path / "run") == ["run.json"] and os.listdir(tmp_path / "kept") == ["history.sqlite"]


@pytest.mark.parametrize("name", [path.name.partition(".")[0] for path in FILES.glob("*.vl.json")])
def test_a_file_can_be_drawn_alone(name: str) -> None:
    assert svg(filled(name, {})).startswith("<svg")
