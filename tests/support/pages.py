"""What reporters show of a run, with the recommendation that its figures support."""

from collections.abc import Sequence
from typing import Any

from stripectl.analysis.recommendation import recommended
from stripectl.reporters.html.page import render, render_several
from stripectl.reporters.html.page_content import page_context
from stripectl.reporters.markdown_report import page_markdown
from stripectl.results.run import Run


def page_of(run: Run, past: Sequence[Run] | None = None) -> str:
    """Return the page of a run, as after a bench or from its file."""
    return render(recommended(run), past=past)


def page_of_several(runs: Sequence[Run]) -> str:
    """Return the page of runs side by side."""
    return render_several([recommended(run) for run in runs])


def content_of(run: Run, past: Sequence[Run] | None = None) -> dict[str, Any]:
    """Return everything that the page of a run shows, as plain data."""
    return page_context(recommended(run), past)


def markdown_of(runs: Sequence[Run]) -> str:
    """Return a run, or several, as markdown."""
    return page_markdown([recommended(run) for run in runs])
