"""A run in its own folder: a new run, or one to continue, protected from other writers."""

import contextlib
import itertools
import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stripectl.core.plan import UnreadablePlan
from stripectl.core.reason import ReasonKind
from stripectl.errors import BadInput, Missing
from stripectl.measure.sampler import UNFINISHED
from stripectl.results.lock import writing_in
from stripectl.results.measurement import Measurement
from stripectl.results.run import FILE, Run, newest_run
from stripectl.results.writer import RunWriter
from stripectl.runner.options import REPORT, RUNS
from stripectl.util.json import JsonObject
from stripectl.util.output import remove_leftovers


@contextlib.contextmanager
def open_run(
    command: str,
    environment: dict[str, Any],
    output: Path | None,
    asked: Sequence[JsonObject],
    *,
    resume: bool = False,
    by: str = "key",
    warn: Callable[[str], None] = print,
) -> Generator[RunWriter, None, None]:
    """A new run of a command in `output`, or in a folder of `RUNS` named by the time; with `resume` the run in that
    folder, or the newest run, if it was asked for what is `asked` now: targets and workloads. It is on disk before
    anything is done for it, so that it can be resumed whenever it is killed; a new run that cannot do anything is
    removed again. `warn` is called when the folder cannot be written.

    Raises:
        BadInput: the folder holds a run and `resume` is false, another process writes there, it cannot be written, or
            the run in it cannot be read or was asked for something else.
    """
    with contextlib.ExitStack() as stack:
        if resume:
            folder = resumed_folder(output)
            stack.enter_context(writing_in(folder))
            run = _resumed(Run.load(folder), folder, asked)
        else:
            now = datetime.now(UTC)
            identity = now.strftime("%Y%m%d-%H%M%S")
            folder = _new_folder(output, stack) if output else _reserved(RUNS / identity, stack)
            run = Run(identity, now.isoformat(timespec="milliseconds"), command, environment, asked=[*asked])
        remove_leftovers(folder, FILE, REPORT)
        kept = RunWriter(run, folder, by, warn=warn)
        kept.save()
        try:
            yield kept
        except (BadInput, Missing):
            if not resume and not kept.gathered().measurements:
                with contextlib.suppress(OSError):
                    (folder / FILE).unlink()
            raise


def resumed_folder(output: Path | None) -> Path:
    """The folder of the run that `--resume` continues.

    Raises:
        BadInput: there is no run.
    """
    return output or newest_run(RUNS).parent


def _resumed(run: Run, folder: Path, asked: Sequence[JsonObject]) -> Run:
    """The run without plans to try again: they failed before they were sampled, or a lost host left them out."""
    # This machine, which `trace` adds profiles of, may have been named by its target before.
    known = [{**each, **own} for each in run.asked for own in ({}, {"target": "local"})]
    other = next((each for each in asked if known and each not in known), None)
    if other:
        what = "workload" if other["target"] in [each["target"] for each in run.asked] else "target"
        raise BadInput(
            f"cannot resume {folder} because it was made for another {what}, by: {run.command}. Try this command with "
            "--resume, or another --output without it."
        )
    for m in run.measurements:
        if isinstance(m.plan, UnreadablePlan):
            raise BadInput(f"cannot resume {folder} because this stripectl cannot read a plan in it: {m.plan.reason}")
    run.measurements = [resume_from_samples(m) for m in run.measurements if m.samples_s or not is_tried_again(m)]
    return run


def is_tried_again(m: Measurement) -> bool:
    """Whether a resumed run tries a plan without a time again: it failed, or it was refused for a cause that may be
    gone, or is not known, as in runs whose reasons have no kinds."""
    passing = m.reason is None or m.reason.kind in (ReasonKind.HOST_LOST, ReasonKind.UNKNOWN)
    return m.status == "failed" or (m.status == "refused" and passing)


def resume_from_samples(m: Measurement) -> Measurement:
    """Resume a measurement; one that failed after it was sampled continues from its samples."""
    return m if m.status == "ok" or not m.samples_s else replace(m, status="ok", reason=UNFINISHED)


def _new_folder(folder: Path, stack: contextlib.ExitStack) -> Path:
    """The folder that is named for a new run, locked.

    Raises:
        BadInput: it holds a run, or another process writes there.
    """
    stack.enter_context(writing_in(folder))
    if os.path.lexists(folder / FILE):
        raise BadInput(f"{folder} holds a run. Try --resume to continue it, or another --output.")
    return folder


def _reserved(folder: Path, stack: contextlib.ExitStack) -> Path:
    """The folder, or the first of folder-2, folder-3 ... that does not exist; created and locked."""
    for candidate in (folder.with_name(f"{folder.name}-{n}") if n > 1 else folder for n in itertools.count(1)):
        with contextlib.suppress(FileExistsError):
            stack.enter_context(writing_in(candidate, new=True))
            return candidate
    raise AssertionError("the numbers of folders do not end")
