"""The commands as functions that return runs, for notebooks and scripts.

    import stripectl

    run = stripectl.bench(seqlen="256k", target="v5p:2x2x4", pass_="forward")
    run.recommendation.plan
    pandas.DataFrame(run.rows())

Options have the names of the command line's, with underscores: `kv_heads=8`, `pass_="step"`. A text means the same as
on the command line; a list means the same as a comma-separated text or a repeated option. JAX is not imported here:
devices belong to workers.
"""

import contextlib
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeGuard

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
from stripectl.runner.open_run import open_run
from stripectl.runner.options import REPORT, RequestOptions
from stripectl.runner.parse import parse_request, parse_trace
from stripectl.runner.request import Request
from stripectl.runner.tuning import search as tuning
from stripectl.runner.tuning.candidates import TileSearch
from stripectl.runner.tuning.successive_halving import STRATEGIES
from stripectl.util.files import unknown_name
from stripectl.util.json import Json
from stripectl.util.output import write_output
from stripectl.util.progress import Say
from stripectl.util.python_words import python_words
from stripectl.workers.worker_group import interruptible

# Command line options whose values have another name here.
NAMES = {"plan": "plans", "mesh": "meshes", "xla_flag": "xla_flags", "feature_map": "features", "pass_": "passes"}
PHRASES = {"pass": "pass_", **{name: f"{NAMES[name]}=['{{}}']" for name in ("plan", "mesh", "xla_flag")}}
REPEATED = ("plans", "meshes", "xla_flags")
NUMBERS = {each.name for each in fields(RequestOptions) if each.type in (int, int | None)}


def recommended_page(run: Run) -> str:
    """Return the page that a notebook shows."""
    return page.render(recommended(run))


Run.renderer = staticmethod(recommended_page)


@python_words(PHRASES)
def bench(*, output: str | Path | None = None, resume: bool = False, progress: bool = True, **options: Any) -> Run:
    """Time plans side by side: `stripectl bench`.

    With an `output` folder the run is saved there as it grows, and an interrupt leaves the results so far; `resume`
    continues it. Without a folder the run is only in memory.

    Raises:
        BadInput: an option or a value is unknown, or nothing is left to run.
        Missing: the devices, or the compiler, are not available here.
    """
    request = parse_request(request_options(options))
    with (
        run_of_function("stripectl.bench", options, output, request, resume) as kept,
        progress_display(progress) as say,
    ):
        collect(kept, benching.bench(with_previous(request, kept), say, tell=kept.take))
    return recommended(kept.gathered())


@python_words(PHRASES)
def tune_tiles(
    *,
    strategy: str = "race",
    output: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    **options: Any,
) -> Run:
    """Search the kernel's tiles, for the forward and the backward pass: `stripectl tune-tiles`. `output` and `resume`
    are as in `bench`.

    Raises:
        BadInput: an option or a value is unknown, or nothing is left to try.
        Missing: the devices, or the compiler, are not available here.
    """
    if strategy not in STRATEGIES:
        raise BadInput(f"{strategy!r} is not a strategy. Try {' or '.join(STRATEGIES)}.")
    search = TileSearch.of(request_options(options), strategy)
    with (
        run_of_function("stripectl.tune_tiles", options, output, search.request, resume, by="identity") as kept,
        progress_display(progress) as say,
    ):
        collect(kept, tuning.tune(replace(search, request=with_previous(search.request, kept)), say, tell=kept.take))
    return recommended(kept.gathered())


@python_words(PHRASES)
def trace(
    plan: str | Plan, *, steps: int = 3, output: str | Path | None = None, progress: bool = True, **options: Any
) -> Run:
    """Capture an XLA profile of a plan on the local devices, with its overlap: `stripectl trace`. Without an `output`
    folder the profile itself is deleted.

    Raises:
        BadInput: an option or a value is unknown.
        Missing: the devices are not available here.
    """
    request = parse_trace(request_options(options), str(plan))
    with (
        run_of_function("stripectl.trace", {"plan": str(plan), **options}, output, request) as kept,
        progress_display(progress) as say,
    ):
        sampling = replace(request.sampling, profile_folder=kept.folder, profile_steps=steps)
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


def request_options(told: Mapping[str, object]) -> RequestOptions:
    """Options by their Python names.

    Raises:
        BadInput: an option is unknown.
    """
    known = {each.name for each in fields(RequestOptions)} - set(NAMES.values()) | set(NAMES)
    for name in told:
        if name not in known:
            raise unknown_name("option", name, sorted(known))
    plain = {NAMES.get(name, name): value for name, value in told.items() if value is not None}
    return RequestOptions(**{name: _as_typed(name, value) for name, value in plain.items()})


def is_several(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _as_typed(name: str, value: Any) -> Any:
    """A value as it would be typed on the command line: a comma-separated text, or one text per repetition."""
    several = list(map(str, value)) if is_several(value) else None
    if name in REPEATED:
        return (str(value),) if several is None else tuple(several)
    if several is not None:
        return ",".join(several)
    return value if isinstance(value, bool) or name in NUMBERS else str(value)


@contextlib.contextmanager
def run_of_function(
    name: str,
    told: Mapping[str, object],
    output: str | Path | None,
    request: Request,
    resume: bool = False,
    by: str = "key",
) -> Generator[RunWriter, None, None]:
    """The run that a function makes or continues, in its folder or in a temporary folder."""
    if resume and output is None:
        raise BadInput("cannot resume a run without its folder. Try output='FOLDER'.")
    arguments = ", ".join(f"{key}={value!r}" for key, value in told.items() if value is not None)
    with contextlib.ExitStack() as stack:
        folder = Path(output or stack.enter_context(tempfile.TemporaryDirectory(prefix="stripectl-run-")))
        command = f"{name}({arguments})"
        kept = stack.enter_context(open_run(command, environment(), folder, request.asked, resume=resume, by=by))
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
