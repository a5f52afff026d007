"""The database of runs: what is kept, by whom, and what is refused."""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stripectl.core.plan import read_plan
from stripectl.errors import BadInput
from stripectl.hardware.target import read_target
from stripectl.results.backend import Final
from stripectl.results.history import APPLICATION, VERSION, History
from stripectl.results.run import Run
from stripectl.util.files import printable
from tests.support.command import run as stripectl
from tests.support.factories import timed_ring, with_parts
from tests.support.histories import EVIL, night

ROOT = Path(__file__).parents[2]


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "history")


def sql(history: History, *statements: str) -> list[Any]:
    """What another program does to a database; the rows that the last statement gives."""
    rows: list[Any] = []
    with contextlib.closing(sqlite3.connect(history.path, isolation_level=None)) as db:
        for statement in statements:
            rows = db.execute(statement).fetchall()
    return rows


def test_a_run_comes_back_with_its_samples(history: History) -> None:
    run = night(
        0,
        with_parts(timed_ring("striped", 0.5), flags={"xla_flag": "true"}, overlap={"ratio": 0.5}),
        versions={"jax": "1"},
    )
    history.add(run)
    (found,) = history.runs()
    assert (found.id, found.created, found.command) == (run.id, run.created, run.command)
    assert found.environment == {"devices": [], "warnings": []} | run.environment
    (kept,), (m,) = found.measurements, run.measurements
    assert kept.key == m.key
    for name in ("samples_s", "median_s", "ci95_s", "bytes", "check", "overlap", "flags", "status"):
        assert getattr(kept, name) == getattr(m, name)


def test_speed_ups_are_those_of_the_run(history: History) -> None:
    history.add(night(0))
    (found,) = history.runs(equal={"method": "measured"}, within={"plan": "striped"})
    assert found.measurements[0].speedup and found.measurements[0].speedup.value == pytest.approx(1.6)


def test_runs_come_in_order_of_time(history: History) -> None:
    for number in (2, 0, 1):
        history.add(night(number))
    east = night(3)
    history.add(replace(east, created="2026-11-03T09:00:00+09:00", id="east"))  # before the third night, in UTC
    assert [run.id for run in history.runs()] == ["night 0", "night 1", "east", "night 2"]
    assert [run.id for run in history.runs(last=2)] == ["east", "night 2"]


def test_what_is_asked_for_is_what_comes(history: History) -> None:
    history.add(night(0))
    history.add(night(1, timed_ring("striped", 0.4, "simulated")))
    assert [run.id for run in history.runs(equal={"method": "simulated"})] == ["night 1"]
    assert [len(run.measurements) for run in history.runs(within={"plan": "RING/striped"})] == [1, 1]
    assert [len(run.measurements) for run in history.runs(keys=[night(0).measurements[0].key])] == [1]
    assert history.runs(keys=[]) == history.runs(within={"target": "v5e"}) == []


def test_a_run_that_is_added_again_replaces_itself(history: History) -> None:
    half, whole = night(0, timed_ring("striped", 0.5)), night(0)
    history.add(half)
    history.add(night(1))
    for _ in range(3):
        history.add(whole)
    assert history.count() == 2
    assert [len(run.measurements) for run in history.runs()] == [2, 2]
    assert sql(history, "SELECT count(*) FROM measurements") == [(4,)]


def test_the_same_id_on_another_day_is_another_run(history: History) -> None:
    history.add(night(0))
    history.add(replace(night(1), id=night(0).id))
    assert history.count() == 2


WRITER = """
import sys
from pathlib import Path
from dataclasses import replace
from stripectl.results.history import History
from stripectl.results.run import Run
run, folder, name = Run.load(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3]
print("ready", flush=True)
sys.stdin.readline()
for number in range(15):
    History(folder).add(replace(run, id=f"{name} {number}"))
"""


def writer(run: Path, history: History, name: str, code: str = WRITER) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", code, str(run), str(history.folder), name]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


def test_writers_at_once_lose_nothing(history: History, tmp_path: Path) -> None:
    """From the first on, which makes the tables."""
    path = night(0).save(tmp_path)
    writers = [writer(path, history, name) for name in ("one", "two")]
    for each in writers:
        assert each.stdin
        each.stdin.write("go\n")
        each.stdin.flush()
    assert [each.communicate() and each.returncode for each in writers] == [0, 0]
    names = {run.id for run in history.runs()}
    assert names == {f"{name} {number}" for name in ("one", "two") for number in range(15)}
    assert all(len(run.measurements) == 2 for run in history.runs())


HALF = """
import sys
from pathlib import Path
from stripectl.results.history import History
with History(Path(sys.argv[2]))._open("rw") as db:
    db.execute("PRAGMA cache_size=1")  # so that pages reach the file before the end
    db.execute("BEGIN IMMEDIATE")
    db.execute("DELETE FROM runs")
    rows = [(at, at, "x" * 9999) for at in range(99)]
    db.executemany("INSERT INTO runs VALUES (?, ?, 'now', 0, '', '', ?, '')", rows)
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_a_killed_writer_leaves_nothing_half(history: History, tmp_path: Path) -> None:
    for number in range(3):
        history.add(night(number))
    process = writer(tmp_path, history, "killed", HALF)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (history.folder / "history.sqlite-journal").exists()
    history.check_writable()
    assert [run.id for run in history.runs()] == ["night 0", "night 1", "night 2"]


def test_a_writer_that_does_not_end_is_told(history: History, monkeypatch) -> None:
    history.add(night(0))
    monkeypatch.setattr("stripectl.results.history.BUSY_S", 0.05)
    other = sqlite3.connect(history.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for attempt in (lambda: history.add(night(1)), history.check_writable):
        with pytest.raises(BadInput, match="another program has held"):
            attempt()
    assert [run.id for run in history.runs()] == ["night 0"]  # readers need not wait
    other.close()


def spoil(history: History, how: str) -> None:
    content = history.path.read_bytes()
    if how == "garbage":
        history.path.write_bytes(b"\x93\xff\x00" * 4096)
    elif how == "text":
        history.path.write_text("id,created\n" * 500)
    elif how == "truncated":
        history.path.write_bytes(content[: len(content) // 2])
    elif how == "a page of noise":
        history.path.write_bytes(content[:4096] + b"\x5a" * 4096 + content[8192:])


@pytest.mark.parametrize("how", ["garbage", "text", "truncated", "a page of noise"])
def test_a_damaged_database_is_said_to_be(history: History, how: str) -> None:
    for number in range(10):
        history.add(night(number))
    spoil(history, how)
    before = history.path.read_bytes()
    for attempt in (history.runs, history.check_writable):
        with pytest.raises(BadInput, match="is not a history, or is damaged"):
            attempt()
    assert history.path.read_bytes() == before


def test_a_newer_schema_is_refused(history: History) -> None:
    history.add(night(0))
    sql(history, f"PRAGMA user_version={VERSION + 1}", "ALTER TABLE runs ADD COLUMN more")
    for attempt in (history.runs, history.check_writable, lambda: history.add(night(1))):
        with pytest.raises(BadInput, match="newer than this stripectl reads"):
            attempt()


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("CREATE TABLE runs (a, b)", "a database of another program"),
        (f"PRAGMA application_id={APPLICATION + 1}", "a database of another program"),
        (f"PRAGMA application_id={APPLICATION}", "tables that stripectl does not make"),
    ],
)
def test_a_database_that_is_no_history_is_left_alone(history: History, statement: str, why: str) -> None:
    history.folder.mkdir()
    sql(history, statement)
    before = history.path.read_bytes()
    for attempt in (history.runs, history.check_writable, lambda: history.add(night(0))):
        with pytest.raises(BadInput, match=why):
            attempt()
    assert history.path.read_bytes() == before


TRIGGER = "CREATE TRIGGER evil AFTER INSERT ON runs BEGIN DELETE FROM runs WHERE number < new.number; END"
VIEW = "CREATE VIEW evil AS SELECT * FROM runs"


@pytest.mark.parametrize("statement", [TRIGGER, VIEW, "CREATE INDEX evil ON runs (abs(number))"])
def test_nothing_in_a_database_runs(history: History, statement: str) -> None:
    history.add(night(0))
    sql(history, statement)
    for attempt in (history.runs, history.check_writable, lambda: history.add(night(1))):
        with pytest.raises(BadInput, match="tables that stripectl does not make"):
            attempt()


def test_an_empty_file_becomes_a_history(history: History) -> None:
    history.folder.mkdir()
    history.path.touch()
    history.check_writable()
    assert history.runs() == [] and history.count() == 0
    history.add(night(0))
    assert len(history.runs()) == 1


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE measurements SET content = '{'",
        "UPDATE measurements SET content = '[]'",
        "UPDATE measurements SET content = 7",
        "UPDATE measurements SET content = zeroblob(9)",
        "UPDATE measurements SET content = replace(content, '0.5,', '\"soon\",')",
        "UPDATE measurements SET content = '" + "[" * 9999 + "'",
        "UPDATE runs SET environment = '[1]'",
        "UPDATE runs SET environment = '{'",
        "UPDATE runs SET \"schema\" = 'stripectl.run/99'",
    ],
)
def test_what_is_read_is_checked(history: History, change: str) -> None:
    history.add(night(0))
    sql(history, change)
    with pytest.raises(BadInput, match="night 0"):
        history.runs()


@pytest.mark.parametrize("text", EVIL)
def test_text_is_text(history: History, text: str) -> None:
    plan = timed_ring("striped", 0.5)
    run = night(0, plan, replace(plan, plan=read_plan(text), target=read_target(text)), commit=text)
    run = replace(run, id=text, command=text)
    for _ in range(2):
        history.add(run)
    (found,) = history.runs(within={"plan": "ring/striped"})
    readable = printable(text.encode("utf-8", "replace").decode())
    assert (found.id, found.command) == (readable, readable)
    assert history.runs(within={"plan": "%"}) == history.runs(equal={"method": text}) == []
    assert history.count() == 1


@pytest.mark.parametrize("created", ["yesterday", "", "2026-13-01T00:00:00", "'; DROP TABLE runs"])
def test_a_run_without_a_date_has_no_place(history: History, created: str) -> None:
    with pytest.raises(BadInput, match="has no date"):
        history.add(replace(night(0), created=created))
    assert not history.path.exists()


def test_a_plan_that_cannot_be_read_is_kept_without_its_time(history: History) -> None:
    history.add(
        night(
            0, timed_ring("striped", 0.5), replace(timed_ring("zigzag", 0.4), plan=read_plan("ring/spiral/xla@ring=4"))
        )
    )
    (run,) = history.runs()
    assert [(m.status, m.median_s) for m in run.measurements] == [("ok", 0.5), ("failed", None)]


def test_nothing_is_left_where_it_is_only_asked_for(history: History) -> None:
    history.check_writable()
    assert not history.folder.exists()
    with pytest.raises(BadInput, match="there is no history in"):
        history.runs()


@pytest.mark.parametrize("folder", ["/proc/nowhere", "a-file", "a-file/history"])
def test_a_place_that_cannot_hold_one(folder: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a-file").write_text("")
    with pytest.raises(BadInput, match="Try --history"):
        History(Path(folder)).check_writable()
    with pytest.raises(BadInput, match=r"cannot make|cannot write or open"):
        History(Path(folder)).add(night(0))


NOBODY = """
import os, sys
from pathlib import Path
from stripectl import BadInput
from stripectl.results.history import History
from stripectl.results.run import Run
history, run = History(Path(sys.argv[1])), Run.load(Path(sys.argv[2]))
run, uri = run.readable(), Path.cwd().as_uri()  # import now what only this user may read
if os.getuid() == 0:
    os.setuid(65534)
assert len(history.runs()) == 1
for attempt in (history.check_writable, lambda: history.add(run)):
    try:
        attempt()
    except BadInput as error:
        print(error)
"""


def test_a_folder_that_cannot_be_written_can_be_read(tmp_path: Path) -> None:
    """By somebody who is not root, whom nothing stops."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        History(folder).add(night(0))
        (folder / "history.sqlite").chmod(0o444)
        folder.chmod(0o555)
        saved = night(1).save(tmp_path)
        command = [sys.executable, "-c", NOBODY, str(folder), str(saved)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        first, second = done.stdout.splitlines()
        assert first.startswith(f"cannot write in {folder}") and second.startswith("cannot write or open")
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


ON_PAPER = ["--target", "v5p:8", "--method", "simulated", "--quiet", "--seqlen", "64k", "--pass", "forward"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_bench_is_kept(here: Path, capsys) -> None:
    assert stripectl("bench", *ON_PAPER, "--output", "one", "--history", "kept") == 0
    assert "history kept/history.sqlite" in capsys.readouterr().out
    (run,) = History(here / "kept").runs()
    assert run.id == Run.load(here / "one").id
    assert len(run.measurements) == len(Run.load(here / "one").measurements)
    assert stripectl("bench", *ON_PAPER, "--output", "one", "--history", "kept", "--resume", "--layout", "all") == 0
    assert History(here / "kept").count() == 1


def test_a_search_of_tiles_is_kept(here: Path, monkeypatch) -> None:
    monkeypatch.setenv("STRIPECTL_HISTORY", "kept")
    assert stripectl("tune-tiles", *ON_PAPER, "--tile", "512,1024", "--no-cache") == 0
    assert History(here / "kept").count() == 1


@pytest.mark.parametrize("command", ["bench", "tune-tiles"])
def test_a_history_that_cannot_be_written_is_found_first(command: str, here: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("stripectl.runner.bench.bench", lambda *given: pytest.fail("something ran"))
    monkeypatch.setattr("stripectl.runner.tuning.search.tune", lambda *given: pytest.fail("something ran"))
    (here / "kept").write_text("")
    assert stripectl(command, *ON_PAPER, "--history", "kept") == 2
    assert capsys.readouterr().err.startswith("error: cannot write in")
    (here / "other").mkdir()
    (here / "other" / "history.sqlite").write_text("no database" * 99)
    assert stripectl(command, *ON_PAPER, "--history", "other") == 2
    assert "is not a history, or is damaged" in capsys.readouterr().err
    assert sorted(path.name for path in here.iterdir()) == ["kept", "other"]


def test_an_interrupted_run_is_kept(here: Path, monkeypatch) -> None:
    def interrupted(*given: object):
        yield from map(Final, (timed_ring("contiguous", 0.8), timed_ring("striped", 0.5)))
        raise KeyboardInterrupt

    monkeypatch.setattr("stripectl.runner.bench.bench", interrupted)
    assert stripectl("bench", *ON_PAPER, "--history", "kept") == 130
    assert [len(run.measurements) for run in History(here / "kept").runs()] == [2]


def test_a_dry_run_keeps_nothing(here: Path) -> None:
    assert stripectl("bench", *ON_PAPER, "--dry-run", "--history", "kept") == 0
    assert not (here / "kept").exists()


def test_runs_from_elsewhere_are_added(here: Path, capsys) -> None:
    paths = [str(night(number).save(here / str(number))) for number in range(3)]
    assert stripectl("history", "kept", "--add", *paths) == 0
    assert capsys.readouterr().out == "3 added; kept/history.sqlite holds 3 runs\n"
    assert stripectl("history", "kept", "--add", "1") == 0  # its folder
    assert "holds 3 runs" in capsys.readouterr().out
    assert stripectl("history", "kept", "--add", str(ROOT / "examples/runs/cpu.json.gz"), "nothing.json") == 2
    assert "cannot read nothing.json" in capsys.readouterr().err
    assert History(here / "kept").count() == 3


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "name the folder of a history"),
        (["nothing"], "there is no history in nothing/"),
        (["kept", "run.json"], "To add runs, write stripectl history kept --add run.json"),
        (["kept", "--add"], "name the runs to add"),
        (["kept", "--plan", "spiral"], "holds 1 runs, but none that matches has the metric time"),
        (["kept", "--metric", "mfu"], "none that matches has the metric mfu"),
        (["kept", "--metric", "tiem"], "is not one of"),
        (["kept", "--last", "0"], "not in the range"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_bad_input_is_one_clear_line(arguments: list[str], why: str, here: Path, capsys) -> None:
    History(here / "kept").add(night(0))
    before = sorted(here.rglob("*"))
    assert stripectl("history", *arguments) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ") and why in shown.err and shown.out == ""
    assert sorted(here.rglob("*")) == before


def test_a_profile_is_read_whatever_the_environment_names(here: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("STRIPECTL_HISTORY", "kept")
    assert stripectl("trace", "--read", "nothing") == 2
    assert "--history" not in capsys.readouterr().err
    assert stripectl("trace", "--read", "nothing", "--history", "kept") == 2
    assert "--history is for running a plan" in capsys.readouterr().err


def test_what_is_kept_is_json_and_numbers(history: History) -> None:
    """That other programs may read the file, too."""
    history.add(night(0))
    every = "SELECT id, git, environment, plan, median_s, content FROM runs JOIN measurements ON run = number"
    (row,) = sql(history, f"{every} WHERE plan LIKE '%striped%'")
    assert row[:2] == ("night 0", "0" * 12) and row[4] == 0.5
    assert json.loads(row[2])["host"]["cores"] == 2
    assert json.loads(row[5])["plan"] == row[3]
    assert os.path.getsize(history.path) < 65536


def test_a_history_that_leads_elsewhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """A link, a FIFO, and a journal by which SQLite deletes the file that it names."""
    monkeypatch.chdir(tmp_path)
    History(tmp_path / "kept").add(night(0))
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    path = tmp_path / "kept" / "history.sqlite"
    beside = path.with_name("history.sqlite-journal")
    for make, why in (
        (lambda: beside.symlink_to(theirs), "it is a link"),
        (lambda: os.mkfifo(beside), "it is not a regular file"),
        (lambda: beside.write_bytes(deleting_journal(path, theirs)), "names a file to delete"),
    ):
        make()
        for words in (["bench", *ON_PAPER, "--output", "run", "--history", "kept"], ["history", "kept"]):
            assert stripectl(*words) == 2 and why in capsys.readouterr().err
        beside.unlink()
    assert theirs.read_text() == "theirs" and History(tmp_path / "kept").count() == 1
    path.rename(tmp_path / "other.sqlite")
    path.symlink_to(tmp_path / "other.sqlite")
    assert stripectl("history", "kept") == 2 and "it is a link" in capsys.readouterr().err


def deleting_journal(path: Path, theirs: Path) -> bytes:
    """A hot journal of a history, as a killed writer leaves it, that says it is part of the journal `theirs`."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA cache_size=1")
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE runs SET environment = ?", ("x" * 10_000_000,))
        journal = path.with_name(f"{path.name}-journal").read_bytes()
        db.execute("ROLLBACK")
    name, page = str(theirs).encode(), 2**30 // 4096 + 1
    numbers = struct.pack(">II", len(name), sum(name))
    return journal + struct.pack(">I", page) + name + numbers + bytes.fromhex("d9d505f920a163d7")
