"""The files of a profile: their place, the program's HLO next to or inside them, and xprof's table of operations.

xprof writes its results next to the profile that it reads, so it reads a copy.
"""

import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stripectl.errors import BadInput
from stripectl.hlo.module import has_entry
from stripectl.results.profile import OperationFigures
from stripectl.util.json import JsonObject

HLO = "program.hlo.txt"  # the compiled program, next to a profile that stripectl captured
MODULE = re.compile(r"HloModule ([\w.\-]+)")
SUFFIX = ".xplane.pb"
PROFILES = Path("plugins", "profile", "steps")  # in a profile that stripectl captured, where xprof looks
TOP = 12


def profile_files(path: Path) -> list[Path]:
    """The profile's files, one per process: a single file, or the files of the newest run in a folder.

    Raises:
        BadInput: the path has no profile.
    """
    if os.path.isfile(path):
        return [path]
    found = list(filter(os.path.isfile, path.rglob(f"*{SUFFIX}")))
    if not found:
        there = "is not a file or folder" if os.path.exists(path) else "does not exist"
        what = f"{path} holds no profile (*{SUFFIX})" if os.path.isdir(path) else f"{path} {there}"
        raise BadInput(f"{what}. Name an {SUFFIX} file, or the folder given to jax.profiler.trace.")
    newest = max(found, key=lambda file: (file.stat().st_mtime_ns, file)).parent
    return sorted((file for file in found if file.parent == newest), key=lambda file: in_order(file.name))


def other_files(path: Path) -> int:
    """The number of profiles in a folder, besides the profile that is read."""
    return max(0, len({file.parent for file in path.rglob(f"*{SUFFIX}")}) - 1)


def in_order(name: str) -> list[tuple[int, str]]:
    """A sort key that orders numbers in names by value, so that process 2 comes before process 10."""
    return [(int(part), "") if at % 2 else (0, part) for at, part in enumerate(re.split(r"(\d+)", name))]


def named_module(files: Sequence[Path]) -> str | None:
    """The name of the program that was saved with a profile, or None."""
    found = MODULE.match(program_beside(files) or "")
    return found[1] if found else None


def program_beside(files: Sequence[Path]) -> str | None:
    """The program that was saved with a profile.

    Raises:
        BadInput: the file is not a program.
    """
    kept = next((path for folder in list(files[0].parents)[:4] if (path := folder / HLO).is_file()), None)
    text = kept and kept.read_text(encoding="utf-8", errors="replace")
    if text and not has_entry(text):
        raise BadInput(
            f"{kept} is not a program (HLO text): it has no ENTRY. Remove it to read the profile without it."
        )
    return text or None


def program_text(file: Path, module: str) -> str | None:
    """The HLO of a module in a file: saved next to it, or contained in it; None where it is missing."""
    kept = program_beside([file])
    if kept and named_module([file]) == module.partition("(")[0]:
        return kept
    name = _level(module.encode()).decode()
    options = {"graph_viewer_options": {"module_name": name, "type": "long_txt", "show_metadata": 1}}
    text = ask_xprof([file], "graph_viewer", options)
    return text if text and has_entry(text) else kept


def operations(files: Sequence[Path]) -> tuple[OperationFigures, ...] | None:
    """The operations that took most time, by xprof; None where xprof finds none (on CPU)."""
    text = ask_xprof(files, "hlo_stats", {})
    try:
        table = json.loads(text or "")
        at = {column["id"]: index for index, column in enumerate(table["cols"])}
        rows: list[list[Any]] = [[cell["v"] if cell else None for cell in row["c"]] for row in table["rows"]]
        total = sum(row[at["total_self_time"]] for row in rows)
        rows.sort(key=lambda row: -row[at["total_self_time"]])
        found = tuple(
            OperationFigures(
                name=str(row[at["hlo_op_name"]]),
                category=str(row[at["category"]]),
                count=int(row[at["occurrences"]]),
                self_s=row[at["total_self_time"]] * 1e-6,
                share=row[at["total_self_time"]] / total if total else None,
            )
            for row in rows[:TOP]
        )
        return found or None
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def ask_xprof(files: Sequence[Path], tool: str, options: JsonObject) -> str | None:
    """A tool's answer as text; None where xprof cannot read the profile or does not have the tool."""
    from xprof.convert import raw_to_tool_data

    with copied_files(files) as copies:
        try:
            raw_to_tool_data.xspace_to_tool_names(copies)  # extracts the profile's programs next to it
            found, _ = raw_to_tool_data.xspace_to_tool_data(copies, tool, options)
        except Exception:  # a foreign profile may cause any error
            return None
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else found


@contextmanager
def copied_files(files: Sequence[Path]) -> Iterator[list[str]]:
    """Copies for xprof, which writes each program of a profile next to it, in a file with the program's name."""
    with tempfile.TemporaryDirectory(prefix="stripectl-xprof-") as folder:
        copies = [Path(folder) / file.name for file in files]
        for file, copy in zip(files, copies, strict=True):
            copy.write_bytes(_level(file.read_bytes()))
        yield list(map(str, copies))


def _level(content: bytes) -> bytes:
    """The same number of bytes, without a name that leads out of the folder."""
    return content.replace(b"../", b".._")
