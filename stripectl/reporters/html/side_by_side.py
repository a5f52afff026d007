"""Several runs side by side: their recommendations, the differences of their environments, and their times compared."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypedDict

from stripectl.analysis.ranking import contenders, strength
from stripectl.core.workload import Workload
from stripectl.reporters.cells import spread_cell
from stripectl.reporters.facts import warnings_of
from stripectl.reporters.history_text import run_minute
from stripectl.reporters.html.bar_chart import Bars, time_bar
from stripectl.reporters.html.charts import Chart, ChartTable, Section, chart_table, grouped_by, section
from stripectl.reporters.html.recommendation import RecommendationCard, recommendation_cards
from stripectl.reporters.html.run_archive import archive_of_run
from stripectl.reporters.side_by_side import CHANGES, side_by_side
from stripectl.results.labels import plan_label, workload_label
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from stripectl.util.units import SECONDS, duration, unit_of

TITLE = "Which run is faster, at what?"
INTRO = (
    "The best plan of each scheme and layout in every run, for each workload that two runs have. The letter names the "
    "run. Runs may differ in machine, tiles and method: the table has them."
)
ABSENT = "No two of the runs have a time for the same workload."
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


class SideBySidePage(TypedDict):
    """The page of several runs."""

    runs: list[ComparedRun]
    differing: ChartTable
    alike: int
    part: Section
    answer: str
    changes: ChartTable
    unchanged: ChartTable


def side_by_side_context(runs: Sequence[Run]) -> SideBySidePage:
    """Return the content of the page with several runs, as plain data."""
    found = side_by_side(runs)
    letters = found.letters
    return {
        "runs": [_run(letter, run) for letter, run in zip(letters, runs, strict=True)],
        "differing": chart_table(("", *letters), found.differing, ("", *letters), most=200),
        "alike": found.alike,
        "part": section("faster", "Faster", TITLE, INTRO, grouped_by(_charts(letters, runs)), ABSENT),
        "answer": found.answer,
        "changes": _changes_table(found.changed),
        "unchanged": _changes_table(found.unchanged),
    }


def _changes_table(rows: Iterable[Sequence[str]]) -> ChartTable:
    return chart_table(CHANGES, rows, {*CHANGES} - {"A", "other"}, most=500)


def _run(letter: str, run: Run) -> ComparedRun:
    own = recommendation_cards(run.recommendation)
    packed, left_out = archive_of_run(run)
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
    bars = [time_bar(at, m, size, f"{letter}  {plan_label(m)}", best=m is best) for at, (letter, m) in enumerate(shown)]
    return Chart(
        TITLE,
        work.passes,
        [m.method for _, m in shown],
        f"Times of plans. The best of the strongest method: run {letter}, {best.plan} on {best.target}, "
        f"{duration(best.median_s)}, {best.method}.",
        chart_table(
            ("run", "plan", "target", "dtype", "method", "time"), rows, ("run", "plan", "target", "dtype", "method")
        ),
        Bars(bars, f"time ({unit})"),
        group=workload_label(work),
    )
