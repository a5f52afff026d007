"""Records of programs that are compiled one after another, each in a process of its own: a compiler's crash ends one of
them, and its memory is free for the next."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

Program = TypeVar("Program", bound=NamedTuple)


def record(
    script: str,
    programs: Sequence[Program],
    compiled: Callable[[Program], Mapping[str, Any]],
    path: Path,
    chosen: Sequence[str],
) -> None:
    """Print the facts of the chosen program; or, without one, write those of every program to `path`, by this script
    in a process for each."""
    if chosen:
        print(json.dumps(compiled(programs[int(chosen[0])])))
        return
    rows = []
    for k, program in enumerate(programs):
        command = [sys.executable, script, str(k)]
        found = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
        rows.append(program._asdict() | json.loads(found.stdout))
        print(json.dumps(rows[-1]), flush=True)
    path.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
