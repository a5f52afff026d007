"""A run's folder has one writer; what was measured is on disk whatever happens to the one who measures."""

import errno
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripectl.results import journal
from stripectl.results.lock import FILE as LOCK
from stripectl.results.lock import writing_in
from stripectl.results.run import Run
from stripectl.results.writer import RunWriter
from stripectl.util.output import write_atomically
from tests.support.command import ON_PAPER, run
from tests.support.factories import because
from tests.support.journals import empty_run, line_for, nth_ring, told

STRIPECTL = [sys.executable, "-m", "stripectl"]
KILLS = [100, pytest.param(1000, marks=pytest.mark.full)]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def listing(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


COMMANDS = {
    "bench": ON_PAPER,
    "bench --resume": [*ON_PAPER, "--resume"],
    "tune-tiles": ["tune-tiles", *ON_PAPER[1:]],
    "tune-tiles --resume": ["tune-tiles", *ON_PAPER[1:], "--resume"],
    "trace": ["trace", "ring/striped/xla@ring=2", "--quiet", "--output", "run", "--resume"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_second_writer_is_told_who_writes_there(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*ON_PAPER, "--seqlen", "8k", "--pass", "forward") == 0
    capsys.readouterr()
    with writing_in(Path("run")):
        before = listing(Path("run"))
        assert run(*COMMANDS[command]) == 2
        assert listing(Path("run")) == before
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert f"another stripectl process writes in run: process {os.getpid()} on {os.uname().nodename}, since 20" in line
    assert "choose another --output" in line and shown.out == ""
    assert LOCK not in listing(Path("run"))


HOLDER = """
import sys, time
from pathlib import Path
from stripectl.results.lock import writing_in
with writing_in(Path("run")):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_lock_of_a_killed_process_goes_with_it() -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        assert run(*ON_PAPER, "--seqlen", "8k") == 2
        holder.kill()
    assert sorted(listing(Path("run"))) == [LOCK]
    assert run(*ON_PAPER, "--seqlen", "8k", "--pass", "forward") == 0
    assert sorted(listing(Path("run"))) == ["report.html", "run.json"]


# A machine of which no measurement is published, so the report predicts none.
LIGHT = ["--target", "v5e:8", "--layout", "striped", "--seqlen", "8k", "--pass", "forward"]


def test_of_several_at_once_one_writes() -> None:
    command = [*STRIPECTL, *ON_PAPER, *LIGHT]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [each.communicate()[1] for each in started]
    assert sorted(each.returncode for each in started) == [0, 2]
    assert all("another stripectl process writes in run" in text or "holds a run" in text for text in said if text)
    assert sorted(listing(Path("run"))) == ["report.html", "run.json"]


def test_several_without_a_folder_get_one_each() -> None:
    command = [*STRIPECTL, *ON_PAPER[:-2], *LIGHT]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    assert [each.communicate()[1] for each in started] == [b""] * 2
    assert [each.returncode for each in started] == [0] * 2
    folders = sorted(Path("stripectl-runs").iterdir())
    assert [sorted(listing(each)) for each in folders] == [["report.html", "run.json"]] * 2


def test_a_folder_that_another_process_makes_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Path.mkdir

    def make_second(folder: Path, *args, **options) -> None:
        os.mkdir(folder)
        make(folder, *args, **options)

    monkeypatch.setattr(Path, "mkdir", make_second)
    with pytest.raises(FileExistsError), writing_in(Path("run"), new=True):
        pass
    assert Path("run").is_dir()


def test_a_folder_that_another_process_removes_meanwhile_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    make, times = Path.mkdir, iter(range(3))

    def make_and_lose(folder: Path, *args, **options) -> None:
        make(folder, *args, **options)
        if next(times, None) is not None:
            folder.rmdir()

    monkeypatch.setattr(Path, "mkdir", make_and_lose)
    for folder, new in ((Path("run"), False), (Path("new"), True)):
        with writing_in(folder, new=new):
            assert (folder / LOCK).exists()
        assert not folder.exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_written_without(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file, operation) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    assert run(*ON_PAPER, "--seqlen", "8k", "--pass", "forward", "--layout", "striped") == 0
    assert run(*ON_PAPER, "--seqlen", "8k", "--pass", "forward", "--resume") == 0
    assert sorted(listing(Path("run"))) == ["report.html", "run.json"]


def test_a_folder_that_stays_empty_is_taken_away() -> None:
    with writing_in(Path("a/b")):
        assert Path("a/b").is_dir()
    assert not Path("a").exists()
    Path("kept").mkdir()
    with writing_in(Path("kept")):
        pass
    assert Path("kept").is_dir()


def test_what_a_killed_writer_left_is_removed_by_the_next() -> None:
    assert run(*ON_PAPER, "--seqlen", "8k", "--pass", "forward") == 0
    Path("run/.run.json.abcd1234").write_text("half of")
    Path("run/.report.html._x0y1z2_").write_text("half of")
    Path("run/.notes").write_text("mine")
    assert run(*ON_PAPER, "--seqlen", "8k", "--pass", "forward", "--resume") == 0
    assert sorted(listing(Path("run"))) == [".notes", "report.html", "run.json"]


def test_an_interrupt_leaves_no_half_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(number: int) -> None:
        raise KeyboardInterrupt

    write_atomically(Path("file"), "whole")
    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(Path("file"), "another")
    assert listing(Path()) == {"file": b"whole"}


@pytest.fixture(scope="module")
def benched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, to be copied."""
    folder = tmp_path_factory.mktemp("benched") / "run"
    assert run(*ON_PAPER[:-2], "--seqlen", "8k", "--pass", "forward", "--output", str(folder)) == 0
    return folder


BROKEN = {
    "truncated": (lambda text: text[: len(text) // 2], "is not JSON, or was cut short"),
    "empty": (lambda text: "", "is not JSON, or was cut short"),
    "garbage": (lambda text: "\x93 not a run", "is not JSON"),
    "newer": (lambda text: text.replace("stripectl.run/3", "stripectl.run/4"), "newer than this stripectl"),
    "other": (lambda text: '{"schema": "somebody.else/1"}', "is not a stripectl run"),
    "a plan": (lambda text: text.replace('"plan": "', '"plan": "?'), "cannot resume"),
    "a plan's samples": (
        lambda text: text.replace('"samples_s": []', '"samples_s": "?"'),
        "not a complete stripectl run",
    ),
}


@pytest.mark.parametrize("command", ["bench", "tune-tiles"])
@pytest.mark.parametrize("how", BROKEN)
def test_a_run_that_cannot_be_read_is_left_as_it_is(
    how: str, command: str, benched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    breaks, why = BROKEN[how]
    shutil.copytree(benched, "run")
    Path("run/run.json").write_text(breaks(Path("run/run.json").read_text()))
    before = listing(Path("run"))
    capsys.readouterr()
    assert run(command, *ON_PAPER[1:], "--resume") == 2
    shown = capsys.readouterr()
    assert len(shown.err.splitlines()) == 1 and why in shown.err and shown.out == ""
    assert listing(Path("run")) == before


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Writing a run whole counts as slow from the first time on."""
    monkeypatch.setattr("stripectl.results.writer.SLOW_S", 0.0)
    monkeypatch.setattr("stripectl.results.writer.SHARE", 1e-9)
    yield


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Writing a run whole never counts as slow, however busy the machine is."""
    monkeypatch.setattr("stripectl.results.writer.SLOW_S", math.inf)
    yield


def test_while_writing_is_quick_there_is_no_journal(quick: None) -> None:
    kept = RunWriter(empty_run(), Path("run"))
    for at in range(5):
        kept.add(nth_ring(at, 1.0))
        assert told(Run.load(Path("run")).measurements) == told(kept.gathered().measurements)
    assert sorted(listing(Path("run"))) == ["run.json"]


def test_a_run_that_is_slow_to_write_is_appended_to(slow: None) -> None:
    kept = RunWriter(empty_run(), Path("run"))
    kept.add(nth_ring(0, 1.0))
    whole = Path("run/run.json").read_bytes()
    for at in range(1, 5):
        kept.add(nth_ring(at, 1.0))
        assert told(Run.load(Path("run")).measurements) == told([nth_ring(each, 1.0) for each in range(at + 1)])
    kept.add(nth_ring(2, 3.0))
    assert told(Run.load(Path("run")).measurements)[2] == told([nth_ring(2, 3.0)])[0]
    assert Path("run/run.json").read_bytes() == whole
    kept.save()
    assert sorted(listing(Path("run"))) == ["run.json"]
    assert told(Run.load(Path("run/run.json")).measurements) == told(kept.gathered().measurements)


def test_a_line_that_was_cut_short_costs_only_itself(slow: None, capsys: pytest.CaptureFixture[str]) -> None:
    kept = RunWriter(empty_run(), Path("run"))
    for at in range(3):
        kept.add(nth_ring(at, 1.0))
    path = Path("run") / journal.FILE
    path.write_bytes(path.read_bytes()[:-30])
    assert told(Run.load(Path("run")).measurements) == told([nth_ring(0, 1.0), nth_ring(1, 1.0)])
    kept.add(nth_ring(3, 1.0))
    assert told(Run.load(Path("run")).measurements) == told([nth_ring(at, 1.0) for at in (0, 1, 3)])
    with path.open("a") as file:
        file.write(line_for("another", nth_ring(7, 1.0).to_json()) + "\n\x00\n[]\n")
    assert len(Run.load(Path("run")).measurements) == 3
    with path.open("a") as file:
        file.write(line_for(kept.saved, {"plan": 7}) + "\n")
    before = listing(Path("run"))
    assert run(*ON_PAPER, "--resume") == 2
    assert "run.json.journal is not a complete journal" in capsys.readouterr().err
    assert listing(Path("run")) == before


def test_a_resumed_run_takes_its_journal_in(slow: None) -> None:
    assert run(*ON_PAPER, "--seqlen", "8k", "--pass", "forward", "--layout", "striped") == 0
    kept = RunWriter(Run.load(Path("run")), Path("run"))
    kept.add(nth_ring(0, 1.0))
    kept.add(nth_ring(1, 1.0))
    assert journal.FILE in listing(Path("run"))
    assert run("report", "run", "--no-open", "--quiet", "-o", "page.html") == 0
    assert "unroll=2" in Path("page.html").read_text()
    assert run(*ON_PAPER, "--seqlen", "8k", "--pass", "forward", "--resume") == 0
    assert sorted(listing(Path("run"))) == ["report.html", "run.json"]
    assert told([nth_ring(0, 1.0), nth_ring(1, 1.0)]) == [
        each for each in told(Run.load(Path("run")).measurements) if "unroll" in each[0][1] or each[1]
    ]


METHODS = st.sampled_from(["measured", "compiled", "simulated"])
STEPS = st.tuples(
    st.integers(0, 3),
    METHODS,
    st.booleans(),  # written whole
    st.booleans(),  # and killed before the journal was taken away
)


@given(st.sampled_from(["key", "identity"]), st.lists(STEPS, max_size=12))
def test_whatever_is_written_how_the_folder_holds_what_is_known(tmp_path_factory, by: str, steps: list) -> None:
    folder = tmp_path_factory.mktemp("run")
    kept = RunWriter(empty_run(), folder, by)
    kept.save()
    for seconds, (at, method, whole, killed) in enumerate(steps, 1):
        kept.began_s, kept.took_s = (float("-inf"), 0.0) if whole else (kept.began_s, 1e9)
        path, m = folder / journal.FILE, nth_ring(at, float(seconds), method)
        before = path.read_bytes() if killed and path.exists() else None
        kept.add(m)
        if before and not path.exists():
            path.write_bytes(before)
        assert set(told(Run.load(folder).measurements)) == set(told(kept.gathered().measurements))
    known = {m.key: m for m in kept.gathered().measurements}
    last = {nth_ring(at, 1.0, method).key: float(seconds) for seconds, (at, method, *_) in enumerate(steps, 1)}
    assert {key: m.median_s for key, m in known.items()}.items() <= last.items()
    assert known.keys() == last.keys() or by == "identity"


def test_of_a_plan_the_strongest_stays_and_samples_are_never_dropped() -> None:
    both = [nth_ring(0, 1.0), nth_ring(0, 2.0, "simulated")]
    run = replace(empty_run(), measurements=both)
    kept = RunWriter(run, Path("run"), "identity")
    kept.add(nth_ring(1, 3.0, "simulated"))
    kept.add(nth_ring(1, 4.0))
    kept.add(nth_ring(0, 5.0, "simulated"))
    assert told(Run.load(Path("run")).measurements) == told(
        [nth_ring(0, 1.0), nth_ring(0, 5.0, "simulated"), nth_ring(1, 4.0)]
    )


WRITER = """
import os, random, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tests.support.journals import empty_run, nth_ring, told
from stripectl.results import writer as keeping
from stripectl.util.output import remove_leftovers
from stripectl.results.run import Run

seed, kills = int(sys.argv[1]), int(sys.argv[2])
chance, folder = random.Random(seed), Path("run")
keeping.RunWriter(empty_run(), Path("warm")).add(nth_ring(0, 1.0))
for nth in range(kills):
    keeping.SLOW_S, keeping.SHARE = chance.choice([(1e9, 1.0), (0.0, 0.5), (0.0, 1e-9)])
    began = Run.load(folder) if (folder / "run.json").exists() else empty_run()
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        keep = keeping.RunWriter(began, folder)
        for turn in range(10**6):
            m = nth_ring((nth + turn) % 12, float(nth * 1000 + turn + 1))
            keep.add(m)
            os.write(writer, m.median_s.hex().encode() + b"\\n")
    os.close(writer)
    with os.fdopen(reader) as lines:
        first = [lines.readline() for _ in range(chance.randrange(4))]  # on a busy machine too some are kept
        time.sleep(chance.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kept_s = [float.fromhex(line) for line in (*first, *lines)]
    found = Run.load(folder).measurements if (folder / "run.json").exists() else []
    last = {m.key: m for m in began.measurements}
    now = [nth_ring((nth + turn) % 12, second) for turn, second in enumerate(kept_s)]
    last |= {m.key: m for m in now}
    held = {m.key: m.median_s for m in found}
    for key, m in last.items():
        assert held[key] >= m.median_s, f"seed {seed}, kill {nth}: {key[1]} has {held[key]}, {m.median_s} was kept"
    assert all(m.samples_s for m in found)
    remove_leftovers(folder, "run.json")
left = {path.name for path in folder.iterdir()}
assert left <= {"run.json", "run.json.journal"}, left
print(len(found))
"""


@pytest.mark.parametrize("kills", KILLS)
def test_a_writer_killed_at_any_moment_loses_nothing_that_it_kept(kills: int) -> None:
    seed = 20261122
    folder = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", WRITER, str(seed), str(kills), folder], capture_output=True, text=True)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    assert int(done.stdout) == 12


def test_samples_of_a_plan_that_failed_are_gone_on_from() -> None:
    from stripectl.measure.sampler import UNFINISHED
    from stripectl.runner.open_run import resume_from_samples

    failed = replace(
        nth_ring(0, 1.0), status="failed", reason=because("process 1 was killed by SIGKILL"), median_s=None
    )
    again = resume_from_samples(failed)
    assert (again.status, again.reason, again.samples_s) == ("ok", UNFINISHED, failed.samples_s)
    assert resume_from_samples(nth_ring(0, 1.0)) == nth_ring(0, 1.0)
    assert signal.SIGKILL.name in str(failed.reason)
