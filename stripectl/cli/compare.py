"""`stripectl compare`: two runs, with verdicts for people and for CI."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stripectl.cli.command_options import CommandOptions
from stripectl.cli.paths import PATH
from stripectl.errors import BadInput

if TYPE_CHECKING:
    from stripectl.reporters.comparison import ComparisonTable
    from stripectl.results.measurement import Measurement

DEFAULT_MAX_REGRESSION = {"times": "5%", "schedule": "0%"}
MAX_SCREEN_ROWS = 1000  # rows on a screen


@dataclass(frozen=True, kw_only=True)
class FileOptions(CommandOptions):
    """The files to write, by their format."""

    junit: Path | None = None
    markdown: Path | None = None
    github_benchmark: Path | None = None
    bencher: Path | None = None


def parse_percent(text: str) -> float:
    """`5%` or `0.05`."""
    try:
        value = float(text.rstrip("% ")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        raise BadInput(f"{text!r} is not a threshold. Write 5% or 0.05.") from None
    if not 0 <= value < 1:
        raise BadInput(f"the threshold {text} is out of range: from 0% to 100%.")
    return value


@click.command("compare")
@click.argument("base", type=PATH)
@click.argument("new", type=PATH)
@click.option(
    "--max-regression", metavar="SHARE", help="Largest acceptable regression. [default: 5%; with schedules 0%]"
)
@click.option(
    "--compare",
    "subject",
    type=click.Choice(["times", "schedule"]),
    default="times",
    show_default=True,
    help="Compare times, or the compiler's schedules of compiled plans, which are exact and need no device.",
)
@click.option("--allow-different", is_flag=True, help="Compare times even if the environments differ.")
@click.option("--junit", type=PATH, metavar="FILE", help="Write the verdicts as JUnit XML.")
@click.option("--markdown", type=PATH, metavar="FILE", help="Write the table as markdown.")
@click.option("--github-benchmark", type=PATH, metavar="FILE", help="Write NEW's times for github-action-benchmark.")
@click.option("--bencher", type=PATH, metavar="FILE", help="Write NEW's times as Bencher Metric Format.")
def command(
    base: Path, new: Path, max_regression: str | None, subject: str, allow_different: bool, **given: Any
) -> int:
    """Compare two runs: verdicts, and an exit code for CI.

    BASE and NEW are run.json files, plain or compressed, folders of runs, or reports. Exit code 1: a measurement is
    significantly slower or worse, failed in NEW, or missing from it. In GitHub Actions the table is also in the step's
    summary.

    \b
    Examples:
      stripectl compare stripectl-runs/20261101-120000 stripectl-runs/20261102-120000
      stripectl compare main.json branch.json --max-regression 2% --junit compare.xml
      stripectl compare main.json branch.json --compare schedule
    """
    from stripectl.reporters.comparison import schedules_table, times_table
    from stripectl.reporters.terminal.screen import ProgressDisplay
    from stripectl.results.run import Run

    runs, threshold = (Run.load(base), Run.load(new)), parse_percent(max_regression or DEFAULT_MAX_REGRESSION[subject])
    if subject == "schedule":
        found = schedules_table(*runs, threshold)
    else:
        with ProgressDisplay(quiet=False) as reporter:
            found = times_table(*runs, threshold, allow_different, reporter.say)
    show_comparison(found)
    write_files(found, runs[1].measurements, FileOptions.of(given))
    return int(any(case.outcome == "failed" for case in found.cases))


def show_comparison(found: "ComparisonTable") -> None:
    """Print the table, and a line for each note."""
    from stripectl.reporters.comparison import MIN_COLUMNS
    from stripectl.reporters.terminal.screen import console
    from stripectl.reporters.terminal.tables import fitted_table
    from stripectl.statistics.verdict import Verdict

    told = (
        found.rows
        if len(found.rows) <= MAX_SCREEN_ROWS
        else [row for row in found.rows if Verdict.UNCHANGED not in row][:MAX_SCREEN_ROWS]
    )
    screen, rows = console(), [dict(zip(found.columns, row, strict=True)) for row in told]
    if rows:
        screen.print(fitted_table(found.columns, rows, screen.width, MIN_COLUMNS, found.columns))
    if left_out := len(found.rows) - len(told):
        screen.print(f"{left_out:,} more rows are not shown (rows with the verdict UNCHANGED are omitted first)")
    for line in found.notes[:MAX_SCREEN_ROWS]:
        screen.print(line, markup=False)
    if left_out := len(found.notes[MAX_SCREEN_ROWS:]):
        screen.print(f"{left_out:,} more notes are not shown")


def write_files(found: "ComparisonTable", measurements: "Sequence[Measurement]", files: FileOptions) -> None:
    """Write the requested files, and the summary of a step of GitHub Actions."""
    from stripectl.reporters import ci
    from stripectl.util.output import write_output

    text = found.markdown()
    if files.junit:
        ci.write_junit(files.junit, "stripectl compare", found.cases, found.properties)
    if files.markdown:
        write_output(files.markdown, text)
    if files.github_benchmark:
        ci.write_github_benchmark(files.github_benchmark, measurements)
    if files.bencher:
        ci.write_bencher(files.bencher, measurements)
    ci.step_summary(text)
