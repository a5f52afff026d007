"""Several runs side by side: their recommendations, the differences of their environments, and their times compared."""

import string
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

from stripectl.analysis.comparison import compare_runs
from stripectl.analysis.ranking import contenders, strength
from stripectl.analysis.recommendation import recommend
from stripectl.core.workload import Workload
from stripectl.errors import BadInput
from stripectl.reporters.cells import spread_cell
from stripectl.reporters.history_text import run_minute
from stripectl.reporters.html.bar_chart import time_bar
from stripectl.reporters.html.charts import (
    Chart,
    ChartTable,
    Section,
    chart,
    chart_table,
    grouped_by,
    section,
)
from stripectl.reporters.html.fact_tables import environment_rows, warnings_of
from stripectl.reporters.html.recommendation import RecommendationCard, recommendation_cards
from stripectl.reporters.html.run_archive import archive_of_run
from stripectl.results.labels import plan_label, workload_label
from stripectl.results.measurement import Measurement
from stripectl.results.recommendation import Recommendation
from stripectl.results.run import Run
from stripectl.statistics.verdict import Verdict
from stripectl.util.units import NOTHING, SECONDS, duration, plural, unit_of

TITLE = "Which run is faster, at what?"
INTRO = (
    "The best plan of each scheme and layout in every run, for each workload that two runs have. The letter names the "
    "run. Runs may differ in machine, tiles and method: the table has them."
)
ABSENT = "No two of the runs have a time for the same workload."
CHANGES = ("plan", "workload", "method", "from", "to", "A", "other", "change", "verdict")
THRESHOLD = 0.05  # a smaller change counts as equal, as in `stripectl compare`
VERDICTS = (  # changes first
    Verdict.FAILED,
    Verdict.MISSING,
    Verdict.REGRESSED,
    Verdict.IMPROVED,
    Verdict.INCONCLUSIVE,
    Verdict.UNCHANGED,
)
MAX_BARS = 18


class ComparedRun(TypedDict):
    """A run on the page of several: its letter, and the card of its recommendation."""

    letter: str
    id: str
    created: str
    command: str
    card: RecommendationCard | None
    warnings: list[str]
    run_data: str
    run_left_out: str


class SideBySide(TypedDict):
    """The page of several runs."""

    runs: list[ComparedRun]
    differing: ChartTable
    alike: int
    part: Section
    answer: str
    changes: ChartTable
    unchanged: ChartTable


def side_by_side_context(runs: Sequence[Run]) -> SideBySide:
    """The content of the page with several runs, as plain data."""
    letters = list(map(_letter, range(len(runs))))
    shown = [_run(letter, run, recommend(run)) for letter, run in zip(letters, runs, strict=True)]
    differing, alike = environment_table(runs)
    rows = sorted(common_measurements(letters, runs), key=_notable)
    same = [row for row in rows if row[-1] == Verdict.UNCHANGED]
    return {
        "runs": shown,
        "differing": chart_table(("", *letters), differing, ("", *letters), most=200),
        "alike": alike,
        "part": section("faster", "Faster", TITLE, INTRO, grouped_by(_charts(letters, runs)), ABSENT),
        "answer": changes_sentence(letters, rows),
        "changes": _changes_table(row for row in rows if row[-1] != Verdict.UNCHANGED),
        "unchanged": _changes_table(same),
    }


def _changes_table(rows: Iterable[Sequence[str]]) -> ChartTable:
    return chart_table(CHANGES, rows, {*CHANGES} - {"A", "other"}, most=500)


def changes_sentence(letters: Sequence[str], changes: Sequence[Sequence[str]]) -> str:
    """The number of measurements that changed from the first run to each other run."""
    said = list[str]()
    for letter in letters[1:]:
        counts = Counter(row[-1] for row in changes if row[4] == letter)
        if [*counts] == [Verdict.UNCHANGED]:
            said.append(f"{plural(counts.total(), 'measurement')} and no change in {letter}")
            continue
        words = [f"{counts[verdict]} {verdict.lower()}" for verdict in VERDICTS if counts[verdict]]
        if words:
            said.append(f"{', '.join(words)} in {letter}")
    if not said:
        return f"No measurement of run {letters[0]} is in another run: plan, workload, target and method must be equal."
    return f"Against run {letters[0]}: {'; '.join(said)}."


def _notable(row: Sequence[str]) -> int:
    """A sort key: changes first, the worst before all."""
    return VERDICTS.index(row[-1]) if row[-1] in VERDICTS else len(VERDICTS)


def _letter(at: int) -> str:
    return string.ascii_uppercase[at] if at < 26 else str(at + 1)


def _run(letter: str, run: Run, found: Recommendation | None) -> ComparedRun:
    own = recommendation_cards(found)
    packed, left_out = archive_of_run(replace(run, recommendation=found))
    return {
        "letter": letter,
        "id": run.id,
        "created": run_minute(run),
        "command": run.command,
        "card": own[0] if own else None,
        "warnings": warnings_of(run),
        "run_data": packed,
        "run_left_out": left_out,
    }


def environment_table(runs: Sequence[Run]) -> tuple[list[list[str]], int]:
    """(differences of the environments: the name and each run's value; the number of equal values)."""
    every = [
        {
            f"{group['title']}: {name}".removeprefix(": "): value
            for group in environment_rows(run)
            for name, value in group["rows"]
        }
        for run in runs
    ]
    names = list(dict.fromkeys(name for each in every for name in each))
    rows = [[name, *(each.get(name, NOTHING) for each in every)] for name in names]
    differing = [row for row in rows if len(set(row[1:])) > 1]
    return differing, len(rows) - len(differing)


def _charts(letters: Sequence[str], runs: Sequence[Run]) -> Iterator[Chart]:
    works: dict[Hashable, dict[str, dict[str, Measurement]]] = {}
    titles: dict[Hashable, Workload] = {}
    for letter, run in zip(letters, runs, strict=True):
        timed = sorted(contenders(run.measurements), key=lambda m: (strength(m.method), m.median_s or 0.0))
        for m in timed:
            key = m.workload.without("dtype")
            plan = m.plan
            name = f"{plan.scheme}/{plan.layout}" + " (one device)" * (m.devices == 1)
            titles.setdefault(key, m.workload)
            works.setdefault(key, {}).setdefault(name, {}).setdefault(letter, m)
    for key, names in works.items():
        if len({letter for best in names.values() for letter in best}) > 1:
            yield _chart(titles[key], names)


def _chart(work: Workload, names: Mapping[str, Mapping[str, Measurement]]) -> Chart:
    order = sorted(names.values(), key=lambda best: min(m.median_s or 0.0 for m in best.values()))
    shown = [(letter, m) for best in order for letter, m in sorted(best.items())][:MAX_BARS]
    unit, size = unit_of(max(m.median_s or 0.0 for _, m in shown), SECONDS)
    rows = [(letter, plan_label(m), str(m.target), m.workload.dtype, m.method, spread_cell(m)) for letter, m in shown]
    letter, best = min(shown, key=lambda each: (strength(each[1].method), each[1].median_s or 0.0))
    return chart(
        "bars",
        TITLE,
        work.passes,
        [m.method for _, m in shown],
        f"Times of plans. The best of the strongest method: run {letter}, {best.plan} on {best.target}, "
        f"{duration(best.median_s)}, {best.method}.",
        chart_table(
            ("run", "plan", "target", "dtype", "method", "time"), rows, ("run", "plan", "target", "dtype", "method")
        ),
        group=workload_label(work),
        bars=[
            time_bar(at, m, size, f"{letter}  {plan_label(m)}", best=m is best) for at, (letter, m) in enumerate(shown)
        ],
        axis=f"time ({unit})",
        rule=None,
    )


def common_measurements(letters: Sequence[str], runs: Sequence[Run]) -> list[list[str]]:
    """The measurements that the first run has in common with another (plan, workload, target and method), and
    verdicts."""
    rows = list[list[str]]()
    for letter, run in zip(letters[1:], runs[1:], strict=True):
        try:
            found = compare_runs(runs[0], run, THRESHOLD)
        except BadInput:  # no measurement in common
            continue
        for each in found:
            missing = each.verdict == Verdict.MISSING
            own = each.base
            rows.append(
                [
                    plan_label(own),
                    f"{own.workload.passes}, {workload_label(own.workload)} on {own.target}",
                    own.method,
                    letters[0],
                    letter,
                    spread_cell(own),
                    NOTHING if missing else spread_cell(each.new),
                    each.change_text,
                    each.verdict,
                ]
            )
    return rows
