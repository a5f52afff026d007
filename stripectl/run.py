"""Everything one command found, and the file it is kept in: run.json, schema `stripectl.run/1`.

The file is written whole after every measurement, so a killed run keeps what it measured.
"""

import base64
import gzip
import io
import json
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stripectl import BadInput
from stripectl.files import write_atomically
from stripectl.measurement import Measurement, with_speedups
from stripectl.schema import check

SCHEMA, VERSION = "stripectl.run/", 1
GZIP = b"\x1f\x8b"
CARRIED = re.compile(rb'href="data:application/gzip;base64,([A-Za-z0-9+/=]*)"')  # of a report
MOST_BYTES = 2**30  # of a packed run


@dataclass
class Run:
    """Everything one command found, and where."""

    id: str
    created: str
    command: str
    environment: dict[str, Any]
    measurements: list[Measurement] = field(default_factory=list)
    recommendation: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        measured = [m.to_json() for m in with_speedups(self.measurements)]
        head = {"schema": f"{SCHEMA}{VERSION}", "id": self.id, "created": self.created, "command": self.command}
        return head | {
            "environment": self.environment,
            "measurements": measured,
            "recommendation": self.recommendation,
        }

    def save(self, folder: Path) -> Path:
        path = folder / "run.json"
        write_atomically(path, json.dumps(self.to_json(), indent=1) + "\n")
        return path

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
        if not version.isdecimal() or int(version) > VERSION:
            raise BadInput(
                f"{where} has schema {schema}, newer than this stripectl reads ({SCHEMA}{VERSION}). Upgrade stripectl."
            )
        try:
            return cls(
                **{name: str(content[name]) for name in ("id", "created", "command")},
                environment={"devices": [], "warnings": []} | dict(content["environment"]),
                measurements=[Measurement.from_json(check(m)) for m in content["measurements"]],
                recommendation=None,
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise BadInput(f"{where} is not a whole stripectl run: {type(error).__name__}: {error}") from error

    @classmethod
    def load(cls, path: Path) -> "Run":
        """A run by its run.json, any JSON file that holds one, packed or not, the page of a report, or its folder.

        Raises:
            BadInput: missing, unreadable, truncated, not a run, or newer than this stripectl.
        """
        file = path / "run.json" if path.is_dir() else path
        try:
            content = json.loads(unpacked(file.read_bytes()))
        except (ValueError, RecursionError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BadInput(f"{file} is not JSON, or was cut short: {error}") from error
        except OSError as error:
            raise BadInput(f"cannot read {file}: {error.strerror}. Name a run.json or the folder of a run.") from error
        return cls.from_json(content, str(file))


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
            content = packed.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it unpacks to more than {MOST_BYTES // 2**20} MiB")
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
