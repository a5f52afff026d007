"""The result of comparing two runs: a table for people, cases for CI, and notes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from stripectl.analysis import comparison, schedule_diff
from stripectl.errors import BadInput
from stripectl.reporters.ci import JUnitCase
from stripectl.reporters.markdown import fit_comment, markdown_table
from stripectl.reporters.markdown import markdown_text as plain
from stripectl.reporters.terminal.tables import change_cell
from stripectl.results.labels import plan_label, workload_label
from stripectl.results.measurement import Measurement
from stripectl.results.noise import disturbances
from stripectl.results.run import Run
from stripectl.statistics.verdict import Verdict
from stripectl.util.progress import Say
from stripectl.util.units import NOTHING, duration

TIME_COLUMNS = ("verdict", "plan", "pass", "change", "base", "new", "method", "workload")
FACT_COLUMNS = ("verdict", "plan", "pass", "fact", "base", "new", "workload")
MENTIONED_CHANGE = 0.02  # a larger change of the machine's own speed is reported
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
    found, unlike = (
        ComparisonTable("stripectl compare", TIME_COLUMNS, properties=compared_runs(base, new)),
        comparison.environment_differences(base, new),
    )
    if unlike and not allow_different:
        raise BadInput(
            f"the environments of the runs differ: {'; '.join(unlike)}. Try --allow-different to compare them anyway."
        )
    compared = comparison.compare_runs(base, new, threshold, say)
    for each in compared:
        m = each.new
        old, fresh = duration(each.base.median_s), NOTHING if each.verdict == Verdict.MISSING else duration(m.median_s)
        message = f"{old} to {fresh}, {change_cell(each)}" + (f": {each.why}" if each.why else "")
        found.add(m, f"{plan_label(m)} {m.method}", each.verdict, message, (change_cell(each), old, fresh, m.method))
    found.notes = [found.counted(), *unlike]
    machine = max((each.machine for each in compared), key=abs)
    if abs(machine) > MENTIONED_CHANGE:
        found.notes.append(
            f"The machine was up to {machine:+.1%} slower in NEW (measured by the yardstick, a reference matmul next "
            "to each sample). A change is computed from samples in which it was as fast; the columns show all "
            "medians."
        )
    found.notes += [
        f"{each.verdict} {plan_label(each.new)}, {each.new.workload.passes}: {each.why}"
        for each in compared
        if each.why
    ]
    found.notes += [
        f"disturbed {name}, {plan_label(m)}, {m.workload.passes}: {'; '.join(said)}"
        for each in compared
        for name, m in (("BASE", each.base), ("NEW", each.new))
        if each.verdict != Verdict.MISSING and (said := disturbances(m))
    ]
    return found


def schedules_table(base: Run, new: Run, threshold: float) -> ComparisonTable:
    """The comparison of compiled programs: the facts that changed, which differences of the environments may explain.

    Raises:
        BadInput: nothing was compiled.
    """
    found = ComparisonTable("stripectl compare --compare schedule", FACT_COLUMNS, properties=compared_runs(base, new))
    facts = schedule_diff.compare_schedules(base, new, threshold)
    for each in facts:
        m, row = each.new, (each.name, each.shown(each.was), each.shown(each.now))
        message = f"{each.name}: {row[1]} to {row[2]}" + (f", {m.reason}" if m.reason else "")
        found.add(m, f"{plan_label(m)} {each.name}", each.verdict, message, row)
    changed = [row for row, each in zip(found.rows, facts, strict=True) if each.was != each.now]
    plans = len({each.base.key for each in facts})
    found.rows = changed
    found.notes = [f"{len(facts) - len(changed)} of {len(facts)} facts of {plans} compiled plans are equal"]
    found.notes += [f"differs: {each}" for each in comparison.differences_in_parts(base, new, ("versions", "flags"))]
    return found


def compared_runs(base: Run, new: Run) -> dict[str, str]:
    """The properties of the runs in a file of verdicts."""
    return {"base": f"{base.command}, {base.created}", "new": f"{new.command}, {new.created}"}
