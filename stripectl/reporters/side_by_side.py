"""Several runs side by side, as data: what changed from the first run, and how their environments differ."""

import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stripectl.analysis.comparison import compare_runs
from stripectl.errors import BadInput
from stripectl.reporters.cells import spread_cell
from stripectl.reporters.facts import environment_rows
from stripectl.results.labels import plan_label, workload_label
from stripectl.results.run import Run
from stripectl.statistics.verdict import Verdict
from stripectl.util.units import NOTHING, plural

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


@dataclass(frozen=True)
class SideBySide:
    """Several runs: a letter for each, measurements in the columns of `CHANGES`, facts of their environments with a
    value per run, and the number of equal facts."""

    letters: list[str]
    answer: str
    changed: list[list[str]]
    unchanged: list[list[str]]
    differing: list[list[str]]
    alike: int


def side_by_side(runs: Sequence[Run]) -> SideBySide:
    """Compare runs with the first of them."""
    letters = list(map(letter_of, range(len(runs))))
    rows = sorted(common_measurements(letters, runs), key=_notable)
    differing, alike = environment_table(runs)
    return SideBySide(
        letters,
        changes_sentence(letters, rows),
        [row for row in rows if row[-1] != Verdict.UNCHANGED],
        [row for row in rows if row[-1] == Verdict.UNCHANGED],
        differing,
        alike,
    )


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


def letter_of(at: int) -> str:
    return string.ascii_uppercase[at] if at < 26 else str(at + 1)


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


def common_measurements(letters: Sequence[str], runs: Sequence[Run]) -> list[list[str]]:
    """Pair the measurements of two runs with equal plan, workload, target and method, and give verdicts."""
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
