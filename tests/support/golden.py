"""Hand-made XLA profiles: drawn in the tests, a character a microsecond, so that what is computed by hand is what runs.

A drawing has a row for each line of a plane: the line's name, two spaces or more, then its events, each a run of one
letter, `.` where there is none. Rows of one name are one line, so that what encloses others has a row of its own. A
legend says what each letter is: a name, or a name and its stats.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax.profiler import ProfileData

from stripectl.profiling.folder import profile_files
from stripectl.profiling.session import Session
from stripectl.results.profile import Profile
from stripectl.results.records import read_record

PROFILES = Path(__file__).parents[1] / "data" / "profiles"
PS_PER_US = 10**6
Legend = Mapping[str, str | tuple[str, Mapping[str, Any]]]

TPU: Legend = {
    **{letter: ("jit_step(1)", {"run_id": run}) for run, letter in enumerate("MN")},
    **dict.fromkeys("aA", "fusion.1"),  # a block of attention
    "k": "collective-permute-start.1",
    "K": "collective-permute-done.1",
    "v": "collective-permute-start.2",
    "V": "collective-permute-done.2",
    "w": "while.1",  # around both permutes and fusion.1
    "r": "all-reduce.1",
    "f": "fusion.2",  # work after the ring
}


def xspace(text: str) -> bytes:
    """A profile from its text."""
    return ProfileData.text_proto_to_serialized_xspace(text) or b""


def plane(name: str, drawing: str, legend: Legend = TPU, *, offset_s: float = 0.0) -> str:
    """A plane of an XSpace as text."""
    lines: dict[str, list[tuple[str, int, int, Mapping[str, Any]]]] = {}
    for row in filter(None, map(str.strip, drawing.splitlines())):
        line, events = row.rsplit("  ", 1)
        lines.setdefault(line.strip(), []).extend(drawn(events, legend))
    names = list(dict.fromkeys(event[0] for events in lines.values() for event in events))
    stats = list(dict.fromkeys(stat for events in lines.values() for event in events for stat in event[3]))

    def shown(event: tuple[str, int, int, Mapping[str, Any]]) -> str:
        own = " ".join(
            f"stats {{ metadata_id: {stats.index(stat) + 1} {'str' if isinstance(value, str) else 'int64'}_value: "
            f"{json.dumps(value)} }}"
            for stat, value in event[3].items()
        )
        start, length = event[1] * PS_PER_US, (event[2] - event[1]) * PS_PER_US
        return f"events {{ metadata_id: {names.index(event[0]) + 1} offset_ps: {start} duration_ps: {length} {own} }}"

    since = f"timestamp_ns: {round(offset_s * 1e9)}"
    text = [f"lines {{ name: {json.dumps(line)} {since} {' '.join(map(shown, lines[line]))} }}" for line in lines]
    for kind, known in (("event", names), ("stat", stats)):
        text += [
            f"{kind}_metadata {{ key: {at} value {{ id: {at} name: {json.dumps(each)} }} }}"
            for at, each in enumerate(known, 1)
        ]
    return f"planes {{ name: {json.dumps(name)}\n" + "\n".join(text) + "\n}\n"


def drawn(events: str, legend: Legend) -> Iterator[tuple[str, int, int, Mapping[str, Any]]]:
    """(name, start, end, stats) of a row's events."""
    at = 0
    for letter, run in itertools.groupby(events):
        start, at = at, at + len(list(run))
        if letter != ".":
            said = legend[letter]
            name, stats = (said, {}) if isinstance(said, str) else said
            yield name, start, at, stats


def tpus(*drawings: str, legend: Legend = TPU, offset_s: float = 0.0) -> str:
    """One process with a TPU for each drawing."""
    return "".join(plane(f"/device:TPU:{at}", each, legend, offset_s=offset_s) for at, each in enumerate(drawings))


def written(folder: Path, *processes: str, program: str | None = None) -> Path:
    """A profile's folder, a file a process; with a program's HLO beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for at, text in enumerate(processes):
        made = ProfileData.text_proto_to_serialized_xspace(text)
        assert made, "the text is no XSpace"
        (folder / f"process{at}.xplane.pb").write_bytes(made)
    if program is not None:
        (folder / "program.hlo.txt").write_text(program)
    return folder


def analysed(
    folder: Path,
    processes: str | Sequence[str],
    program: str | None = None,
    axes: Mapping[str, int] | None = None,
    **told: Any,
) -> Any:
    """What is said of a profile of one or several processes."""
    texts = [processes] if isinstance(processes, str) else processes
    files = map(str, profile_files(written(folder, *texts, program=program)))
    found = Session().analyse([*files], axes or {}, told)
    read_record(Profile, json.loads(json.dumps(found)))
    return found


def us(found: Mapping[str, Any]) -> dict[str, Any]:
    """Of figures, those in seconds, in microseconds."""

    def scaled(value: Any) -> Any:
        return [scaled(each) for each in value] if isinstance(value, list) else value and round(value * 1e6, 6)

    return {
        name.removesuffix("_s"): scaled(value)
        for name, value in found.items()
        if name.endswith("_s") and not name.endswith("_per_s") and value is not None
    }


def column(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """A field of every row, in microseconds where it is in seconds."""
    seconds = name.endswith("_s") and not name.endswith("_per_s")
    return [us(row)[name.removesuffix("_s")] if seconds else row[name] for row in rows]
