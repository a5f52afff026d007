"""A run, or several side by side, as markdown that fits a comment on a pull request: the verdict first, then numbers,
folded."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stripectl.analysis.ranking import strength
from stripectl.reporters.html.fact_tables import warnings_of
from stripectl.reporters.html.side_by_side import context
from stripectl.reporters.markdown import fitting, folded, plain, table, text
from stripectl.reporters.terminal import recommendation, tables
from stripectl.results.labels import describe
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run

MOST_PLANS = 10  # of a workload
COLUMNS = ("plan", "pass", "method", "time", "speed-up", "bound", "memory", "hidden")
MORE = "More in run.json."


def of_run(run: Run, shown: Sequence[Measurement], found: Mapping[str, Any] | None) -> str:
    """`shown` are the measurements with their speed-ups, `found` what is recommended."""
    lines = [*_verdict(found, shown), *_warnings(run)]
    groups: dict[str, list[Measurement]] = {}
    for m in shown:
        groups.setdefault(describe(m.workload), []).append(m)
    for title, members in groups.items():
        lines += ["", *folded(f"{title}: {len(members)} rows", _measurements(members, shown))]
    lines += ["", *_made(run)]
    return fitting(lines, MORE)


def of_several(runs: Sequence[Run]) -> str:
    """What each recommends, and what changed from the first."""
    said = context(runs)
    lines = ["### stripectl: " + ", ".join(f"{run['letter']} {text(run['id'])}" for run in said["runs"]), ""]
    rows = []
    for run in said["runs"]:
        own = run["card"]
        told = (
            (own["headline"], own["plan"], own["target"], f"{own['time']}, {own['method']}")
            if own
            else ("no time",) * 4
        )
        rows.append([run["letter"], *told])
    lines += table(("run", "recommends", "plan", "target", "time"), rows)
    changed = said["changes"]
    if changed["rows"]:
        lines += [
            "",
            *folded(f"What changed from A: {len(changed['rows'])}", table(changed["columns"], changed["rows"])),
        ]
    if said["differing"]["rows"]:
        columns = ["around it", *said["differing"]["columns"][1:]]
        lines += ["", *folded("What differs around them", table(columns, said["differing"]["rows"]))]
    for letter, run in zip((run["letter"] for run in said["runs"]), runs, strict=True):
        lines += ["", f"Run {letter}:", *_made(run)]
    return fitting(lines, MORE)


def _verdict(found: Mapping[str, Any] | None, shown: Sequence[Measurement]) -> list[str]:
    if found is None:
        reason = "no plan gave a time" if shown else "the run holds no measurement"
        return [f"### stripectl: {reason}"]
    title = f"{recommendation.title_of(found)} on {found['target']}"
    rows = [*recommendation.rows(found), *recommendation.other_rows(found)]
    return [f"### stripectl: {text(found['headline'])}", "", text(title), "", *table(("", ""), rows)]


def _warnings(run: Run) -> list[str]:
    return [line for warning in warnings_of(run) for line in ("", f"**Warning.** {text(warning)}.")]


def _measurements(members: Sequence[Measurement], run: Sequence[Measurement]) -> list[str]:
    """The fastest, and how many more there are."""
    timed = sorted((m for m in members if m.median_s), key=lambda m: (strength(m.method), m.median_s or 0.0))
    others = [m for m in members if not m.median_s]
    rows = [[tables.row(m, run)[name] for name in COLUMNS] for m in timed[:MOST_PLANS]]
    lines = table(COLUMNS, rows) if rows else []
    if len(timed) > MOST_PLANS:
        lines += ["", f"{len(timed) - MOST_PLANS} more in run.json."]
    for line in tables.refusal_lines(tables.refusals(others))[:MOST_PLANS]:
        lines += ["", text(line.plain.strip())]
    return lines


def _made(run: Run) -> list[str]:
    """The command, fenced by more backticks than it holds."""
    command = plain(run.command)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", command)), default=0))
    return [fence, command, fence]
