"""A thousand runs and journals, and hundreds of profiles, configurations and command lines that nobody means well: each
ends in a result or in one line within LIMIT_S, runs nothing, and leaves a guarded folder as it is.

`SEED=N` draws others; a failure names its seed.
"""

import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import FrameType

import pytest
import yaml

from stripectl.results.journal import FILE as JOURNAL
from stripectl.results.lock import FILE as LOCK
from tests.support import hostile, untrusted
from tests.support.golden import PROFILES, xspace
from tests.support.hostile import SHIPPED
from tests.support.model_configs import PUBLISHED

pytestmark = pytest.mark.faults

SEED = int(os.environ.get("SEED", "20261122"))
LIMIT_S, HANGS_S = 10, 120  # of the processor, and of the clock, since other programs run too
PARTS = 4  # of the thousand, which run at once
Guarded = dict[str, tuple[int, int, int, str | bytes]]


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the user's files, which links lead to and nothing changes."""
    folder = tmp_path / "guarded"
    (folder / "deep").mkdir(parents=True)
    for name in (".bashrc", "run.json", "report.html", "deep/theirs"):
        (folder / name).write_text(f"theirs: {name}")
    (folder / "link").symlink_to(".bashrc")
    monkeypatch.chdir(tmp_path)
    before = listing(folder)
    yield folder
    assert listing(folder) == before


def listing(folder: Path) -> Guarded:
    found = Guarded()
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path)] = (state.st_mode, state.st_mtime_ns, state.st_nlink, content)
    return found


@contextlib.contextmanager
def limited(what: str) -> Iterator[None]:
    """An error that names its input where it takes too long or is no line."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"{what} took longer than {LIMIT_S} s of the processor, or {HANGS_S} s")

    before = {number: signal.signal(number, late) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    signal.setitimer(signal.ITIMER_REAL, HANGS_S)
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{what}: {str(error)[:2000]}") from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def each_of(numbers: range, kind: str, check: Callable[[Random, Path], None]) -> None:
    for number in numbers:
        seed = f"{SEED} {kind} {number}"
        with tempfile.TemporaryDirectory(prefix="many-") as folder, limited(f"seed {seed!r}"):
            check(Random(seed), Path(folder))


@pytest.mark.parametrize("part", range(PARTS))
def test_500_runs(part: int, guarded: Path) -> None:
    def check(random: Random, folder: Path) -> None:
        content = json.dumps(hostile.mutated(hostile.run(random, most=2), random)).encode()
        if random.random() < 0.2:
            content = hostile.cut(content, random)
        place = folder / "run"
        place.mkdir()
        (place / "run.json").write_bytes(content)
        untrusted.asked("report", str(place), "--format", "md")
        untrusted.asked("compare", str(place), str(place))
        if random.random() < 0.1:
            untrusted.asked("bench", *untrusted.SMALL, "--output", str(place), "--resume", folders=[place])

    each_of(range(part, 500, PARTS), "run", check)


@pytest.mark.parametrize("part", range(PARTS))
def test_500_journals(part: int, guarded: Path) -> None:
    """With a tenth of the journals and locks links to the guarded folder, or FIFOs."""

    def check(random: Random, folder: Path) -> None:
        place = folder / "run"
        place.mkdir()
        for name in (JOURNAL, LOCK, "report.html", "profiles"):
            kind = random.random()
            if kind < 0.05:
                (place / name).symlink_to(random.choice([guarded, *guarded.rglob("*"), guarded / "new"]))
            elif kind < 0.1:
                os.mkfifo(place / name)
        resumes = random.random() < 0.2
        untrusted.run_folder(hostile.journal(random), hostile.lock(random), folder, resumes)

    each_of(range(part, 500, PARTS), "journal", check)


def test_300_profiles(guarded: Path) -> None:
    drawings = sorted(PROFILES.glob("*.txtpb"))

    def check(random: Random, folder: Path) -> None:
        text = random.choice(drawings).read_text()
        program = (PROFILES / "ring.hlo.txt").read_text()
        kind = random.random()
        if kind < 0.4:
            text = hostile.redrawn(text, random)
        elif kind < 0.6:
            program = hostile.cut(program.encode(), random).decode("utf-8", "replace")
        elif kind < 0.8:
            text += hostile.program_of(f"../{guarded.name}/.bashrc")
        content = xspace(text)
        content = hostile.cut(content, random) if kind > 0.9 else content
        untrusted.profile(
            content, program if kind < 0.7 else None, {"ring": 2} if random.random() < 0.5 else {}, folder
        )

    each_of(range(300), "profile", check)


def test_300_configurations(guarded: Path) -> None:
    """YAML files as hardware, models, claims and suites, and config.json files."""
    configs = [each.config for each in PUBLISHED.values()]

    def check(random: Random, folder: Path) -> None:
        if random.random() < 0.3:
            path = folder / "config.json"
            content = json.dumps(hostile.mutated(random.choice(configs), random)).encode()
            path.write_bytes(hostile.cut(content, random) if random.random() < 0.2 else content)
            untrusted.asked("topology", "--target", "v5e:2x2", "--model", str(path), "--quiet")
            untrusted.asked("bench", *untrusted.SMALL, "--model", str(folder), "--pass", "step", "--dry-run")
            return
        content = random.choice(SHIPPED).read_bytes()
        if random.random() < 0.3:
            content = hostile.cut(content, random)
        else:
            content = hostile.yaml_of(hostile.mutated(yaml.safe_load(content), random))
        untrusted.yaml_file(content, folder)

    each_of(range(300), "configuration", check)


def test_300_command_lines(guarded: Path) -> None:
    each_of(range(300), "command line", lambda random, folder: untrusted.command_line(hostile.options(random), folder))
