"""The results of one command, and the file that holds them: run.json, schema `stripectl.run/3`. Older files are read.

The file is written whole. Where that is slow, a journal next to it (`writer`) keeps the measurements of a run that is
killed.
"""

import base64
import gzip
import html
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from stripectl.errors import BadInput
from stripectl.results import journal
from stripectl.results.measurement import Measurement, readable
from stripectl.results.measurement_set import MeasurementSet, with_speedups
from stripectl.results.recommendation import Recommendation
from stripectl.results.records import record_json, text
from stripectl.results.schema import MAX_MEASUREMENTS, MAX_RUN_BYTES, check_size, is_shallow, is_small
from stripectl.results.search_table import SearchTable
from stripectl.util.files import printable
from stripectl.util.json import Json, JsonObject, is_list, is_mapping
from stripectl.util.output import write_atomically
from stripectl.util.regular_files import is_regular, read_bytes

SCHEMA, VERSION = "stripectl.run/", 3
FILE = "run.json"
GZIP = b"\x1f\x8b"
CARRIED = re.compile(rb'href="data:application/gzip;base64,([A-Za-z0-9+/=]*)"')  # of a report


@dataclass
class Run:
    """The results of one command, and the machine and settings that they were obtained with."""

    id: str
    created: str
    command: str
    environment: dict[str, Any]
    measurements: list[Measurement] = field(default_factory=list[Measurement])
    recommendation: Recommendation | None = None
    searches: list[SearchTable] = field(default_factory=list[SearchTable])
    asked: list[JsonObject] = field(default_factory=list[JsonObject])
    renderer: ClassVar[Callable[["Run"], str] | None] = None  # of the page that a notebook shows; `api` sets it

    @property
    def results(self) -> MeasurementSet:
        """Measurements with speed-ups, which are computed once."""
        if not isinstance(self.measurements, MeasurementSet):
            self.measurements = with_speedups(self.measurements)
        return self.measurements

    def rows(self) -> list[dict[str, Json]]:
        """A flat mapping per measurement, for pandas and polars: workload, parts of the plan and results, in seconds
        and bytes."""
        return [_row(m) for m in self.results]

    def _repr_html_(self) -> str | None:
        if Run.renderer is None:
            return None
        page = html.escape(Run.renderer(self), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 60rem; border: 0"></iframe>'

    def to_json(self) -> dict[str, Json]:
        return self._json_around([m.to_json() for m in self.results])

    def _json_around(self, measured: Sequence[JsonObject]) -> dict[str, Json]:
        return {
            **{"schema": f"{SCHEMA}{VERSION}", "id": self.id, "created": self.created, "command": self.command},
            "environment": self.environment,
            "measurements": measured,
            "recommendation": self.recommendation and record_json(self.recommendation),
            **({"searches": [each.to_json() for each in self.searches]} if self.searches else {}),
            **({"asked": self.asked} if self.asked else {}),
        }

    def save(self, folder: Path) -> Path:
        """Write the file.

        Raises:
            BadInput: the folder cannot be written.
        """
        write_atomically(folder / FILE, self.to_text())
        return folder / FILE

    def to_text(self) -> str:
        """The content of the file, one line per measurement."""
        content = self._json_around(())
        lines = ",\n".join(json.dumps(m.to_json()) for m in self.results)
        parts = {name: json.dumps(part, indent=None if name == "searches" else 1) for name, part in content.items()}
        parts["measurements"] = f"[\n{lines}\n]"
        text = ",\n".join(f'"{name}": {part}' for name, part in parts.items())
        return f"{{\n{text}\n}}\n"

    def readable(self) -> "Run":
        """Add speed-ups to the run. A measurement whose plan this version of stripectl cannot read has a reason and
        no time."""
        return replace(self, measurements=with_speedups(map(readable, self.measurements)))

    @classmethod
    def from_json(cls, content: Any, where: str) -> "Run":
        """A run from its JSON. Its recommendation is not read: readers derive it from the measurements (`recommend`),
        so that a file cannot recommend a plan that its figures do not support.

        Raises:
            BadInput: not a run, incomplete, or newer than this stripectl.
        """
        schema = content.get("schema") if is_mapping(content) else None
        if not isinstance(schema, str) or not schema.startswith(SCHEMA):
            raise BadInput(f"{where} is not a stripectl run: it has no schema {SCHEMA}{VERSION}.")
        version = schema.removeprefix(SCHEMA)
        if not re.fullmatch(r"\d{1,9}", version) or int(version) > VERSION:
            raise BadInput(
                f"{where} has schema {schema}, newer than this stripectl reads ({SCHEMA}{VERSION}). Upgrade stripectl."
            )
        if not is_mapping(content) or not is_shallow(content):
            raise BadInput(f"{where} is not a stripectl run: its lists are nested too deeply.")
        try:
            content = printable(content)
            if len(content["measurements"]) > MAX_MEASUREMENTS:
                raise ValueError(f"it has more than {MAX_MEASUREMENTS:,} measurements")
            if not is_small(content["environment"]):
                raise ValueError("its environment holds a number that is too large")
            return cls(
                **{name: text(content[name]) for name in ("id", "created", "command")},
                environment={"devices": list[Any](), "warnings": list[Any](), **content["environment"]},
                measurements=[Measurement.from_json(m) for m in content["measurements"]],
                recommendation=None,
                searches=[SearchTable.from_json(each) for each in content.get("searches", ())],
                asked=_asked(content.get("asked", [])),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise BadInput(f"{where} is not a complete stripectl run: {type(error).__name__}: {error}") from error

    @classmethod
    def load(cls, path: Path) -> "Run":
        """A run from its run.json with the journal next to it, from any JSON file that holds a run, compressed or not,
        from a report, or from the folder of a run.

        Raises:
            BadInput: missing, unreadable, truncated, not a run, or newer than this stripectl.
        """
        file = file_of(path)
        beside = file.name == FILE  # in the folder of a run
        try:
            read = read_bytes(file, MAX_RUN_BYTES, follow=not beside)
            content = json.loads(unpacked(read))
        except (ValueError, RecursionError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BadInput(f"{file} is not JSON, or was cut short: {error}") from error
        except OSError as error:
            raise BadInput(f"cannot read {file}: {error.strerror}. Name a run.json or the folder of a run.") from error
        run = cls.from_json(content, str(file))
        if beside:
            run.measurements = journal.replayed(file.parent, journal.digest(read), run.measurements)
        return run


def _asked(content: Any) -> list[JsonObject]:
    """The targets and workloads that a run was asked for, from its JSON.

    Raises:
        TypeError, ValueError: it is not a list of targets and workloads.
    """
    if not is_list(content) or not all(is_mapping(each) and each.keys() == {"target", "workload"} for each in content):
        raise TypeError("what was asked is not a list of targets and workloads")
    if len(content) > MAX_MEASUREMENTS or not is_small(content):
        raise ValueError("what was asked exceeds the limits of a run")
    return content


def _row(m: Measurement) -> dict[str, Json]:
    plan, work, reason = m.plan, m.workload, str(m.reason) if m.reason else None
    return {
        **{name: getattr(work, name) for name in ("model", "seq_len", "query_len", "heads", "kv_heads", "head_dim")},
        **{name: getattr(work, name) for name in ("batch", "dtype", "mask", "passes")},
        **{"plan": str(plan), "scheme": plan.scheme, "layout": plan.layout, "kernel": plan.kernel},
        "mesh": ",".join(f"{axis}={size}" for axis, size in plan.axes.items()),
        "tile": str(plan.tile) if plan.tile else None,
        **{"target": str(m.target), "devices": m.devices, "method": m.method, "status": m.status, "reason": reason},
        "median_s": m.median_s,
        "low_s": m.ci95_s[0] if m.ci95_s else None,
        "high_s": m.ci95_s[1] if m.ci95_s else None,
        "speedup": m.speedup.value if m.speedup else None,
        "bound": m.bound and m.bound.attention_only,
        **{"tokens_per_s": m.tokens_per_s, "mfu": m.mfu, "peak_bytes": m.peak_bytes},
        "overlap": m.overlap and m.overlap.ratio,
    }


def file_of(path: Path) -> Path:
    """The run.json of a folder; a path that is not a folder is the file itself."""
    return path / FILE if os.path.isdir(path) else path


def unpacked(content: bytes) -> str:
    """The text of a file: plain, compressed by gzip, or the run that a report carries.

    Raises:
        ValueError, EOFError, OSError, zlib.error: it is incomplete, or too large.
    """
    if content[:100].lstrip().lower().startswith(b"<!doctype html"):
        found = CARRIED.findall(content)
        if len(found) != 1:
            raise ValueError(f"a page that carries {len(found) or 'no'} run{'s: save one from it' * (len(found) > 1)}")
        content = base64.b64decode(found[0], validate=True)
    if content.startswith(GZIP):
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            content = packed.read(MAX_RUN_BYTES + 1)
    check_size(content)
    return content.decode("utf-8")


def newest_run(folder: Path) -> Path:
    """The run.json under `folder` that was written last.

    Raises:
        BadInput: the folder has no run.
    """
    runs = sorted(filter(is_regular, folder.glob(f"*/{FILE}")), key=lambda path: path.lstat().st_mtime)
    if not runs:
        raise BadInput(f"there is no run in {folder}/. Make one: stripectl bench --seqlen 256k")
    return runs[-1]
