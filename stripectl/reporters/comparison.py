"""The result of comparing two runs: a table for people, cases for CI, and notes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from stripectl.analysis import comparison, schedule_diff
from stripectl.reporters.ci import JUnitCase
from stripectl.reporters.markdown import fit_comment, markdown_table
from stripectl.reporters.markdown import markdown_text as plain
from stripectl.results.labels import plan_label, workload_label
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from stripectl.statistics.verdict import Verdict
from stripectl.util.progress import Say

TIME_COLUMNS = ("verdict", "plan", "pass", "change", "base", "new", "method", "workload")
FACT_COLUMNS = ("verdict", "plan", "pass", "fact", "base", "new", "workload")
MIN_COLUMNS = 4  # columns on the narrowest screen


@dataclass
class ComparisonTable:
    """`rows` are the rows of the table; every case has a verdict, and fails or not."""

    title: str
    columns: Sequence[str]
    rows: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    cases: list[JUnitCase] = field(default_factory=list[JUnitCase])
    notes: list[str] = field(default_factory=list[str])
    properties: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, m: Measurement, name: str, verdict: Verdict, message: str, row: Sequence[str]) -> None:
        """Add a case, and its row."""
        self.rows.append((verdict, plan_label(m), m.workload.passes, *row, workload_label(m.workload)))
        outcome = "failed" if verdict.is_failure else "skipped" if verdict == Verdict.INCONCLUSIVE else "passed"
        group = f"{m.workload.passes}, {workload_label(m.workload)} on {m.target}"
        self.cases.append(
            JUnitCase(name=name, group=group, verdict=verdict, outcome=outcome, message=message, time_s=m.median_s)
        )

    def counted(self) -> str:
        """The number of cases with each verdict."""
        counts = Counter(case.verdict for case in self.cases)
        return ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())

    def markdown(self) -> str:
        """Markdown for a pull request, or for the summary of a step."""
        lines = [f"### {self.title}", "", plain(self.counted()), "", *markdown_table(self.columns, self.rows)]
        notes = [f"- {plain(note)}" for note in self.notes[1:]]
        return fit_comment([*lines, *([""] if notes else []), *notes], "More rows did not fit.")


def times_table(base: Run, new: Run, threshold: float, allow_different: bool, say: Say) -> ComparisonTable:
    """The comparison of times, where the runs have one environment, or may have two.

    Raises:
        BadInput: no measurement in common, or the environments differ.
    """
    if not allow_different:
        comparison.check_environments(base, new)
    found = ComparisonTable("stripectl compare", TIME_COLUMNS, properties=compared_runs(base, new))
    compared = comparison.compare_runs(base, new, threshold, say)
    for each in compared:
        m, row = each.new, (each.change_text, *each.time_texts, each.new.method)
        found.add(m, f"{plan_label(m)} {m.method}", each.verdict, each.sentence, row)
    unlike, notes = comparison.environment_differences(base, new), comparison.comparison_notes(compared)
    found.notes = [found.counted(), *unlike, *notes]
    return found


def schedules_table(base: Run, new: Run, threshold: float) -> ComparisonTable:
    """The comparison of compiled programs: the facts that changed, which differences of the environments may explain.

    Raises:
        BadInput: nothing was compiled.
    """
    found = ComparisonTable("stripectl compare --compare schedule", FACT_COLUMNS, properties=compared_runs(base, new))
    facts = schedule_diff.compare_schedules(base, new, threshold)
    for each in facts:
        row = each.name, each.shown(each.was), each.shown(each.now)
        found.add(each.new, f"{plan_label(each.new)} {each.name}", each.verdict, each.sentence, row)
    found.rows = [row for row, each in zip(found.rows, facts, strict=True) if each.was != each.now]
    found.notes = schedule_diff.schedule_notes(base, new, facts)
    return found


def compared_runs(base: Run, new: Run) -> dict[str, str]:
    """The properties of the runs in a file of verdicts."""
    return {"base": f"{base.command}, {base.created}", "new": f"{new.command}, {new.created}"}
