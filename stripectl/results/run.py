"""Everything one command found, and the file it is kept in: run.json, schema `stripectl.run/2`; `/1` is read too.

The file is written whole, beside it a journal where that is slow (`writer`), so a killed run keeps what it measured.
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
from stripectl.results.measurement import Measurement, readable, with_speedups
from stripectl.results.recommendation import Recommendation
from stripectl.results.records import record_json
from stripectl.results.schema import MAX_MEASUREMENTS, is_shallow, is_small
from stripectl.results.search_table import SearchTable
from stripectl.util.files import printable, read_bytes, write_atomically
from stripectl.util.json import Json, JsonObject

SCHEMA, VERSION = "stripectl.run/", 2
FILE = "run.json"
GZIP = b"\x1f\x8b"
CARRIED = re.compile(rb'href="data:application/gzip;base64,([A-Za-z0-9+/=]*)"')  # of a report
MAX_RUN_BYTES, MAX_RUN_PARTS = 2**27, 2**22  # of a run, and lists and mappings in it, so that it is read in 2 GiB


@dataclass
class Run:
    """Everything one command found, and where."""

    id: str
    created: str
    command: str
    environment: dict[str, Any]
    measurements: list[Measurement] = field(default_factory=list)
    recommendation: Recommendation | None = None
    searches: list[SearchTable] = field(default_factory=list)
    renderer: ClassVar[Callable[["Run"], str] | None] = None  # of the page that a notebook shows: `api` hands it in

    def rows(self) -> list[dict[str, Json]]:
        """A flat mapping per measurement, as pandas and polars take them: the workload, the parts of the plan, and what
        was found, in seconds and bytes."""
        return [_row(m) for m in with_speedups(self.measurements)]

    def _repr_html_(self) -> str | None:
        if Run.renderer is None:
            return None
        page = html.escape(Run.renderer(self.readable()), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 60rem; border: 0"></iframe>'

    def to_json(self) -> dict[str, Json]:
        return self._json_around([m.to_json() for m in with_speedups(self.measurements)])

    def _json_around(self, measured: Sequence[JsonObject]) -> dict[str, Json]:
        return {
            **{"schema": f"{SCHEMA}{VERSION}", "id": self.id, "created": self.created, "command": self.command},
            "environment": self.environment,
            "measurements": measured,
            "recommendation": self.recommendation and record_json(self.recommendation),
            **({"searches": [each.to_json() for each in self.searches]} if self.searches else {}),
        }

    def save(self, folder: Path) -> Path:
        """Write it, a line a measurement.

        Raises:
            BadInput: the folder cannot be written.
        """
        path, content = folder / FILE, self._json_around(())
        lines = ",\n".join(json.dumps(m.to_json()) for m in with_speedups(self.measurements))
        parts = {name: json.dumps(part, indent=None if name == "searches" else 1) for name, part in content.items()}
        parts["measurements"] = f"[\n{lines}\n]"
        text = ",\n".join(f'"{name}": {part}' for name, part in parts.items())
        write_atomically(path, f"{{\n{text}\n}}\n")
        return path

    def readable(self) -> "Run":
        """The run with its speed-ups; a measurement whose plan means nothing to this stripectl has no time and says
        so."""
        return replace(self, measurements=with_speedups(map(readable, self.measurements)))

    @classmethod
    def from_json(cls, content: Any, where: str) -> "Run":
        """A run from its JSON. What it recommends is left out: a reader draws that anew from the measurements
        (`recommend`), so that a file cannot recommend what its figures do not show.

        Raises:
            BadInput: not a run, not whole, or newer than this stripectl.
        """
        schema = content.get("schema") if isinstance(content, dict) else None
        if not isinstance(schema, str) or not schema.startswith(SCHEMA):
            raise BadInput(f"{where} is not a stripectl run: it has no schema {SCHEMA}{VERSION}.")
        version = schema.removeprefix(SCHEMA)
        if not re.fullmatch(r"\d{1,9}", version) or int(version) > VERSION:
            raise BadInput(
                f"{where} has schema {schema}, newer than this stripectl reads ({SCHEMA}{VERSION}). Upgrade stripectl."
            )
        if not is_shallow(content):
            raise BadInput(f"{where} is not a stripectl run: it holds lists in lists that no run has.")
        content = printable(content)
        try:
            if len(content["measurements"]) > MAX_MEASUREMENTS:
                raise ValueError(f"it has more than {MAX_MEASUREMENTS:,} measurements")
            if not is_small(content["environment"]):
                raise ValueError("its environment holds a number that is too large")
            return cls(
                **{name: str(content[name]) for name in ("id", "created", "command")},
                environment={"devices": [], "warnings": []} | dict(content["environment"]),
                measurements=[Measurement.from_json(m) for m in content["measurements"]],
                recommendation=None,
                searches=[SearchTable.from_json(each) for each in content.get("searches", ())],
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise BadInput(f"{where} is not a whole stripectl run: {type(error).__name__}: {error}") from error

    @classmethod
    def load(cls, path: Path) -> "Run":
        """A run by its run.json, with the journal beside it, any JSON file that holds one, packed or not, the page of a
        report, or its folder.

        Raises:
            BadInput: missing, unreadable, truncated, not a run, or newer than this stripectl.
        """
        file = file_of(path)
        try:
            content = json.loads(unpacked(read_bytes(file, MAX_RUN_BYTES)))
        except (ValueError, RecursionError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BadInput(f"{file} is not JSON, or was cut short: {error}") from error
        except OSError as error:
            raise BadInput(f"cannot read {file}: {error.strerror}. Name a run.json or the folder of a run.") from error
        run = cls.from_json(content, str(file))
        if file.name == FILE:
            run.measurements = journal.replayed(file.parent, run.id, run.measurements)
        return run


def _row(m: Measurement) -> dict[str, Json]:
    plan, work = m.plan, m.workload
    return {
        **{name: getattr(work, name) for name in ("model", "seq_len", "query_len", "heads", "kv_heads", "head_dim")},
        **{name: getattr(work, name) for name in ("batch", "dtype", "mask", "passes")},
        **{"plan": str(plan), "scheme": plan.scheme, "layout": plan.layout, "kernel": plan.kernel},
        "mesh": ",".join(f"{axis}={size}" for axis, size in plan.axes.items()),
        "tile": str(plan.tile) if plan.tile else None,
        **{"target": str(m.target), "devices": m.devices, "method": m.method, "status": m.status, "reason": m.reason},
        "median_s": m.median_s,
        "low_s": m.ci95_s[0] if m.ci95_s else None,
        "high_s": m.ci95_s[1] if m.ci95_s else None,
        "speedup": m.speedup.value if m.speedup else None,
        "bound": m.bound and m.bound.attention_only,
        **{"tokens_per_s": m.tokens_per_s, "mfu": m.mfu, "peak_bytes": m.peak_bytes},
        "overlap": m.overlap and m.overlap.ratio,
    }


def file_of(path: Path) -> Path:
    """The run.json of a folder; what is no folder is the file itself."""
    return path / "run.json" if os.path.isdir(path) else path


def unpacked(content: bytes) -> str:
    """The text of a file: as it is, or of the run that a report carries, or packed by gzip.

    Raises:
        ValueError, EOFError, OSError, zlib.error: it is not whole, or too large.
    """
    if content[:100].lstrip().lower().startswith(b"<!doctype html"):
        found = CARRIED.findall(content)
        if len(found) != 1:
            raise ValueError(f"a page that carries {len(found) or 'no'} run{'s: save one from it' * (len(found) > 1)}")
        content = base64.b64decode(found[0], validate=True)
    if content.startswith(GZIP):
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            content = packed.read(MAX_RUN_BYTES + 1)
    parts = content.count(b"[") + content.count(b"{")
    if len(content) > MAX_RUN_BYTES or parts > MAX_RUN_PARTS:
        raise ValueError(f"it unpacks to more than {MAX_RUN_BYTES >> 20} MiB, or {MAX_RUN_PARTS:,} lists and mappings")
    return content.decode("utf-8")


def newest_run(folder: Path) -> Path:
    """The run.json written last under `folder`.

    Raises:
        BadInput: there is none.
    """
    runs = sorted(folder.glob("*/run.json"), key=lambda path: path.stat().st_mtime)
    if not runs:
        raise BadInput(f"there is no run in {folder}/. Make one: stripectl bench --seqlen 256k")
    return runs[-1]
