"""Keeps a run on disk as its measurements come.

The run is written whole after each of them while that is quick. Once it is not, that takes at most a tenth of the time,
and what comes between is appended to the journal. What cannot be written is kept in memory, and written as soon as that
can be again.
"""

import contextlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from stripectl.errors import BadInput
from stripectl.results.backend import DevicesFound, Event, Final, Notice, Partial, SearchResult
from stripectl.results.journal import FILE, MeasurementIndex, append
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run

SAVE_EVERY_S = 1.0  # at most, what is only simulated: clocks make it again sooner than a long run is written
SLOW_S, SHARE = 0.25, 0.1  # writing that takes longer gets this share of the time


@dataclass
class RunWriter:
    """A run and its folder. A measurement replaces the earlier one of the same `by` (`journal.MeasurementIndex`)."""

    run: Run
    folder: Path
    by: str = "key"
    warn: Callable[[str], None] = print
    latest: MeasurementIndex = field(init=False)
    began_s: float = float("-inf")  # writing it whole, and how long that took
    took_s: float = 0.0
    trouble: bool = False

    def __post_init__(self) -> None:
        self.latest = MeasurementIndex(self.by, self.run.measurements)

    def take(self, event: Event) -> None:
        """Keep what an event says of the run."""
        match event:
            case Partial(measurement) | Final(measurement):
                self.add(measurement)
            case DevicesFound(devices):
                known = self.run.environment["devices"]
                known += [each for each in map(dict, devices) if each not in known]  # a run that is resumed has them
            case SearchResult(table):
                self.run.searches = table.replacing(self.run.searches)
            case Notice():
                pass

    def add(self, m: Measurement) -> None:
        """Keep a measurement that is done, or what is known of one that goes on."""
        self.latest.put(m)
        self._write(m)

    def gathered(self) -> Run:
        """The run with all of them."""
        self.run.measurements = list(self.latest)
        return self.run

    def save(self) -> None:
        """Write the run whole.

        Raises:
            BadInput: its folder cannot be written.
        """
        self.began_s = time.monotonic()
        try:
            self.gathered().save(self.folder)
            with contextlib.suppress(OSError):  # its lines change nothing
                (self.folder / FILE).unlink()
        finally:
            self.took_s = time.monotonic() - self.began_s

    def rescue(self) -> BadInput | None:
        """Write the run whole, elsewhere where it cannot be in its folder; then, what is to be said of that."""
        try:
            return self.save()
        except BadInput as error:
            try:
                with contextlib.ExitStack() as undo:
                    folder = Path(tempfile.mkdtemp(prefix="stripectl-run-"))
                    undo.callback(folder.rmdir)
                    self.run.save(folder)
                    undo.pop_all()
            except (BadInput, OSError):
                return BadInput(f"{error} What was found since it last could be is not on disk.")
            self.folder = folder
            return BadInput(f"{error} The run is in {folder} instead: go on with it by --resume --output {folder}")

    def _write(self, m: Measurement) -> None:
        rest_s = max(SAVE_EVERY_S * (m.method == "simulated"), self.took_s / SHARE * (self.took_s > SLOW_S))
        due = time.monotonic() - self.began_s >= rest_s
        try:
            if not due or (self.folder / FILE).exists():  # then its lines must not be older than the whole file
                append(self.folder, self.run.id, self.by, m)
            if due:
                self.save()
        except BadInput as error:
            if not self.trouble:
                self.warn(f"{error} Measuring goes on; what is not on disk is written as soon as it can be.")
            self.trouble = True
        else:
            if self.trouble and due:
                self.warn(f"{self.folder} is written again, with all that was found meanwhile.")
            self.trouble = self.trouble and not due
