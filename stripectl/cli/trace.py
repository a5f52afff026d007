"""`stripectl trace`: how much communication hides behind compute, from an XLA profile."""

import json
import math
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from stripectl.cli import headings, options, session
from stripectl.cli.command_options import CommandOptions, OutputOptions
from stripectl.cli.multihost import on_every_host
from stripectl.cli.paths import PATH
from stripectl.errors import BadInput

MAX_DEVICES = 2**17  # of the largest target


@dataclass(frozen=True, kw_only=True)
class ReadOptions(CommandOptions):
    """A profile of another program, and how to read it."""

    read: Path | None = None
    mesh: str | None = None
    target: str = "local"
    hardware: str | None = None
    as_json: bool = False
    quiet: bool = False


READING = {each.name for each in fields(ReadOptions)}


@click.command("trace", cls=headings.CommandWithHeadings)
@click.argument("plan", required=False)
@headings.options(options.WORKLOAD, options.TARGET, options.FLAGS, options.HOSTS, options.OUTPUT)
@click.option("--steps", type=click.IntRange(1, 100), default=3, show_default=True, help="Steps in the profile.")
@click.option("--warmup", type=click.IntRange(1), default=1, show_default=True, help="Runs before the profile.")
@click.option("--resume", is_flag=True, help="Add the profile to the run in --output.")
@click.option("--read", type=PATH, metavar="PATH", help="Read this profile, and run nothing.")
@click.option("--mesh", metavar="MESH", help="Mesh of the program in --read, to name its axes: ring=8,tensor=2.")
@on_every_host
def command(plan: str | None, steps: int, **given: Any) -> int:
    """Capture an XLA profile of a plan: overlap by device, hop and mesh axis, and why a hop is exposed.

    Length and heads have the defaults of `bench`; on CPU, 16k tokens and 4 heads. With --read, the command reads a
    profile of any JAX program instead (an xplane.pb file, or the folder given to jax.profiler.trace).

    \b
    Examples:
      stripectl trace ring/striped/xla@ring=2,tile=512 --seqlen 16k --pass forward
      stripectl trace ring/striped/splash@ring=8 --seqlen 256k --model 7b
      stripectl trace --read /tmp/profile --mesh data=4,ring=8 --target v5p:4x4x2
    """
    reading = ReadOptions.of(given)
    if (plan is None) == (reading.read is None):
        raise BadInput("name a plan to run, as in stripectl trace ring/striped/xla@ring=2, or --read with a profile.")
    context = click.get_current_context()
    named = {name for name in context.params if context.get_parameter_source(name) == ParameterSource.COMMANDLINE}
    if reading.read:
        if needless := sorted(named - READING):
            raise BadInput(f"--{needless[0].replace('_', '-')} is for running a plan, but --read runs none.")
        return show_profile(reading.read, reading)
    assert plan
    if reading.mesh:
        raise BadInput("--mesh names the axes of a program in --read. The mesh of a plan is in the plan: @ring=8.")
    from stripectl.runner.options import RequestOptions
    from stripectl.runner.parse import parse_trace

    request = parse_trace(RequestOptions.of({**given, "plan": plan}))
    return session.run_bench(OutputOptions.of(given), [request], explicit=True, profile=True, profile_steps=steps)


def show_profile(path: Path, options: ReadOptions) -> int:
    """Print the overlap in a profile that another program wrote."""
    from stripectl.hardware.target import parse_target
    from stripectl.profiling.diagnosis import ProfiledPlan
    from stripectl.profiling.folder import other_files, profile_files
    from stripectl.profiling.profiler import Tracer
    from stripectl.reporters.terminal.profile import profile_parts
    from stripectl.reporters.terminal.screen import ProgressDisplay, console
    from stripectl.results.records import record_json
    from stripectl.runner.parse import parse_hardware
    from stripectl.workers.worker_group import interruptible

    link = None
    if options.target != "local":
        target = parse_target(options.target, parse_hardware(options.hardware))
        link = target.hardware.figure("link_bytes_per_s_one_way")
    axes = parse_axes(options.mesh) if options.mesh else {}
    files = profile_files(path)
    with interruptible(), ProgressDisplay(options.quiet) as reporter, Tracer(Path()) as tracer:
        reporter.say(f"read {path}", 0, 1)
        found = tracer.read(files, axes, ProfiledPlan(link_bytes_per_s=link))
    if options.as_json:
        click.echo(json.dumps(record_json(found), indent=1))
        return 0
    screen = console()
    for part in profile_parts(found, str(files[0].parent if len(files) > 1 else files[0]), screen.width):
        screen.print(part)
    if count := other_files(path):
        screen.print(f"{path} has {count} more profiles. To read one of them, name its folder.", markup=False)
    return 0


def parse_axes(text: str) -> dict[str, int]:
    """The axes of the user's own mesh, with any names.

    Raises:
        BadInput: not comma-separated name=size.
    """
    parts = [re.fullmatch(r"\s*(\w+)\s*=\s*0*([1-9]\d{0,5})\s*", part) for part in text.split(",")]
    axes = {part[1]: int(part[2]) for part in parts if part}
    if not all(parts) or math.prod(axes.values()) > MAX_DEVICES:
        raise BadInput(f"--mesh {text!r} is not axes of at most {MAX_DEVICES} devices. Write ring=8,tensor=2.")
    return axes
