"""`stripectl report`: a run as a page that can be sent to somebody."""

import os
import sys
from pathlib import Path

import click

from stripectl import BadInput
from stripectl.cli.options import RUNS


@click.command("report")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="[default: report.html beside the run]"
)
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
def command(run: Path | None, output: Path | None, no_open: bool) -> None:
    """Render a run as one HTML file.

    RUN is a run.json, a JSON file that holds one, or its folder; without it, the newest run under stripectl-runs.

    \b
    Examples:
      stripectl report
      stripectl report stripectl-runs/20261101-120000
      stripectl report run.json -o ring.html --no-open
    """
    from stripectl.report import write_report
    from stripectl.run import Run, newest_run

    source = run or newest_run(RUNS)
    source = source / "run.json" if source.is_dir() else source
    path = output or source.with_name("report.html")
    found = Run.load(source)
    if path.resolve() == source.resolve():
        raise BadInput(f"the report would replace the run {source}. Name another file with -o.")
    write_report(found, path)
    click.echo(path)
    if not no_open and sys.stdout.isatty() and on_a_desktop():
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


def on_a_desktop() -> bool:
    return not sys.platform.startswith("linux") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
