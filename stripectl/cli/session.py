"""Shared by commands that run plans: the measurements become a run in a folder, and the run a table, a report and an
exit code."""

import contextlib
import json
import shlex
import sys
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stripectl.cli.command_options import OutputOptions
from stripectl.cli.multihost import cluster_here
from stripectl.core.reason import ReasonKind
from stripectl.errors import BadInput, StripectlError
from stripectl.runner.options import REPORT

if TYPE_CHECKING:
    from rich.console import Console

    from stripectl.results.case import Case
    from stripectl.results.run import Run
    from stripectl.results.writer import RunWriter
    from stripectl.runner.request import Request

SHOWN, MANY = 10, 1000  # plans per workload on a terminal where every mesh was tried, or where there are many plans


def run_bench(
    output: OutputOptions,
    requests: "Sequence[Request]",
    *,
    explicit: bool,
    profile: bool,
    profile_steps: int | None = None,
) -> int:
    """Run the requests, save and show all results however the run ends, and return the exit code."""
    from stripectl.profiling.profiler import Tracer
    from stripectl.reporters.terminal.screen import ProgressDisplay, console
    from stripectl.runner.bench import bench
    from stripectl.workers.hosts import raise_host_lost
    from stripectl.workers.worker_group import interruptible

    with run_of_command(output, requests) as kept:
        run, screen = kept.run, console(stderr=output.as_json, wide=output.wide)
        stopped: BaseException | None = None
        try:
            with interruptible(), ProgressDisplay(output.quiet) as reporter:
                steps = profile_steps or Tracer.steps
                for request in requests:
                    effort = replace(
                        request.sampling, profile_folder=kept.folder if profile else None, profile_steps=steps
                    )
                    asked = replace(request, sampling=effort, previous=tuple(kept.gathered().measurements))
                    for event in bench(asked, reporter.say, cluster_here(), kept.take):
                        kept.take(event)
        except (KeyboardInterrupt, StripectlError) as error:
            stopped = raise_host_lost(error) or error
        if kept.gathered().measurements or stopped is None:
            many = len(run.measurements) > MANY or any(each.is_search for each in requests)
            shown, left_out = largest_shown(run) if many else (run, [])
            finish(kept, screen, output, shown, left_out)
        if profile and stopped is None and not any(m.profile for m in run.measurements):
            screen.print("profile none: only plans that run here can be profiled. Try --method measured.", markup=False)
        if stopped is not None:
            raise stopped
        return exit_code(run, explicit)


def note_replaced_parts(names: Iterable[str | None]) -> None:
    """Print a line on stderr for each model with parts that stripectl does not compute."""
    from stripectl.core.replacement import replacements_text
    from stripectl.models.model_files import load_model
    from stripectl.util.files import one_line

    for name in dict.fromkeys(filter(None, names)):
        with contextlib.suppress(BadInput):  # of an older run, whose file no longer exists
            if replaced := replacements_text(load_model(name).replaced):
                click.echo(
                    one_line(f"note: parts of {name} that are not computed (and their replacement): {replaced}"),
                    err=True,
                )


def largest_shown(run: "Run") -> tuple["Run", list[str]]:
    """(the run with the fastest plans of each workload, the baselines of their speed-ups, and plans without a time; a
    line on the other plans): there may be hundreds of meshes, and most are slow."""
    from stripectl.analysis.ranking import fastest_measurements

    measurements = run.results
    chosen = {m.key for m in fastest_measurements(measurements, SHOWN)}
    kept = [m for m in measurements if m.key in chosen or m.status != "ok"]
    more = len(measurements) - len(kept)
    return replace(run, measurements=kept), [f"others  {more:,} plans are in run.json and the report"] * bool(more)


@contextlib.contextmanager
def run_of_command(
    output: OutputOptions, requests: "Sequence[Request]", by: str = "key"
) -> Generator["RunWriter", None, None]:
    """Build the run of this command: a new run, or with --resume the run to continue."""
    from stripectl.results.environment import environment
    from stripectl.results.history import History
    from stripectl.runner.open_run import open_run

    if output.history:
        History(output.history).check_writable()
    around = environment()
    if cluster := cluster_here():
        around["hosts"] = [each.place for each in cluster.facts]
    command, asked = shlex.join(["stripectl", *sys.argv[1:]]), [each for request in requests for each in request.asked]
    with open_run(command, around, output.output, asked, resume=output.resume, by=by, warn=show_warning) as kept:
        yield kept


def show_warning(text: str) -> None:
    click.echo(f"warning: {text}", err=True)


def finish(
    kept: "RunWriter", screen: "Console", output: OutputOptions, shown: "Run", notes: Sequence[str] = ()
) -> None:
    """Print the recommendation; the table of `shown`, a part of the run; the winner at each length, where schemes were
    compared at several; and write the report and say where the files are.

    Raises:
        BadInput: the run or its report could not be written to its place; everything else was done.
    """
    from stripectl.analysis.recommendation import recommended
    from stripectl.reporters.facts import warnings_of
    from stripectl.reporters.terminal.recommendation import recommendation_panel
    from stripectl.workers.hosts import host_differences

    run, page = kept.run, kept.folder / REPORT
    cluster = cluster_here()
    if cluster and run.environment["devices"]:  # something was timed, so differences of hosts matter
        run.environment["warnings"] += host_differences(cluster.facts)
    run = recommended(run)
    found = kept.run.recommendation = run.recommendation
    if found and cluster:
        cluster.recommended = str(found.plan)
    unsaved = [error] if (error := kept.rescue()) else []
    if output.as_json:
        click.echo(json.dumps(run.to_json(), indent=1))
    if found:
        screen.print(recommendation_panel(found, screen.width, str(page)))
        screen.print()
    every = output.all_plans or not screen.is_terminal
    show_run(run, screen, run if output.all_plans else shown, () if output.all_plans else notes, every)
    show_traces(run, kept.folder, screen)
    for warning in warnings_of(run):
        screen.print(f"warning {warning}", markup=False)
    unsaved += write_outputs(run, kept.folder, output, screen)
    for error in unsaved:
        raise error


def write_outputs(run: "Run", folder: Path, output: OutputOptions, screen: "Console") -> list[BadInput]:
    """Write the report, add the run to its history, and print where the files are. Returns the errors of files that
    could not be written."""
    from stripectl.reporters.html.page import write_report
    from stripectl.reporters.terminal.screen import ProgressDisplay, path_text
    from stripectl.results.history import History
    from stripectl.results.run import FILE

    page, history, unsaved = folder / REPORT, History(output.history) if output.history else None, list[BadInput]()
    past = None
    try:
        past = history.before(run) if history else None
        if history:
            history.add(run)
    except BadInput as error:
        unsaved.append(error)
    try:
        with ProgressDisplay(output.quiet) as reporter:
            write_report(run, page, reporter.say, past)
    except BadInput as error:
        unsaved.append(error)
    kept_at = [("run", folder / FILE), ("report", page), *([("history", history.path)] if history else [])]
    for name, path in kept_at:
        screen.print(f"{name:8}", path_text(path, screen) if path.exists() else "not written", sep="", markup=False)
    return unsaved


def show_run(run: "Run", screen: "Console", shown: "Run", notes: Sequence[str], every: bool) -> None:
    """Print the table of `shown`, and the conclusions from the whole run."""
    from stripectl.reporters.terminal.by_length import by_length_tables
    from stripectl.reporters.terminal.footnotes import beside_published, note_texts
    from stripectl.reporters.terminal.tables import run_tables

    for part in [
        *run_tables(shown, screen.width, every),
        *beside_published(shown.measurements, screen.width),
        *note_texts(run, shown),
    ]:
        screen.print(part)
    for note in notes:
        screen.print(note, markup=False)
    for part in by_length_tables(run.measurements, screen.width):
        screen.print(part)


def show_traces(run: "Run", folder: Path, screen: "Console") -> None:
    """Print the overlap in the run's profiles, and how to open them."""
    from stripectl.profiling.profiler import FOLDER
    from stripectl.reporters.profile_text import opening
    from stripectl.reporters.terminal.profile import profile_parts
    from stripectl.results.labels import plan_label, workload_label

    traced = [(m, m.profile) for m in run.measurements if m.profile]
    for m, profile in traced:
        title = f"{plan_label(m)} {m.workload.passes}, {workload_label(m.workload)} on {m.target}"
        predicted = run.results.predicted_overlap(m)
        for part in profile_parts(profile, title, screen.width, predicted, m.median_s):
            screen.print(part)
        screen.print()
    if any(profile.profile for _, profile in traced):
        screen.print(f"profile {opening(shlex.quote(str(folder / FOLDER)))}    (or tensorboard)", markup=False)


def exit_code(run: "Run", explicit: bool) -> int:
    """4: wrong numbers; 1: a plan or its profile failed; 2: a named plan was refused, or all plans were; 0: done."""
    failed = [m for m in run.measurements if m.status == "failed"]
    if any(m.reason and m.reason.kind == ReasonKind.WRONG_NUMBERS for m in failed):
        return 4
    profiles = [m.profile.reason for m in run.measurements if m.profile and m.profile.reason]
    if failed or any(why.kind == ReasonKind.NO_PROFILE for why in profiles):
        return 1
    refused = [m.status == "refused" for m in run.measurements]
    return 2 if all(refused) or (explicit and any(refused)) else 0


def show_dry_run(cases: Sequence["Case"], what: str, rest: str) -> int:
    """Print the plans that would run, on stdout, and return the exit code."""
    from stripectl.results.labels import workload_label

    title = ""
    for case in cases:
        if title != (title := workload_label(case.workload)):
            click.echo(title)
        reason = f"  refused: {case.reason}" if case.reason else ""
        click.echo(f"  {case.workload.passes:17} {case.plan}  {case.target}{reason}")
    refused = sum(case.status == "refused" for case in cases)
    click.echo(f"{len(cases) - refused} {what}, {refused} refused; {rest}.")
    return 2 if refused == len(cases) else 0
