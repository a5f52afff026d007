"""The latest result of every plan, and the journal that keeps results until a run is written in full again.

A journal is next to its run.json: one line of JSON per measurement, appended. A truncated line does not parse and is
ignored; lines whose content the full file already has change nothing.
"""

import json
import os
from collections.abc import Iterable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from stripectl.core.method import METHODS
from stripectl.errors import BadInput
from stripectl.results.measurement import Measurement
from stripectl.util.files import cannot_write
from stripectl.util.json import is_mapping

FILE = "run.json.journal"


# The keys that identify a measurement. A journal next to a run of schema `stripectl.run/1` calls the identity `what`.
INDEXES = {"key": attrgetter("key"), "identity": attrgetter("identity"), "what": attrgetter("identity")}


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

    def __iter__(self):
        return (m for place in self.places.values() for m in place.values())


def append(folder: Path, run: str, by: str, m: Measurement) -> None:
    """Append a line to the journal of a run, so that it survives this process, and a measured result a loss of power.

    Raises:
        BadInput: it cannot be written.
    """
    line = json.dumps({"run": run, "by": by, "measurement": m.to_json()})
    try:
        with (folder / FILE).open("ab") as file:
            file.write(f"\n{line}\n".encode())  # the previous line may be truncated
            file.flush()
            if m.method != "simulated":
                os.fsync(file.fileno())
    except OSError as error:
        raise cannot_write(folder / FILE, error) from error


def replayed(folder: Path, run: str, measurements: Iterable[Measurement]) -> list[Measurement]:
    """The measurements of a run, updated from its journal where it has one.

    Raises:
        BadInput: the journal cannot be read, or a complete line holds no measurement.
    """
    try:
        lines = (folder / FILE).read_bytes().splitlines()
    except FileNotFoundError:
        return list(measurements)
    except OSError as error:
        raise BadInput(f"cannot read {folder / FILE}: {error.strerror}.") from error
    told = [each for each in map(_parsed, lines) if each.get("run") == run]
    try:
        latest = MeasurementIndex(told[-1]["by"] if told else "key", measurements)
        for each in told:
            latest.put(Measurement.from_json(each["measurement"]))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadInput(f"{folder / FILE} is not a complete journal: {type(error).__name__}: {error}") from error
    return list(latest)


def _parsed(line: bytes) -> Mapping[str, Any]:
    try:
        content = json.loads(line)
    except ValueError:
        return {}
    return content if is_mapping(content) else {}
