"""The latest result of every plan, and the journal that keeps results until a run is written in full again.

A journal is next to its run.json: one line of JSON per measurement, appended. Each line names the run.json that it
continues by a digest of its content, so that lines written for another file, or for an earlier state of this one,
change nothing. A truncated line does not parse and is ignored.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from stripectl.core.method import METHODS
from stripectl.errors import BadInput
from stripectl.results.measurement import Measurement
from stripectl.results.schema import MAX_JOURNAL_BYTES, MAX_MEASUREMENTS, check_size, is_shallow
from stripectl.util.files import printable
from stripectl.util.json import is_mapping
from stripectl.util.output import cannot_write
from stripectl.util.regular_files import open_regular, read_bytes

FILE = "run.json.journal"
TOO_DEEP = "its lists are nested too deeply"
INDEXES = {"key": attrgetter("key"), "identity": attrgetter("identity")}  # what identifies a measurement


class MeasurementIndex:
    """An ordered index of measurements by `by`, one of INDEXES. A new measurement replaces an earlier one with the same
    key, unless the earlier one used a stronger method; by identity, the strongest replaces all earlier measurements."""

    def __init__(self, by: str, measurements: Iterable[Measurement] = ()) -> None:
        self.by, self.places = INDEXES[by], dict[Any, dict[str, Measurement]]()
        for m in measurements:
            self._place(m)[m.method] = m

    def put(self, m: Measurement) -> None:
        place = self._place(m)
        for weaker in METHODS[METHODS.index(m.method) + 1 :]:
            place.pop(weaker, None)
        place[m.method] = m

    def _place(self, m: Measurement) -> dict[str, Measurement]:
        return self.places.setdefault(self.by(m), {})

    def __iter__(self) -> Iterator[Measurement]:
        return (m for place in self.places.values() for m in place.values())


def digest(content: bytes) -> str:
    """The name of a run.json for the journal that continues it."""
    return hashlib.sha256(content).hexdigest()


def append(folder: Path, continued: str, by: str, m: Measurement) -> None:
    """Append a line to the journal of the run.json with the digest `continued`, so that it survives this process, and a
    measured result a loss of power.

    Raises:
        BadInput: it cannot be written.
    """
    line = json.dumps({"continues": continued, "by": by, "measurement": m.to_json()})
    try:
        with open(open_regular(folder / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
            file.write(f"\n{line}\n".encode())  # the previous line may be truncated
            file.flush()
            if m.method != "simulated":
                os.fsync(file.fileno())
    except OSError as error:
        raise cannot_write(folder / FILE, error) from error


def replayed(folder: Path, continued: str, measurements: Iterable[Measurement]) -> list[Measurement]:
    """Read the measurements of the run.json with the digest `continued`, updated from its journal where it has one.

    Raises:
        BadInput: the journal cannot be read, exceeds the limits of a run, or a complete line holds no measurement.
    """
    path = folder / FILE
    try:
        content = read_bytes(path, MAX_JOURNAL_BYTES, follow=False)
    except FileNotFoundError:
        return list(measurements)
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error
    try:
        check_size(content)
        told = [each for each in map(_parsed, content.splitlines()) if each.get("continues") == continued]
        if len(told) > MAX_MEASUREMENTS:
            raise ValueError(f"it has more than {MAX_MEASUREMENTS:,} measurements")
        latest = MeasurementIndex(told[-1]["by"] if told else "key", measurements)
        for each in told:
            latest.put(Measurement.from_json(each["measurement"]))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadInput(f"{path} is not a complete journal: {type(error).__name__}: {error}") from error
    return list(latest)


def _parsed(line: bytes) -> Mapping[str, Any]:
    """The content of a line; empty where it was cut short.

    Raises:
        ValueError: it is nested too deeply.
    """
    try:
        content = json.loads(line)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except ValueError:
        return {}
    if not is_shallow(content):
        raise ValueError(TOO_DEEP)
    return printable(content) if is_mapping(content) else {}
