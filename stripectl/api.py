"""The commands as functions that return runs, for notebooks and scripts.

    import stripectl

    run = stripectl.bench(seqlen="256k", target="v5p:2x2x4", pass_="forward")
    run.recommendation.plan
    pandas.DataFrame(run.rows())

Arguments have the names of the command line's options, with underscores: `kv_heads=8`, `pass_="step"`. Values are
values, `tile=(1024, 512)`, `mesh={"ring": 8}`, `seqlen=[65536, "256k"]`, or texts as on the command line. JAX is not
imported here: devices belong to workers.
"""

import contextlib
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from stripectl.analysis.comparison import Comparison, compare_runs
from stripectl.analysis.recommendation import recommended
from stripectl.core.plan import Plan
from stripectl.errors import BadInput
from stripectl.reporters.html import page
from stripectl.reporters.terminal.screen import ProgressDisplay
from stripectl.results.backend import Event
from stripectl.results.environment import environment
from stripectl.results.run import Run
from stripectl.results.writer import RunWriter
from stripectl.runner import bench as benching
from stripectl.runner.keywords import keywords_of
from stripectl.runner.open_run import open_run
from stripectl.runner.options import REPORT, RequestOptions, StrategyName
from stripectl.runner.parse import parse_request, parse_trace
from stripectl.runner.request import Request
from stripectl.runner.tuning import search as tuning
from stripectl.runner.tuning.candidates import TileSearch
from stripectl.util.json import Json
from stripectl.util.output import write_output
from stripectl.util.progress import Say
from stripectl.workers.worker_group import interruptible


def recommended_page(run: Run) -> str:
    """Return the page that a notebook shows."""
    return page.render(recommended(run))


Run.renderer = staticmethod(recommended_page)


@dataclass(frozen=True, kw_only=True)
class RunOptions(RequestOptions):
    """The arguments of a function that makes a run: the options of the request, the run's folder, and whether progress
    is shown on stderr."""

    output: str | Path | None = None
    progress: bool = True


@dataclass(frozen=True, kw_only=True)
class BenchOptions(RunOptions):
    """The arguments of `bench`; `resume` continues the run in `output`."""

    resume: bool = False


@dataclass(frozen=True, kw_only=True)
class TuneOptions(BenchOptions):
    """The arguments of `tune_tiles`."""

    strategy: StrategyName = "race"


@dataclass(frozen=True, kw_only=True)
class TraceOptions(RunOptions):
    """The arguments of `trace`: the plan, and the number of steps in its profile."""

    plan: str | Plan = field(kw_only=False)
    steps: int = 3


@keywords_of(BenchOptions)
def bench(options: BenchOptions, call: str) -> Run:
    """Time plans side by side: `stripectl bench`.

    With an `output` folder the run is saved there as it grows, and an interrupt leaves the results so far; `resume`
    continues it. Without a folder the run is only in memory.

    Raises:
        BadInput: an argument or a value is unknown, or nothing is left to run.
        Missing: the devices, or the compiler, are not available here.
    """
    request = parse_request(options)
    with run_of_call(call, options, request, options.resume) as kept, progress_display(options.progress) as say:
        collect(kept, benching.bench(with_previous(request, kept), say, tell=kept.take))
    return recommended(kept.gathered())


@keywords_of(TuneOptions)
def tune_tiles(options: TuneOptions, call: str) -> Run:
    """Search the kernel's tiles, for the forward and the backward pass: `stripectl tune-tiles`. `output` and `resume`
    are as in `bench`.

    Raises:
        BadInput: an argument or a value is unknown, or nothing is left to try.
        Missing: the devices, or the compiler, are not available here.
    """
    search = TileSearch.of(options, options.strategy)
    with (
        run_of_call(call, options, search.request, options.resume, by="identity") as kept,
        progress_display(options.progress) as say,
    ):
        collect(kept, tuning.tune(replace(search, request=with_previous(search.request, kept)), say, tell=kept.take))
    return recommended(kept.gathered())


@keywords_of(TraceOptions)
def trace(options: TraceOptions, call: str) -> Run:
    """Capture an XLA profile of a plan on the local devices, with its overlap: `stripectl trace`. Without an `output`
    folder the profile itself is deleted.

    Raises:
        BadInput: an argument or a value is unknown.
        Missing: the devices are not available here.
    """
    request = parse_trace(options)
    with run_of_call(call, options, request) as kept, progress_display(options.progress) as say:
        sampling = replace(request.sampling, profile_folder=kept.folder, profile_steps=options.steps)
        collect(kept, benching.bench(replace(request, sampling=sampling), say, tell=kept.take))
    return recommended(kept.gathered())


def compare(base: str | Path | Run, new: str | Path | Run, max_regression: float = 0.05) -> list[Comparison]:
    """Every measurement of `base`, and whether `new` is faster or slower by more than `max_regression`, a fraction:
    `stripectl compare`.

    Raises:
        BadInput: a run cannot be read, or the runs have no measurement in common.
    """
    return compare_runs(load_run(base), load_run(new), max_regression)


def report(*runs: str | Path | Run, output: str | Path = REPORT) -> Path:
    """Write one run, or several side by side, as an HTML page, and return its path: `stripectl report`.

    Raises:
        BadInput: a run cannot be read, or the page cannot be written.
    """
    if not runs:
        raise BadInput("a report needs a run. Try stripectl.report(run).")
    found, path = [recommended(load_run(run)) for run in runs], Path(output)
    write_output(path, page.render(found[0]) if len(found) == 1 else page.render_several(found))
    return path


def accuracy() -> dict[str, Json]:
    """Predictions and every published measurement that ships, as plain data: `stripectl accuracy --json`."""
    from stripectl.analysis.accuracy import tables  # computes predictions, which only this needs

    return tables.compute_accuracy().to_json()


def load_run(run: str | Path | Run) -> Run:
    """A run itself, or the run in a file or folder."""
    return run if isinstance(run, Run) else Run.load(Path(run)).readable()


@contextlib.contextmanager
def run_of_call(
    call: str, options: RunOptions, request: Request, resume: bool = False, by: str = "key"
) -> Generator[RunWriter, None, None]:
    """The run that a call makes or continues, in its folder or in a temporary folder."""
    if resume and options.output is None:
        raise BadInput("cannot resume a run without its folder. Try output='FOLDER'.")
    with contextlib.ExitStack() as stack:
        folder = options.output or stack.enter_context(tempfile.TemporaryDirectory(prefix="stripectl-run-"))
        kept = stack.enter_context(open_run(call, environment(), Path(folder), request.asked, resume=resume, by=by))
        try:
            yield kept
        finally:
            kept.save()


def with_previous(request: Request, kept: RunWriter) -> Request:
    """The request, with the measurements of the resumed run."""
    return replace(request, previous=tuple(kept.run.measurements))


@contextlib.contextmanager
def progress_display(shown: bool) -> Generator[Say, None, None]:
    """The progress of a command, on stderr."""
    with interruptible(), ProgressDisplay(not shown) as reporter:
        yield reporter.say


def collect(kept: RunWriter, events: Iterator[Event]) -> None:
    for event in events:
        kept.take(event)
