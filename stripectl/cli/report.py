"""`stripectl report`: a run, or several side by side, as a page that can be sent to others."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stripectl.cli.paths import PATH
from stripectl.errors import BadInput
from stripectl.runner.options import RUNS

if TYPE_CHECKING:
    from stripectl.results.run import Run
    from stripectl.util.progress import Say

FORMATS = ("html", "md", "json")


@click.command("report")
@click.argument("runs", metavar="[RUN ...]", nargs=-1, type=PATH)
@click.option("--format", "form", type=click.Choice(FORMATS), default="html", show_default=True, help="Output format.")
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="FILE",
    help="[default: html next to the run; md and json on stdout]",
)
@click.option(
    "--history",
    type=PATH,
    metavar="DIR",
    envvar="STRIPECTL_HISTORY",
    show_envvar=True,
    help="Also draw how the run's times changed over the runs of this history.",
)
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
def command(
    runs: tuple[Path, ...], form: str, output: Path | None, history: Path | None, no_open: bool, quiet: bool
) -> None:
    """Render a run as one HTML file, or several runs side by side.

    RUN is a run.json, a JSON file that contains one, its folder, or a report, which contains its run. The default is
    the newest run under stripectl-runs. The markdown fits in a comment on a pull request.

    \b
    Examples:
      stripectl report
      stripectl report stripectl-runs/20261101-120000
      stripectl report run.json -o ring.html --no-open
      stripectl report main/run.json branch/run.json
      stripectl report run.json --history history
      stripectl report --format md > comment.md
    """
    from stripectl.analysis.recommendation import recommended
    from stripectl.reporters.terminal.screen import ProgressDisplay
    from stripectl.results.run import Run, file_of, newest_run
    from stripectl.util.output import own_descriptor, write_atomically, write_output

    sources = list(map(file_of, runs or (newest_run(RUNS),)))
    found = [recommended(Run.load(path)) for path in sources]
    path = output or page_path(sources)
    to_stdout = form != "html" and output is None
    if not to_stdout and os.path.realpath(path) in map(os.path.realpath, sources):
        raise BadInput(f"the report would replace the run {path}. Name another file with -o.")
    past = history_of(found, form, history)
    with ProgressDisplay(quiet) as reporter:
        text = report_text(found, form, reporter.say, past)
    if to_stdout:
        click.echo(text, nl=False)
        return
    write = write_output if output else write_atomically  # in the folder of the run
    write(path, text)
    if own_descriptor(path) is None:
        click.echo(click.format_filename(path))
    if form == "html" and not no_open and path.is_file():
        show_in_browser(path)


def page_path(sources: "Sequence[Path]") -> Path:
    """The path of the page: next to the last run, and named like it if that is not run.json."""
    last = sources[-1]
    if len(sources) > 1:
        return last.with_name("side-by-side.html")
    return last.with_name("report.html" if last.name == "run.json" else f"{last.name.partition('.')[0]}.html")


def history_of(runs: "Sequence[Run]", form: str, folder: Path | None) -> "list[Run] | None":
    """The runs of a history up to this run; None where no history is drawn."""
    from click.core import ParameterSource

    from stripectl.results.history import History

    if folder is None:
        return None
    asked = click.get_current_context().get_parameter_source("history") == ParameterSource.COMMANDLINE
    if form == "html" and len(runs) == 1:
        if asked:
            History(folder).check_there()
        return History(folder).before(runs[0])
    if asked:
        raise BadInput("--history is for the HTML page of one run. Omit it for several runs, and for md and json.")
    return None


def report_text(runs: "Sequence[Run]", form: str, say: "Say", past: "Sequence[Run] | None") -> str:
    """The report as text."""
    if form == "html":
        from stripectl.reporters.html import page

        return page.render(runs[0], say, past) if len(runs) == 1 else page.render_several(runs, say)
    if form == "md":
        from stripectl.reporters.markdown_report import page_markdown

        return page_markdown(runs)
    read = [run.to_json() for run in runs]
    return json.dumps(read[0] if len(read) == 1 else {"runs": read}, indent=1) + "\n"


def show_in_browser(page: Path) -> None:
    """Open a page in a browser, if a terminal on a desktop shows the output."""
    import webbrowser

    has_desktop = not sys.platform.startswith("linux") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if sys.stdout.isatty() and has_desktop:
        webbrowser.open(page.resolve().as_uri())
