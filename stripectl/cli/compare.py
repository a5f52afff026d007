"""`stripectl compare`: two runs, for a person and for CI."""

from pathlib import Path

import click

from stripectl import BadInput


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
@click.argument("base", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--fail-on", default="5%", show_default=True, help="Slower by more than this, surely, is a failure.")
def command(base: Path, new: Path, fail_on: str) -> int:
    """Compare two runs: verdicts, and an exit code for CI.

    BASE and NEW are run.json files or the folders of runs. Exit code 1: something is surely slower, broke, or is
    missing from NEW.

    \b
    Examples:
      stripectl compare stripectl-runs/20261101-120000 stripectl-runs/20261102-120000
      stripectl compare main.json branch.json --fail-on 2%
    """
    from rich.table import Table

    from stripectl.compare import compare
    from stripectl.console import change, console
    from stripectl.run import Run
    from stripectl.units import duration

    found = compare(Run.load(base), Run.load(new), parse_percent(fail_on))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("plan", "pass", "method", "base", "new", "change", "verdict"):
        table.add_column(name, no_wrap=True)
    for each in found:
        m = each.new
        new_time = None if each.verdict == "MISSING" else m.median_s
        times = duration(each.base.median_s), duration(new_time)
        table.add_row(m.plan, m.workload.passes, m.method, *times, change(each), each.verdict)
    console().print(table)
    return int(any(each.verdict in ("SLOWER", "BROKEN", "MISSING") for each in found))
