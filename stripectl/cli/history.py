"""`stripectl history`: a metric over commits, and where it changed."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stripectl.cli.command_options import CommandOptions
from stripectl.cli.paths import PATH
from stripectl.errors import BadInput

if TYPE_CHECKING:
    from stripectl.results.history import History

METRICS = (
    *("time", "tokens_per_s", "tflops_per_s_per_device", "mfu", "speedup", "overlap", "peak", "sent", "max_rel_error"),
    "tiles",
)


@dataclass(frozen=True, kw_only=True)
class SeriesOptions(CommandOptions):
    """The metric to follow, and the measurements that it is followed over."""

    metric: str
    plan: str | None = None
    target: str | None = None
    passes: str | None = None
    method: str | None = None
    last: int | None = None
    as_json: bool = False


@click.command("history")
@click.argument("folder", metavar="[DIR]", required=False, envvar="STRIPECTL_HISTORY", type=PATH)
@click.argument("runs", metavar="[RUN ...]", nargs=-1, type=PATH)
@click.option("--add", is_flag=True, help="Add runs from elsewhere; a run that is already there is replaced.")
@click.option("--metric", type=click.Choice(METRICS), default="time", show_default=True, help="The figure to follow.")
@click.option("--plan", metavar="TEXT", help="Only plans that contain this text; a few plans get one row per run.")
@click.option("--target", metavar="TEXT", help="Only targets that contain this text.")
@click.option("--pass", "passes", type=click.Choice(["forward", "forward-backward", "step"]), help="Only this pass.")
@click.option("--method", type=click.Choice(["measured", "compiled", "simulated"]), help="Only this method.")
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the newest N runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the series as JSON.")
def command(folder: Path | None, runs: tuple[Path, ...], add: bool, **given: Any) -> None:
    """Show a metric over commits, with its change points.

    DIR is the folder of a history that --history fills, or $STRIPECTL_HISTORY. The runs of a series have the same plan,
    workload, target, flags, method and machine; other differences between two runs are named. A measured metric has a
    change where the change is statistically significant, a compiled or simulated metric wherever its value differs.

    \b
    Examples:
      stripectl bench --seqlen 256k --history history
      stripectl history history
      stripectl history history --plan ring/striped --pass forward
      stripectl history history --metric peak --method compiled
      stripectl history history --add artifacts/*/run.json
    """
    from stripectl.results.history import History

    if folder is None:
        raise BadInput("name the folder of a history, as in stripectl history DIR, or set STRIPECTL_HISTORY.")
    history = History(folder)
    if add:
        return add_runs(history, runs)
    if runs:
        raise BadInput(f"unexpected argument {runs[0]}. To add runs, write stripectl history {folder} --add {runs[0]}")
    show_series(history, SeriesOptions.of(given))


def add_runs(history: "History", paths: tuple[Path, ...]) -> None:
    """Add all runs, or none if one cannot be read."""
    from stripectl.results.run import Run

    if not paths:
        raise BadInput(f"name the runs to add: stripectl history {history.folder} --add RUN ...")
    runs = [Run.load(path) for path in paths]
    history.check_writable()
    for run in runs:
        history.add(run)
    click.echo(f"{len(runs)} added; {history.path} holds {history.count()} runs")


def show_series(history: "History", options: SeriesOptions) -> None:
    """Print the requested series, as tables or JSON."""
    from stripectl.analysis.metrics import METRICS
    from stripectl.analysis.series import series_of
    from stripectl.reporters.terminal.history import history_parts
    from stripectl.reporters.terminal.screen import console

    within = {name: value for name, value in (("plan", options.plan), ("target", options.target)) if value}
    equal = {name: value for name, value in (("pass", options.passes), ("method", options.method)) if value}
    every = series_of(history.runs(options.last, equal=equal, within=within), METRICS[options.metric])
    if not every:
        raise BadInput(
            f"{history.path} holds {history.count()} runs, but none that matches has the metric {options.metric}."
        )
    if options.as_json:
        click.echo(json.dumps({"metric": options.metric, "series": [series.to_json() for series in every]}, indent=1))
        return
    screen = console()
    for part in history_parts(every, screen.width, bool(options.plan)):
        screen.print(part)
