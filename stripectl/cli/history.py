"""`stripectl history`: a metric over commits, and where it changed."""

import json
from pathlib import Path
from typing import Any

import click

from stripectl.errors import BadInput

METRICS = (
    *("time", "tokens_per_s", "tflops_per_s_per_device", "mfu", "speedup", "overlap", "peak", "sent", "max_rel_error"),
    "tiles",
)


@click.command("history")
@click.argument("folder", metavar="[DIR]", required=False, envvar="STRIPECTL_HISTORY", type=click.Path(path_type=Path))
@click.argument("runs", metavar="[RUN ...]", nargs=-1, type=click.Path(path_type=Path))
@click.option("--add", is_flag=True, help="Add runs from elsewhere; a run that is already there is replaced.")
@click.option("--metric", type=click.Choice(METRICS), default="time", show_default=True, help="The figure to follow.")
@click.option("--plan", metavar="TEXT", help="Only plans that contain this text; a few plans get one row per run.")
@click.option("--target", metavar="TEXT", help="Only targets that contain this text.")
@click.option("--pass", "passes", type=click.Choice(["forward", "forward-backward", "step"]), help="Only this pass.")
@click.option("--method", type=click.Choice(["measured", "compiled", "simulated"]), help="Only this method.")
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the newest N runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the series as JSON.")
def command(folder: Path | None, runs: tuple[Path, ...], add: bool, as_json: bool, **given: Any) -> None:
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
    show_series(history, as_json, **given)


def add_runs(history: Any, paths: tuple[Path, ...]) -> None:
    """Add all runs, or none if one cannot be read."""
    from stripectl.results.run import Run

    if not paths:
        raise BadInput(f"name the runs to add: stripectl history {history.folder} --add RUN ...")
    runs = [Run.load(path) for path in paths]
    history.check_writable()
    for run in runs:
        history.add(run)
    click.echo(f"{len(runs)} added; {history.path} holds {history.count()} runs")


def show_series(history: Any, as_json: bool, metric: str, last: int | None, **given: str | None) -> None:
    """Print the requested series, as tables or JSON."""
    from stripectl.analysis.metrics import METRICS
    from stripectl.analysis.series import series_of
    from stripectl.reporters.terminal.history import history_parts
    from stripectl.reporters.terminal.tables import console

    within = {name: value for name in ("plan", "target") if (value := given[name])}
    equal = {name: value for name, option in (("pass", "passes"), ("method", "method")) if (value := given[option])}
    every = series_of(history.runs(last, equal=equal, within=within), METRICS[metric])
    if not every:
        raise BadInput(f"{history.path} holds {history.count()} runs, but none that matches has the metric {metric}.")
    if as_json:
        click.echo(json.dumps({"metric": metric, "series": [series.to_json() for series in every]}, indent=1))
        return
    screen = console()
    for part in history_parts(every, screen.width, bool(given["plan"])):
        screen.print(part)
