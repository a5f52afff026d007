"""The command line: a group of commands, one file each, and the only place where an error becomes a line and a code."""

import errno
import importlib
import sys
from typing import Any

import click

from stripectl.cli.standard_streams import guard_streams
from stripectl.errors import BadInput, StripectlError

GONE = 141  # the exit code where the reader of a pipe has gone

COMMANDS = (
    "bench",
    "tune-tiles",
    "trace",
    "topology",
    "report",
    "compare",
    "check",
    "history",
    "accuracy",
    "list",
    "doctor",
)


class Commands(click.Group):
    """Commands by the name of their file, imported on demand, so that `--help` and completion stay quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            from stripectl.util.files import unknown_name

            raise unknown_name("command", cmd_name, COMMANDS)
        return importlib.import_module(f"stripectl.cli.{cmd_name.replace('-', '_')}").command

    def invoke(self, ctx: click.Context) -> Any:
        from stripectl.cli.paths import check_current_folder

        check_current_folder()
        return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, SUMMARIES[name]) for name in COMMANDS])


# Repeated from each command's docstring (a test compares them), so that --help imports no command.
SUMMARIES = {
    "bench": "Time plans side by side, or the runs of a suite: a YAML file of such options.",
    "tune-tiles": "Search the kernel's tiles, for the forward and the backward pass.",
    "trace": "Capture an XLA profile of a plan: overlap by device, hop and mesh axis, and why a hop is exposed.",
    "topology": "Show devices, links and rates, the placement of a mesh, and the smallest block whose hop hides.",
    "report": "Render a run as one HTML file, or several runs side by side.",
    "compare": "Compare two runs: verdicts, and an exit code for CI.",
    "check": "Check the claims of a file against runs: verdicts, and an exit code for CI.",
    "history": "Show a metric over commits, with its change points.",
    "accuracy": "Compare predictions with published measurements: how far off they are.",
    "list": "List all schemes, layouts, kernels, recurrences, hardware, models and targets.",
    "doctor": "Show which components work here, and the command that installs or fixes each of the others.",
}


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: stripectl bench --seqlen 256k",
)
@click.version_option(package_name="stripectl", prog_name="stripectl")
def group() -> None:
    """Which sequence-parallel attention, which tile sizes, which mesh, and why."""


def main(arguments: list[str] | None = None) -> None:
    """The console command. Exit codes: 0 done, 1 a plan failed, 2 bad input or output that cannot be written, 3 a
    component or device is missing, 4 wrong numbers, 130 interrupted, 141 the reader of a pipe has gone."""
    stdout = guard_streams()
    code = run_command(arguments)
    sys.stdout.flush()
    if stdout and stdout.error:
        if stdout.error.errno == errno.EPIPE:
            sys.exit(GONE)
        show_error(f"cannot write to stdout because {stdout.error.strerror}. Try another place for it.")
        sys.exit(code or BadInput.exit_code)
    sys.exit(code)


def run_command(arguments: list[str] | None) -> int:
    """Run a command and return its exit code."""
    try:
        result: Any = group.main(arguments, prog_name="stripectl", standalone_mode=False)
    except click.exceptions.Exit as done:
        result = done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        result = 2
    except click.ClickException as error:
        show_error(error.format_message())
        if isinstance(error, click.UsageError) and error.ctx:
            click.echo(f"Try: {error.ctx.command_path} --help", err=True)
        result = 2
    except StripectlError as error:
        show_error(str(error))
        result = error.exit_code
    except (KeyboardInterrupt, click.exceptions.Abort) as error:
        result = after_interrupt(error)
    except BrokenPipeError:  # of an option's own file
        result = GONE
    return result if isinstance(result, int) else 0


def after_interrupt(error: BaseException) -> int:
    """Print why the command ended, Ctrl-C or the loss of a host, and return the exit code."""
    from stripectl.workers.hosts import raise_host_lost

    if gone := raise_host_lost(error):
        show_error(str(gone))
        return gone.exit_code
    click.echo("interrupted.", err=True)
    return 130


def show_error(message: str) -> None:
    from stripectl.util.files import one_line

    click.echo(f"error: {one_line(message)}", err=True)
