"""What commands that run plans share: what a request measures becomes a run in a folder, and that a table, a report and
an exit code."""

import json
import operator
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from stripectl import BadInput, StripectlError
from stripectl.cli.options import RUNS

SAVE_EVERY_S = 1.0
SHOWN = 10  # plans of a workload on a terminal, where every mesh was tried


def run_bench(given: Mapping[str, Any], requests: Sequence[Any], profile: bool) -> int:
    """Run what is requested, save and show all of it however it ends; the exit code."""
    from stripectl.bench import bench
    from stripectl.console import Reporter, console
    from stripectl.launch import interruptible
    from stripectl.trace import Tracer

    run, folder = open_run(given)
    kept = Kept(run, folder)
    screen = console(stderr=given["as_json"])
    stopped: BaseException | None = None
    try:
        with (
            interruptible(),
            Reporter(given["quiet"]) as reporter,
            Tracer(folder, given.get("steps", Tracer.steps)) as tracer,
        ):
            for request in requests:
                effort = replace(request.effort, tracer=tracer if profile else None)
                asked = replace(request, effort=effort, done=tuple(kept.gathered().measurements))
                for measurement in bench(asked, reporter.say, run.environment["devices"]):
                    kept.add(measurement)
    except (KeyboardInterrupt, StripectlError) as error:
        stopped = error
    if kept.gathered().measurements or stopped is None:
        shown, left_out = fastest(run) if any(each.every_mesh for each in requests) else (run, [])
        finish(run, folder, screen, given, shown, left_out)
    if profile and stopped is None and not any(m.trace for m in run.measurements):
        screen.print("profile none: only plans that run here are profiled. Try --method measured.", markup=False)
    if stopped is not None:
        raise stopped
    return exit_code(run, explicit=bool(given["plans"]))


class Kept:
    """A run that is saved as its measurements come, each in the place of one with the same `key`. What is only
    simulated waits for SAVE_EVERY_S: clocks make it again sooner than a long run is written."""

    def __init__(self, run: Any, folder: Path, key: str = "key") -> None:
        self.run, self.folder, self.saved_s = run, folder, 0.0
        self.key = operator.attrgetter(key)
        self.known = {self.key(m): m for m in run.measurements}

    def add(self, measurement: Any) -> None:
        self.known[self.key(measurement)] = measurement
        if measurement.method != "simulated" or time.monotonic() - self.saved_s > SAVE_EVERY_S:
            self.gathered().save(self.folder)
            self.saved_s = time.monotonic()

    def gathered(self) -> Any:
        """The run with all of them."""
        self.run.measurements = list(self.known.values())
        return self.run


def fastest(run: Any) -> tuple[Any, list[str]]:
    """(the run with the fastest plans of each workload, what their times are compared with, and what has no time; a
    line on what is left out): meshes come by the hundred, and most are slow."""
    from stripectl.measurement import with_speedups
    from stripectl.ranking import rankings

    measurements = with_speedups(run.measurements)
    best = [m for each in rankings(measurements) for m in each.rivals[:SHOWN]]
    over = {(m.workload, m.method, m.speedup["over"]) for m in best if m.speedup}
    chosen = {id(m) for m in best}
    kept = [
        m
        for m in measurements
        if id(m) in chosen or m.status != "ok" or m.devices == 1 or (m.workload, m.method, m.plan) in over
    ]
    more = len(measurements) - len(kept)
    return replace(run, measurements=kept), [f"others  {more:,} plans are in run.json and the report"] * bool(more)


def open_run(given: Mapping[str, Any]) -> tuple[Any, Path]:
    """A new run and the folder for it, or with --resume the run to go on with."""
    from stripectl.environment import environment
    from stripectl.files import ensure_writable
    from stripectl.run import Run, newest_run

    if given["resume"]:
        folder: Path = given["out"] or newest_run(RUNS).parent
        ensure_writable(folder)
        run = Run.load(folder)
        run.measurements = [m for m in run.measurements if m.status != "failed"]  # what failed is tried again
        return run, folder
    now = datetime.now(UTC)
    identity = now.strftime("%Y%m%d-%H%M%S")
    command_line = shlex.join(["stripectl", *sys.argv[1:]])
    run = Run(identity, now.isoformat(timespec="seconds"), command_line, environment([]))
    folder = given["out"] or unused(RUNS / identity)
    if (folder / "run.json").exists():
        raise BadInput(f"{folder} holds a run. Go on with it by --resume, or choose another --out.")
    ensure_writable(folder)
    return run, folder


def finish(
    run: Any, folder: Path, screen: Any, given: Mapping[str, Any], shown: Any, notes: Sequence[str] = ()
) -> None:
    """The table of `shown`, which need not be the whole run, the report, and where they lie; where schemes were
    compared at several lengths, which wins at which; where there were plans to choose from, what is recommended."""
    from stripectl.card import card, has_choice
    from stripectl.console import Reporter, tables
    from stripectl.notes import beside_published, calibrations, exchanges, longest, packing, pass_rules
    from stripectl.recommend import recommend
    from stripectl.report import write_report
    from stripectl.scoreboard import scoreboards

    if not run.environment["devices"]:  # nothing was timed, so nothing was disturbed
        run.environment["warnings"] = []
    found = run.recommendation = recommend(run)
    run.save(folder)
    if given["as_json"]:
        click.echo(json.dumps(run.to_json(), indent=1))
    for part in [
        *tables(shown, screen.width),
        *beside_published(shown.measurements, screen.width),
        *longest(shown.measurements),
        *packing(run.measurements),
        *pass_rules(run.measurements),
        *exchanges(run.measurements),
        *calibrations(shown),
    ]:
        screen.print(part)
    for note in notes:
        screen.print(note, markup=False)
    for part in scoreboards(run.measurements, screen.width):
        screen.print(part)
    show_traces(run, folder, screen)
    for warning in run.environment["warnings"]:
        screen.print(f"warning {warning}", markup=False)
    with Reporter(given["quiet"]) as reporter:
        write_report(run, folder / "report.html", reporter.say)
    if found and has_choice(found):
        screen.print(card(found, screen.width, str(folder / "report.html")))
    screen.print(f"run     {folder / 'run.json'}\nreport  {folder / 'report.html'}", markup=False)


def show_traces(run: Any, folder: Path, screen: Any) -> None:
    """What the run's profiles say, and where they open."""
    from stripectl.console import describe, plan_cell
    from stripectl.measurement import predicted_overlap
    from stripectl.trace import FOLDER
    from stripectl.trace.cells import opening
    from stripectl.trace.screen import screen_parts

    traced = [m for m in run.measurements if m.trace]
    for m in traced:
        title = f"{plan_cell(m)} {m.workload.passes}, {describe(m.workload)} on {m.target}"
        predicted = predicted_overlap(m, run.measurements)
        for part in screen_parts(m.trace, title, screen.width, predicted, m.median_s):
            screen.print(part)
        screen.print()
    if any("profile" in m.trace for m in traced):
        screen.print(f"profile {opening(shlex.quote(str(folder / FOLDER)))}    (or tensorboard)", markup=False)


def unused(folder: Path) -> Path:
    """The folder, or the first of folder-2, folder-3 ... that is not there."""
    candidates = (folder.with_name(f"{folder.name}-{n}") if n > 1 else folder for n in range(1, 10**6))
    return next(candidate for candidate in candidates if not candidate.exists())


def exit_code(run: Any, explicit: bool) -> int:
    """4: wrong numbers; 1: a plan or its profile failed; 2: a plan that was named was refused, or all were; 0: done."""
    from stripectl.sampling import WRONG_NUMBERS
    from stripectl.trace import UNPROFILED

    failed = [m for m in run.measurements if m.status == "failed"]
    if any((m.reason or "").startswith(WRONG_NUMBERS) for m in failed):
        return 4
    unprofiled = (str((m.trace or {}).get("reason")).startswith(UNPROFILED) for m in run.measurements)
    if failed or any(unprofiled):
        return 1
    refused = [m.status == "refused" for m in run.measurements]
    return 2 if all(refused) or (explicit and any(refused)) else 0


def show_dry_run(cases: Sequence[Any], what: str, rest: str) -> int:
    """What would run, on stdout; the exit code."""
    from stripectl.console import describe

    title = ""
    for case in cases:
        if title != (title := describe(case.workload)):
            click.echo(title)
        reason = f"  refused: {case.reason}" if case.reason else ""
        click.echo(f"  {case.workload.passes:17} {case.plan}  {case.target}{reason}")
    refused = sum(case.status == "refused" for case in cases)
    click.echo(f"{len(cases) - refused} {what}, {refused} refused; {rest}.")
    return 2 if refused == len(cases) else 0
