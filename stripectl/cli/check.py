"""`stripectl check`: claims about runs, from a file, with verdicts for people and for CI."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stripectl.cli.paths import PATH
from stripectl.runner.options import RUNS
from stripectl.statistics.verdict import ClaimVerdict

if TYPE_CHECKING:
    from stripectl.analysis.claim_verdicts import Judgement
    from stripectl.results.run import Run

STYLES = {ClaimVerdict.FAIL: "red", ClaimVerdict.INCONCLUSIVE: "yellow"}


@click.command("check")
@click.argument("claims", type=PATH)
@click.argument("runs", metavar="[RUN ...]", nargs=-1, type=PATH)
@click.option("--strict", is_flag=True, help="Treat inconclusive claims as failures.")
@click.option("--junit", type=PATH, metavar="FILE", help="Write the verdicts as JUnit XML.")
@click.option(
    "--markdown",
    type=PATH,
    metavar="FILE",
    help="Write the verdicts as Markdown for a pull request.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout, and the table on stderr.")
def command(
    claims: Path, runs: tuple[Path, ...], strict: bool, junit: Path | None, markdown: Path | None, as_json: bool
) -> int:
    """Check the claims of a file against runs: verdicts, and an exit code for CI.

    CLAIMS is a YAML file; RUN is a run.json or the folder of a run, [default: the newest under stripectl-runs]. A claim
    about measured times is inconclusive if their interval contains its bound. Exit code 1: a claim does not hold. In
    GitHub Actions the verdicts are also in the job's summary.

    \b
    Examples:
      stripectl check claims.yaml
      stripectl check claims.yaml run.json --junit claims.xml
      stripectl check examples/claims.yaml examples/runs/cpu.json.gz examples/runs/tpu.json.gz --strict
    """
    from stripectl.analysis.claim_verdicts import judge_claims
    from stripectl.analysis.claims import load_claims
    from stripectl.reporters import claims as verdicts
    from stripectl.reporters.ci import step_summary, write_junit
    from stripectl.results.run import Run, newest_run
    from stripectl.util.output import write_output

    asked = load_claims(claims)
    found = [(str(path), Run.load(path)) for path in runs or (newest_run(RUNS),)]
    judged = judge_claims(asked.claims, found)
    text = verdicts.claims_markdown(asked.about, judged)
    if junit:
        write_junit(
            junit, f"stripectl check {claims}", verdicts.claim_cases(claims.name, judged, strict), claimed_runs(found)
        )
    if markdown:
        write_output(markdown, text)
    if as_json:
        click.echo(json.dumps(verdicts.claims_json(asked.about, judged, strict), indent=1))
    show_verdicts(judged, stderr=as_json)
    step_summary(text)
    return int(any(verdicts.is_failing(each, strict) for each in judged))


def claimed_runs(runs: "Sequence[tuple[str, Run]]") -> Mapping[str, str]:
    """The properties of the runs in JUnit XML."""
    from stripectl.results.environment import VERSION

    said = {f"run {number}": f"{name}: {run.command}, {run.created}" for number, (name, run) in enumerate(runs, 1)}
    return {"stripectl": VERSION} | said


def show_verdicts(judged: "Sequence[Judgement]", *, stderr: bool) -> None:
    """Print the table, and the reason of each claim that does not hold."""
    from rich.text import Text

    from stripectl.reporters import claims as verdicts
    from stripectl.reporters.terminal.screen import console
    from stripectl.reporters.terminal.tables import fitted_table

    screen = console(stderr=stderr)
    rows = [verdicts.claim_row(each) for each in judged]
    wrapping = ("claim", "plan")
    screen.print(
        fitted_table(verdicts.COLUMNS, rows, screen.width, least=4, words=verdicts.TEXT_COLUMNS, wrapping=wrapping)
    )
    for each in judged:
        for line in verdicts.claim_reasons(each):
            screen.print(Text(f"  {each.claim.number} {each.verdict}: {line}", style=STYLES[each.verdict]))
    screen.print(verdicts.verdict_counts(judged), markup=False)
