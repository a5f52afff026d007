"""Consoles as wide as their output, and progress on stderr."""

import sys
import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

UNLIMITED_COLUMNS = 4000  # columns of a table that is not for a screen: nothing is cut
PLAIN_EVERY_S, PLAIN_AFTER_S = 10.0, 2.0  # between lines of progress without a bar, and before the first line


def console(*, stderr: bool = False, wide: bool = False) -> Console:
    """A console as wide as its output; piped or `wide` output is never wrapped or cut."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() and not wide else UNLIMITED_COLUMNS
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


def path_text(path: Path, screen: Console) -> Text:
    """A path, which a terminal opens as a link if it can."""
    uri = path.resolve().as_uri()
    return Text(str(path), style=f"link {uri}" if screen.is_terminal else "")


class ProgressDisplay:
    """Progress on stderr: a bar on a terminal, a line from time to time elsewhere, nothing when quiet."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.screen = console(stderr=True)
        self.bar: Progress | None = None
        self.spoken_s = time.monotonic() - PLAIN_EVERY_S + PLAIN_AFTER_S

    def __enter__(self) -> "ProgressDisplay":
        if not self.quiet and self.screen.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
            self.bar = Progress(
                *columns,
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self.screen,
                transient=True,
                refresh_per_second=2,
            )
            self.bar.start()
            self.task = self.bar.add_task("start", total=1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()

    def say(self, now: str, done: int, total: int) -> None:
        """Show the current step, the number of steps done, and of all steps."""
        if self.bar:
            if done == 0:  # another kind of step, which takes another time
                self.bar.reset(self.task)
            self.bar.update(self.task, description=now, completed=done, total=total)
        elif not self.quiet and time.monotonic() - self.spoken_s > PLAIN_EVERY_S:
            self.screen.print(f"{now} ({done} of {total})", markup=False)
            self.spoken_s = time.monotonic()
