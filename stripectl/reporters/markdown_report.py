"""A run, or several side by side, as markdown that fits a comment on a pull request: the verdict first, then collapsed
numbers."""

import re
from collections.abc import Sequence

from stripectl.analysis.note import note_lines
from stripectl.analysis.ranking import strength
from stripectl.reporters.cells import Cell, measurement_cells, texts_of
from stripectl.reporters.facts import warnings_of
from stripectl.reporters.markdown import collapsed_details, fit_comment, markdown_table, markdown_text, plain_text
from stripectl.reporters.recommendation_rows import other_workload_rows, panel_rows, panel_title
from stripectl.reporters.refusals import refusal_texts, refusals
from stripectl.reporters.side_by_side import CHANGES, side_by_side
from stripectl.results.labels import workload_label
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import MeasurementSet
from stripectl.results.recommendation import Recommendation
from stripectl.results.run import Run

MAX_PLANS = 10  # per workload
COLUMNS = ("plan", "pass", "method", "time", "speed-up", "bound", "memory", "hidden")
MORE = "More in run.json."


def page_markdown(runs: Sequence[Run]) -> str:
    """Return a run, or several side by side, for a comment on a pull request."""
    return several_runs_markdown(runs) if len(runs) > 1 else run_markdown(runs[0])


def run_markdown(run: Run) -> str:
    """Return the markdown of a run that has its recommendation."""
    shown = run.results
    lines = [*_verdict(run.recommendation, shown), *_warnings(run)]
    groups: dict[str, list[Measurement]] = {}
    for m in shown:
        groups.setdefault(workload_label(m.workload), []).append(m)
    for title, members in groups.items():
        lines += ["", *collapsed_details(f"{title}: {len(members)} rows", _measurements(members, shown))]
    lines += ["", *(markdown_text(str(each)) for each in note_lines(run))]
    lines += ["", *_made(run)]
    return fit_comment(lines, MORE)


def several_runs_markdown(runs: Sequence[Run]) -> str:
    """Return the recommendation of each run, and what changed from the first."""
    found = side_by_side(runs)
    lettered = list(zip(found.letters, runs, strict=True))
    names = ", ".join(f"{letter} {markdown_text(run.id)}" for letter, run in lettered)
    rows = [[letter, *_recommends(run.recommendation)] for letter, run in lettered]
    lines = [f"### stripectl: {names}", "", *markdown_table(("run", "recommends", "plan", "target", "time"), rows)]
    if found.changed:
        changed = markdown_table(CHANGES, found.changed)
        lines += ["", *collapsed_details(f"Changes from A: {len(found.changed)}", changed)]
    if found.differing:
        differing = markdown_table(("environment", *found.letters), found.differing)
        lines += ["", *collapsed_details("Differences between the environments", differing)]
    for letter, run in lettered:
        lines += ["", f"Run {letter}:", *_made(run)]
    return fit_comment(lines, MORE)


def _recommends(found: Recommendation | None) -> list[str]:
    time = found and found.statement("time")
    if not found or not time:
        return ["no time"] * 4
    return [found.headline, found.printed_plan, str(found.target), f"{time.value}, {time.method}"]


def _verdict(found: Recommendation | None, shown: Sequence[Measurement]) -> list[str]:
    if found is None:
        reason = "no plan gave a time" if shown else "the run holds no measurement"
        return [f"### stripectl: {reason}"]
    rows = [*panel_rows(found), *other_workload_rows(found)]
    return [
        f"### stripectl: {markdown_text(found.headline)}",
        "",
        markdown_text(panel_title(found)),
        "",
        *markdown_table(("", ""), rows),
    ]


def _warnings(run: Run) -> list[str]:
    return [line for warning in warnings_of(run) for line in ("", f"**Warning.** {markdown_text(warning)}.")]


def _measurements(members: Sequence[Measurement], run: MeasurementSet) -> list[str]:
    """The fastest plans, and the number of others."""
    timed = sorted((m for m in members if m.median_s), key=lambda m: (strength(m.method), m.median_s or 0.0))
    others = [m for m in members if not m.median_s]
    cells = [measurement_cells(m, run) | {"pass": Cell(m.workload.passes)} for m in timed[:MAX_PLANS]]
    rows = [texts_of(each, COLUMNS) for each in cells]
    lines = markdown_table(COLUMNS, rows) if rows else []
    if len(timed) > MAX_PLANS:
        lines += ["", f"{len(timed) - MAX_PLANS} more in run.json."]
    for status, text in refusal_texts(refusals(others))[:MAX_PLANS]:
        lines += ["", markdown_text(f"{status}: {text}")]
    return lines


def _made(run: Run) -> list[str]:
    """The command, fenced by more backticks than it contains."""
    command = plain_text(run.command)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", command)), default=0))
    return [fence, command, fence]
