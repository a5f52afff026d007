"""What a comparison of two runs comes to: a table for people, cases for CI, and what to know beside them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from stripectl.analysis import comparison, schedule_diff
from stripectl.errors import BadInput
from stripectl.reporters.ci import Case
from stripectl.reporters.markdown import fitting, table
from stripectl.reporters.markdown import text as plain
from stripectl.reporters.terminal.tables import change
from stripectl.results.labels import describe, plan_cell
from stripectl.results.measurement import Measurement
from stripectl.results.noise import disturbances
from stripectl.results.run import Run
from stripectl.util.progress import Say
from stripectl.util.units import NOTHING, duration

TIMES = ("verdict", "plan", "pass", "change", "base", "new", "method", "workload")
FACTS = ("verdict", "plan", "pass", "fact", "base", "new", "workload")
SEEN = 0.02  # change of the machine's own speed that is said
LEAST = 4  # columns on the narrowest screen
FAILURES = (*comparison.FAILURES, *schedule_diff.FAILURES)
OPEN = ("AMBIGUOUS",)


@dataclass
class Outcome:
    """Rows are those of the table; every case has a verdict, and fails or not."""

    title: str
    columns: Sequence[str]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)

    def add(self, m: Measurement, name: str, verdict: str, message: str, row: Sequence[str]) -> None:
        """A case, and its row."""
        self.rows.append((verdict, plan_cell(m), m.workload.passes, *row, describe(m.workload)))
        outcome = "failed" if verdict in FAILURES else "skipped" if verdict in OPEN else "passed"
        group = f"{m.workload.passes}, {describe(m.workload)} on {m.target}"
        self.cases.append(
            Case(name=name, group=group, verdict=verdict, outcome=outcome, message=message, time_s=m.median_s)
        )

    def counted(self) -> str:
        """How many there are of each verdict."""
        counts = Counter(case.verdict for case in self.cases)
        return ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())

    def markdown(self) -> str:
        """For a pull request, or the summary of a step."""
        lines = [f"### {self.title}", "", plain(self.counted()), "", *table(self.columns, self.rows)]
        notes = [f"- {plain(note)}" for note in self.notes[1:]]
        return fitting([*lines, *([""] if notes else []), *notes], "More rows did not fit.")


def of_times(base: Run, new: Run, threshold: float, allow_different: bool, say: Say) -> Outcome:
    """Times, where the runs are of one environment, or may be of two.

    Raises:
        BadInput: nothing in common, or environments that differ.
    """
    found, unlike = Outcome("stripectl compare", TIMES, properties=about(base, new)), comparison.differences(base, new)
    if unlike and not allow_different:
        raise BadInput(
            f"the runs are of different environments: {'; '.join(unlike)}. --allow-different compares them anyway."
        )
    compared = comparison.compare(base, new, threshold, say)
    for each in compared:
        m = each.new
        old, fresh = duration(each.base.median_s), NOTHING if each.verdict == "MISSING" else duration(m.median_s)
        message = f"{old} to {fresh}, {change(each)}" + (f": {each.why}" if each.why else "")
        found.add(m, f"{plan_cell(m)} {m.method}", each.verdict, message, (change(each), old, fresh, m.method))
    found.notes = [found.counted(), *unlike]
    machine = max((each.machine for each in compared), key=abs)
    if abs(machine) > SEEN:
        found.notes.append(
            f"the machine itself took up to {machine:+.1%} in NEW, by its yardstick: "
            "a change is that of samples where it was as fast, beside medians of all"
        )
    found.notes += [
        f"{each.verdict} {plan_cell(each.new)}, {each.new.workload.passes}: {each.why}" for each in compared if each.why
    ]
    found.notes += [
        f"disturbed {name}, {plan_cell(m)}, {m.workload.passes}: {'; '.join(said)}"
        for each in compared
        for name, m in (("BASE", each.base), ("NEW", each.new))
        if each.verdict != "MISSING" and (said := disturbances(m))
    ]
    return found


def of_schedules(base: Run, new: Run, threshold: float) -> Outcome:
    """What the compiler says: the facts that changed; that environments differ may be why.

    Raises:
        BadInput: nothing was compiled.
    """
    found = Outcome("stripectl compare --compare schedule", FACTS, properties=about(base, new))
    facts = schedule_diff.gate(base, new, threshold)
    for each in facts:
        m, row = each.new, (each.name, each.shown(each.was), each.shown(each.now))
        message = f"{each.name}: {row[1]} to {row[2]}" + (f", {m.reason}" if m.reason else "")
        found.add(m, f"{plan_cell(m)} {each.name}", each.verdict, message, row)
    changed = [row for row, each in zip(found.rows, facts, strict=True) if each.was != each.now]
    plans = len({each.base.key for each in facts})
    found.rows = changed
    found.notes = [f"{len(facts) - len(changed)} of {len(facts)} facts of {plans} compiled plans are the same"]
    found.notes += [f"differs: {each}" for each in comparison.unlike(base, new, ("versions", "flags"))]
    return found


def about(base: Run, new: Run) -> dict[str, str]:
    """What a file of verdicts says of the runs."""
    return {"base": f"{base.command}, {base.created}", "new": f"{new.command}, {new.created}"}
