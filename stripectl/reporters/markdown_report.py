"""A run, or several side by side, as markdown that fits a comment on a pull request: the verdict first, then collapsed
numbers."""

import re
from collections.abc import Sequence

from stripectl.analysis.note import note_lines
from stripectl.analysis.ranking import strength
from stripectl.reporters.cells import measurement_row
from stripectl.reporters.html.fact_tables import warnings_of
from stripectl.reporters.html.side_by_side import side_by_side_context
from stripectl.reporters.markdown import collapsed_details, fit_comment, markdown_table, markdown_text, plain_text
from stripectl.reporters.recommendation_rows import other_workload_rows, panel_rows, panel_title
from stripectl.reporters.refusals import refusal_texts, refusals
from stripectl.results.labels import workload_label
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import MeasurementSet
from stripectl.results.recommendation import Recommendation
from stripectl.results.run import Run

MAX_PLANS = 10  # per workload
COLUMNS = ("plan", "pass", "method", "time", "speed-up", "bound", "memory", "hidden")
MORE = "More in run.json."


def run_markdown(run: Run, found: Recommendation | None) -> str:
    """The markdown of a run; `found` is its recommendation."""
    shown = run.results
    lines = [*_verdict(found, shown), *_warnings(run)]
    groups: dict[str, list[Measurement]] = {}
    for m in shown:
        groups.setdefault(workload_label(m.workload), []).append(m)
    for title, members in groups.items():
        lines += ["", *collapsed_details(f"{title}: {len(members)} rows", _measurements(members, shown))]
    lines += ["", *(markdown_text(str(each)) for each in note_lines(run))]
    lines += ["", *_made(run)]
    return fit_comment(lines, MORE)


def several_runs_markdown(runs: Sequence[Run]) -> str:
    """The recommendation of each run, and what changed from the first."""
    said = side_by_side_context(runs)
    lines = ["### stripectl: " + ", ".join(f"{run['letter']} {markdown_text(run['id'])}" for run in said["runs"]), ""]
    rows = list[list[str]]()
    for run in said["runs"]:
        own = run["card"]
        told = (
            (own["headline"], own["plan"], own["target"], f"{own['time'].value}, {own['time'].method}")
            if own and own["time"]
            else ("no time",) * 4
        )
        rows.append([run["letter"], *told])
    lines += markdown_table(("run", "recommends", "plan", "target", "time"), rows)
    changed = said["changes"]
    if changed["rows"]:
        lines += [
            "",
            *collapsed_details(
                f"Changes from A: {len(changed['rows'])}", markdown_table(changed["columns"], changed["rows"])
            ),
        ]
    if said["differing"]["rows"]:
        columns = ["environment", *said["differing"]["columns"][1:]]
        lines += [
            "",
            *collapsed_details(
                "Differences between the environments", markdown_table(columns, said["differing"]["rows"])
            ),
        ]
    for letter, run in zip((run["letter"] for run in said["runs"]), runs, strict=True):
        lines += ["", f"Run {letter}:", *_made(run)]
    return fit_comment(lines, MORE)


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
    cells = [measurement_row(m, run) | {"pass": m.workload.passes} for m in timed[:MAX_PLANS]]
    rows = [[each[name] for name in COLUMNS] for each in cells]
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
