"""Help, cards and tables as a person reads them, kept as text files: `make snapshots` writes them again, and the diff
shows how the output changed. Words of the help are compared without line breaks, which click's versions may move."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from stripectl.analysis.recommendation import recommended
from stripectl.api import load_run
from stripectl.cli.app import COMMANDS
from stripectl.cli.session import show_run
from stripectl.reporters.markdown_report import page_markdown
from stripectl.reporters.terminal.recommendation import recommendation_panel

RUNS = Path(__file__).parents[2] / "examples" / "runs"
SHORT_RUNS = ("cpu", "failed", "gpu", "meshes", "tpu", "traced", "tuning")  # a person reads their tables in a diff
WIDTH = 100


def same_words(obtained: Path, expected: Path) -> None:
    assert obtained.read_text().split() == expected.read_text().split()


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command: str, file_regression) -> None:
    asked = [sys.executable, "-m", "stripectl", *command.split(), "--help"]
    shown = subprocess.run(asked, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "80"})
    file_regression.check(shown.stdout, check_fn=same_words)


@pytest.mark.parametrize("name", SHORT_RUNS)
def test_terminal(name: str, file_regression) -> None:
    run = recommended(load_run(RUNS / f"{name}.json.gz"))
    text = io.StringIO()
    screen = Console(file=text, width=WIDTH, highlight=False, color_system=None)
    if run.recommendation:
        screen.print(recommendation_panel(run.recommendation, WIDTH, "report.html"))
    show_run(run, screen, run, (), every=True)
    file_regression.check(text.getvalue())


@pytest.mark.parametrize("name", SHORT_RUNS)
def test_markdown(name: str, file_regression) -> None:
    file_regression.check(page_markdown([recommended(load_run(RUNS / f"{name}.json.gz"))]), extension=".md")
