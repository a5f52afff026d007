"""Keeps a run on disk as its measurements arrive.

The run is written in full after each measurement while this is quick. After that it takes at most a tenth of the time,
and measurements between two full writes are appended to the journal. Results that cannot be written stay in memory, and
are written as soon as possible.
"""

import contextlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from stripectl.errors import BadInput
from stripectl.results import journal
from stripectl.results.backend import DevicesFound, Event, Final, Notice, Partial, SearchResult
from stripectl.results.journal import MeasurementIndex
from stripectl.results.measurement import Measurement
from stripectl.results.run import FILE, Run
from stripectl.util.output import write_atomically

SAVE_EVERY_S = 1.0  # at most, for simulated results: simulating again takes less time than writing a long run
SLOW_S, SHARE = 0.25, 0.1  # slower writing gets this share of the time


@dataclass
class RunWriter:
    """A run and its folder. A measurement replaces an earlier one with the same `by` (`journal.MeasurementIndex`)."""

    run: Run
    folder: Path
    by: str = "key"
    warn: Callable[[str], None] = print
    latest: MeasurementIndex = field(init=False)
    saved: str = ""  # the digest of the file as it was last written
    began_s: float = float("-inf")  # start of the last full write, and its duration
    took_s: float = 0.0
    trouble: bool = False

    def __post_init__(self) -> None:
        self.latest = MeasurementIndex(self.by, self.run.measurements)

    def take(self, event: Event) -> None:
        """Keep an event's result in the run."""
        match event:
            case Partial(measurement) | Final(measurement):
                self.add(measurement)
            case DevicesFound(devices):
                known = self.run.environment["devices"]  # a resumed run has them already
                known += [each for group in devices if (each := group.to_json()) not in known]
            case SearchResult(table):
                self.run.searches = table.replacing(self.run.searches)
            case Notice(text, warns):
                known = self.run.environment["warnings"]
                known += [text] if warns and text not in known else []

    def add(self, m: Measurement) -> None:
        """Keep a finished measurement, or the current state of an unfinished one."""
        self.latest.put(m)
        self._write(m)

    def gathered(self) -> Run:
        """Gather all measurements into a run."""
        self.run.measurements = list(self.latest)
        return self.run

    def save(self) -> None:
        """Write the run in full.

        Raises:
            BadInput: its folder cannot be written.
        """
        self.began_s = time.monotonic()
        try:
            text = self.gathered().to_text()
            write_atomically(self.folder / FILE, text)
            self.saved = journal.digest(text.encode())
            with contextlib.suppress(OSError):  # its lines do not continue this file
                (self.folder / journal.FILE).unlink()
        finally:
            self.took_s = time.monotonic() - self.began_s

    def rescue(self) -> BadInput | None:
        """Write the run in full, elsewhere if its folder cannot be written; return the message about it, if any."""
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
                return BadInput(f"{error} Results since the last successful save are not on disk.")
            self.folder = folder
            return BadInput(f"{error} The run is in {folder} instead. To continue it, use --resume --output {folder}")

    def _write(self, m: Measurement) -> None:
        rest_s = max(SAVE_EVERY_S * (m.method == "simulated"), self.took_s / SHARE * (self.took_s > SLOW_S))
        due = time.monotonic() - self.began_s >= rest_s
        try:
            if due:
                self.save()
            else:
                journal.append(self.folder, self.saved, self.by, m)
        except BadInput as error:
            if not self.trouble:
                self.warn(f"{error} The run continues; its results are written as soon as possible.")
            self.trouble = True
        else:
            if self.trouble and due:
                self.warn(f"{self.folder} can be written again; all results are saved.")
            self.trouble = self.trouble and not due
