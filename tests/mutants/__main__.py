"""Whether the tests find deliberate faults.

    python -m tests.mutants [WORD ...]

Each fault of `faults.yaml` whose area or file holds every WORD is put in a copy of what git tracks here, and the
tests that it names run there until one fails. The exit code is 1 where some fault is not found.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).parents[2]
FAILED = 1  # pytest's exit code where tests ran and some failed


class Fault(NamedTuple):
    area: str
    file: str
    old: str
    new: str
    tests: str


def faults() -> list[Fault]:
    content = yaml.safe_load((Path(__file__).parent / "faults.yaml").read_text())
    return [Fault(area, **each) for area, listed in content.items() for each in listed]


def faulty(fault: Fault) -> str:
    """The file's text with the fault.

    Raises:
        ValueError: the text that it replaces does not stand there once.
    """
    text = (ROOT / fault.file).read_text()
    if (count := text.count(fault.old)) != 1:
        raise ValueError(f"{fault.file} holds {fault.old!r} {count} times, not once. Mend tests/mutants/faults.yaml.")
    return text.replace(fault.old, fault.new)


def copied(folder: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)


def unfound(chosen: list[Fault], folder: Path) -> Iterator[Fault]:
    """The faults that no test finds; says what becomes of each."""
    around = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "ORACLE_SEED": "1"}
    for fault in chosen:
        (folder / fault.file).write_text(faulty(fault))
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *shlex.split(fault.tests)]
        done = subprocess.run(command, cwd=folder, env=around, capture_output=True, text=True)
        shutil.copy(ROOT / fault.file, folder / fault.file)
        failed = next((line for line in done.stdout.splitlines() if line.startswith("FAILED ")), "")
        found = done.returncode == FAILED
        verdict = failed.partition(" - ")[0] if found else f"NOT FOUND, pytest ended with {done.returncode}"
        print(f"{fault.area}: {fault.new!r}: {verdict} ({time.monotonic() - began:.0f} s)", flush=True)
        if not found:
            yield fault


def main(words: list[str]) -> int:
    chosen = [fault for fault in faults() if all(word in f"{fault.area} {fault.file} {fault.new}" for word in words)]
    for fault in chosen:
        faulty(fault)
    with tempfile.TemporaryDirectory(prefix="stripectl-mutants-") as folder:
        copied(Path(folder))
        missed = list(unfound(chosen, Path(folder)))
    print(f"{len(chosen) - len(missed)} of {len(chosen)} faults are found")
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
