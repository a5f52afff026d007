"""`stripectl tune-tiles`: search the kernel's tiles, for the forward and the backward pass."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import click

from stripectl.cli import headings, options, session
from stripectl.cli.command_options import OutputOptions
from stripectl.cli.multihost import cluster_here, on_every_host
from stripectl.errors import BadInput, StripectlError
from stripectl.runner.options import RUNS, RequestOptions, StrategyName

if TYPE_CHECKING:
    from stripectl.results.measurement import Measurement
    from stripectl.results.run import Run
    from stripectl.runner.request import Request
    from stripectl.runner.tuning.candidates import TileSearch

BACKWARD_TILES = "backward tiles with the first forward tile"
MAX_SHOWN = 10  # candidates per workload on a terminal


@click.command("tune-tiles", cls=headings.CommandWithHeadings)
@headings.options(options.WORKLOAD, options.PLAN, options.TARGET, options.EFFORT, options.HOSTS, options.OUTPUT)
@click.option(
    "--strategy",
    type=click.Choice(get_args(StrategyName)),
    default="race",
    show_default=True,
    help="race: time all tiles in short runs, then the best in full runs; exhaustive: time every tile equally often.",
)
@click.option(
    "--refine",
    type=click.IntRange(1),
    help="Tiles that a race compiles for a target, and meshes of --mesh auto. [default: 8 tiles, 4 meshes]",
)
@click.option("--resume", is_flag=True, help="Continue the run in --output, without repeating its timings.")
@click.option("--dry-run", is_flag=True, help="Show candidates and refusals, and run nothing.")
@on_every_host
def command(strategy: str, dry_run: bool, **given: Any) -> int:
    """Search the kernel's tiles, for the forward and the backward pass.

    Candidates come from the kernel and the block, or from --tile. Where the devices of a plan are here, the plan runs;
    where a device of their kind is here, tiles are timed and plans simulated; for any other target a few plans are
    compiled. The default is the workload of the newest run. Results are cached: the same search again takes seconds.

    \b
    Examples:
      stripectl tune-tiles --seqlen 256k
      stripectl tune-tiles --target v5p:2x2x4 --seqlen 1M --refine 12
      stripectl tune-tiles --target cpu:2 --seqlen 8k --heads 4 --head-dim 64 --strategy exhaustive
      stripectl tune-tiles --tile 256,512,1024,512x1024 --layout striped --pass forward
      stripectl tune-tiles --resume
    """
    from stripectl.reporters.terminal.screen import ProgressDisplay
    from stripectl.runner.tuning.search import dry_run_tuning

    output = OutputOptions.of(given)
    tuning = parse_tuning(RequestOptions.of(given), strategy, output)
    session.note_replaced_parts(workload.model for workload in tuning.request.workloads)
    if dry_run:
        with ProgressDisplay(output.quiet) as reporter:
            return session.show_dry_run(
                dry_run_tuning(tuning, reporter.say, cluster_here()), "candidates", BACKWARD_TILES
            )
    return search_and_show(output, tuning)


def parse_tuning(asked: RequestOptions, strategy: str, output: OutputOptions) -> "TileSearch":
    """The requested search; by default with the workload of the run that it resumes, or of the newest run, if any."""
    from stripectl.runner.tuning.candidates import TileSearch

    tuning = TileSearch.of(asked, strategy)
    if asked.has_workload:
        return tuning
    defaults = with_resumed_workload(tuning.request, output) if output.resume else with_newest_workload(tuning.request)
    return replace(tuning, request=defaults)


def with_resumed_workload(request: "Request", output: OutputOptions) -> "Request":
    """The request for the workloads that the run to resume was asked for."""
    from stripectl.results.run import Run
    from stripectl.runner.open_run import resumed_folder

    known = [each["workload"] for each in Run.load(resumed_folder(output.output)).asked]
    return request.with_asked(known) if known else with_newest_workload(request)


def with_newest_workload(request: "Request") -> "Request":
    """The request for the workload of the newest run's first measurement, in all passes of this run."""
    from stripectl.core.model import STEP_FIELDS
    from stripectl.results.run import Run, newest_run

    try:
        measurements = Run.load(newest_run(RUNS)).measurements
    except BadInput:
        return request
    if not measurements:
        return request
    first = measurements[0]
    known = dict.fromkeys(m.workload for m in measurements)
    passes = [w for w in known if w.without("passes", *STEP_FIELDS) == first.workload.without("passes", *STEP_FIELDS)]
    usual = first.target.tables_of == "cpu" and first.workload.dtype == "float32"  # the default dtype there
    workloads = [replace(w, dtype="bfloat16") if usual else w for w in passes]
    return replace(request, workloads=workloads, default_dtype=usual)


def search_and_show(output: OutputOptions, tuning: "TileSearch") -> int:
    """Search, save and show all results however the search ends, and return the exit code."""
    from stripectl.reporters.terminal.screen import ProgressDisplay, console
    from stripectl.results.backend import Notice
    from stripectl.runner.tuning.search import tune
    from stripectl.workers.hosts import raise_host_lost
    from stripectl.workers.worker_group import interruptible

    screen, notes = console(stderr=output.as_json, wide=output.wide), list[str]()
    last = "identity"  # of each candidate, the last result by any method
    with session.run_of_command(output, [tuning.request], by=last) as kept:
        run = kept.run
        tuning = replace(tuning, request=replace(tuning.request, previous=tuple(run.measurements)))
        stopped: BaseException | None = None
        try:
            with interruptible(), ProgressDisplay(output.quiet) as reporter:
                for event in tune(tuning, reporter.say, cluster_here(), kept.take):
                    kept.take(event)
                    notes += [event.text] if isinstance(event, Notice) else []
        except (KeyboardInterrupt, StripectlError) as error:
            stopped = raise_host_lost(error) or error
        if kept.gathered().measurements or stopped is None:
            shown, left_out = best_candidates(run)
            session.finish(kept, screen, output, shown, [*left_out, *notes])
        if stopped is not None:
            raise stopped
        return session.exit_code(run, explicit=False)


def best_candidates(run: "Run") -> tuple["Run", list[str]]:
    """(the run with the best candidates that are known for each workload; lines on the other candidates)."""
    from stripectl.analysis.ranking import rankings
    from stripectl.results.labels import workload_label
    from stripectl.results.measurement import Measurement

    ranked, kept, lines = rankings(run.measurements), list[Measurement](), list[str]()
    for work in dict.fromkeys(m.workload for m in run.measurements):
        every = [m for m in run.measurements if m.workload == work]
        timed = [m for m in every if m.status == "ok"]
        known = [m for each in ranked if each.workload == work for m in each.rivals]
        best = fastest_and_baseline(known or sorted(timed, key=lambda m: m.median_s or math.inf))
        kept += [*best, *(m for m in every if m.status != "ok")]
        if more := len(timed) - len(best):
            lines.append(f"{work.passes}, {workload_label(work)}: {more} more in run.json")
    return replace(run, measurements=kept), lines


def fastest_and_baseline(ranked: "Sequence[Measurement]") -> "list[Measurement]":
    """The fastest candidates, and before them the baseline of speed-ups: the fastest contiguous plan."""
    base = [m for m in ranked if m.plan.layout == "contiguous"][:1]
    return base + [m for m in ranked[:MAX_SHOWN] if m not in base]
