"""A coverage-guided fuzzer of what is read from others, a target a kind of input:

    pip install -e . --group fuzz
    python -m tests.support.fuzz plans|options|yaml|runs|journals|profiles [--minutes 12] [--folder .fuzz]

It starts from seeds that are made of what the repository holds, spoils them by their structure (`hostile`) or by their
bytes (libFuzzer), keeps what reaches new code in FOLDER/TARGET/corpus, and asks `untrusted` whether what must hold
still does. Where it does not, or takes longer than LIMIT_S of the processor, input and traceback go to
FOLDER/TARGET/faults, once for every line that raises, and the search goes on; what takes more than MEMORY_MB ends it.
It is no test: it takes as long as it is given, and needs atheris, which has wheels for Python 3.11 to 3.13 on x86-64.
"""

import argparse
import contextlib
import functools
import gzip
import hashlib
import importlib
import json
import os
import pkgutil
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import atheris
import yaml

ROOT = Path(__file__).parents[2]
WITH_DEVICES = re.compile(r"stripectl\.(__main__|worker|execute|layer|measure|compile|kernels\.\w+\.kernel)\b")

with atheris.instrument_imports(include=["stripectl", "yaml"]):  # pyright: ignore[reportAttributeAccessIssue]
    import stripectl
    from stripectl.results.run import Run
    from tests.support import hostile, untrusted
    from tests.support.golden import PROFILES, ProfileData
    from tests.support.pages import page_of

    for found in pkgutil.walk_packages(stripectl.__path__, "stripectl."):  # also what commands import when they run
        if not WITH_DEVICES.match(found.name):
            importlib.import_module(found.name)

LIMIT_S, MEMORY_MB = 60, 4096
BESIDE = b"\n%PROGRAM%\n"  # between a profile and the program that lies beside it
AND_LOCK = b"\n%LOCK%\n"  # between a journal and the lock that lies beside it
DRAWN = b" "  # at the end of a run of which a page is drawn, which takes long


class Target(NamedTuple):
    """A kind of input: what must hold of it, sound ones, another like one, and how many bytes are enough."""

    check: Callable[[bytes, Path], None]
    seeds: Callable[[], Iterator[bytes]]
    spoil: Callable[[bytes, Random], bytes]
    longest: int


def check_profile(content: bytes, folder: Path) -> None:
    profile, _, program = content.partition(BESIDE)
    if profile.startswith(b"planes"):
        profile = ProfileData.text_proto_to_serialized_xspace(profile.decode("utf-8", "replace")) or profile
    axes = {"ring": 2} if len(content) % 2 else {}
    untrusted.profile(profile, program.decode("utf-8", "replace") if program else None, axes, folder)


def sound_profiles() -> Iterator[bytes]:
    for path in PROFILES.glob("*.txtpb"):
        own, text = path.with_suffix(".hlo.txt"), path.read_bytes()
        yield text + BESIDE + (own if own.exists() else PROFILES / "ring.hlo.txt").read_bytes()
        yield text + hostile.program_of("jit_step").encode()
        yield ProfileData.text_proto_to_serialized_xspace(text.decode()) or b""


def sound_runs() -> Iterator[bytes]:
    for at in range(3 * len(hostile.EXAMPLES)):
        yield json.dumps(hostile.run(Random(at), most=2)).encode() + DRAWN * (at % 5 == 0)
    few = json.dumps(hostile.run(Random(0), most=2))
    yield gzip.compress(few.encode())
    yield page_of(Run.from_json(json.loads(few), "a seed")).encode()


def check_folder(content: bytes, folder: Path) -> None:
    journal, _, lock = content.removesuffix(DRAWN).partition(AND_LOCK)
    untrusted.run_folder(journal, lock, folder, resumes=content.endswith(DRAWN))


def sound_folders() -> Iterator[bytes]:
    for at in range(30):
        yield hostile.journal(Random(at)) + AND_LOCK + hostile.lock(Random(at)) + DRAWN * (at % 5 == 0)


def spoil_folder(content: bytes, random: Random) -> bytes:
    journal, _, lock = content.partition(AND_LOCK)
    lines = [json.dumps(hostile.mutated(json.loads(line), random)).encode() for line in journal.splitlines() if line]
    return b"\n".join(lines) + AND_LOCK + lock


def spoil_run(content: bytes, random: Random) -> bytes:
    spoilt = hostile.mutated(json.loads(content), random)
    return json.dumps(spoilt).encode() + DRAWN * (random.random() < 0.02)


def spoil_profile(content: bytes, random: Random) -> bytes:
    if not content.startswith(b"planes"):
        return hostile.cut(content, random)
    return hostile.redrawn(content.decode(), random).encode("utf-8", "replace")


TARGETS = {
    "plans": Target(
        lambda content, folder: untrusted.strings(content.decode("utf-8", "surrogateescape")),
        lambda: (text.encode("utf-8", "surrogatepass") for texts in hostile.SOUND.values() for text in texts),
        lambda content, random: hostile.reworded(content.decode(), random).encode("utf-8", "replace"),
        200,
    ),
    "options": Target(
        lambda content, folder: untrusted.command_line(content.decode("utf-8", "replace").split("\n"), folder),
        lambda: ("\n".join(hostile.options(Random(at))).encode("utf-8", "replace") for at in range(60)),
        lambda content, random: hostile.with_option(content.decode(), random).encode("utf-8", "replace"),
        600,
    ),
    "yaml": Target(
        untrusted.yaml_file,
        lambda: (path.read_bytes() for name in ("profiles", "examples") for path in (ROOT / name).rglob("*.yaml")),
        lambda content, random: hostile.yaml_of(hostile.mutated(yaml.safe_load(content), random)),
        4096,
    ),
    "runs": Target(
        lambda content, folder: untrusted.run_file(content, folder, draws=content.endswith(DRAWN)),
        sound_runs,
        spoil_run,
        60_000,
    ),
    "journals": Target(check_folder, sound_folders, spoil_folder, 60_000),
    "profiles": Target(check_profile, sound_profiles, spoil_profile, 20_000),
}


def spoil(target: Target, content: bytes, most: int, seed: int) -> bytes:
    """Another input like this one: by its structure where it has one, else by its bytes."""
    random = Random(seed)
    if random.random() < 0.7:
        with contextlib.suppress(ValueError, yaml.YAMLError, RecursionError, TypeError):
            return target.spoil(content, random)[:most]
    return atheris.Mutate(content, most)


def attempt(target: Target, content: bytes, faults: Path) -> None:
    """Ask whether what must hold does, and keep what it does not hold of."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        try:
            target.check(content, Path(folder))
        except Exception as error:
            keep(content, error, faults)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


def late(number: int, frame: Any) -> None:
    raise TimeoutError(f"it took longer than {LIMIT_S} s of the processor")


def keep(content: bytes, error: Exception, faults: Path) -> None:
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(ROOT))]
    where = f"{type(error).__name__} {own[-1].filename}:{own[-1].lineno}"
    path = faults / hashlib.sha256(where.encode()).hexdigest()[:12]
    if not path.exists():
        path.write_bytes(content)
        told = "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace")
        path.with_suffix(".txt").write_bytes(told)
        print(f"FAULT {path}: {where}: {str(error)[:200]!r}", file=sys.stderr, flush=True)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("target", choices=TARGETS)
    asked.add_argument("--minutes", type=float, default=12.0)
    asked.add_argument("--folder", type=Path, default=Path(".fuzz"))
    given, own_flags = asked.parse_known_args()
    target, folder = TARGETS[given.target], (given.folder / given.target).resolve()
    corpus, seeds, faults = (folder / name for name in ("corpus", "seeds", "faults"))
    for each in (corpus, seeds, faults):
        each.mkdir(parents=True, exist_ok=True)
    for at, content in enumerate(target.seeds()):
        (seeds / f"{at:03}").write_bytes(content)
    flags = {
        "max_total_time": round(60 * given.minutes),
        "timeout": 10 * LIMIT_S,  # by the clock, which others of the machine hold up
        "rss_limit_mb": MEMORY_MB,
        "max_len": target.longest,
        "artifact_prefix": f"{folder}/",
        "print_final_stats": 1,
    }
    atheris.Setup(
        [sys.argv[0], *(f"-{name}={value}" for name, value in flags.items()), *own_flags, str(corpus), str(seeds)],
        lambda content: attempt(target, content, faults),
        custom_mutator=functools.partial(spoil, target),
    )
    signal.signal(signal.SIGPROF, late)
    os.chdir(folder)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
