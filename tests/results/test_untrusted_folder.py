"""The folder of a run may come from somebody else: its lock and its journal lead nowhere, wait for nobody and have the
limits of a run."""

import fcntl
import json
import os
from pathlib import Path

import pytest

from stripectl.errors import BadInput
from stripectl.profiling.profiler import FOLDER, Tracer
from stripectl.results import journal
from stripectl.results.lock import FILE as LOCK
from stripectl.results.run import Run
from stripectl.results.schema import MAX_JOURNAL_BYTES
from stripectl.results.writer import RunWriter
from tests.support.command import run
from tests.support.journals import empty_run, line_for, nth_ring

COMMAND = ["bench", "--target", "v5e:8", "--method", "simulated", "--quiet", "--layout", "striped", "--pass", "forward"]
COMMAND += ["--seqlen", "8k", "--output", "run"]
THEIRS = "export PATH\n"


@pytest.fixture(autouse=True)
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The digest of a run in the folder `run`, and a file of the user beside it."""
    monkeypatch.chdir(tmp_path)
    Path("theirs").write_text(THEIRS)
    kept = RunWriter(empty_run(), Path("run"))
    kept.add(nth_ring(0, 1.0))
    return kept.saved


def lead(name: str, kind: str) -> None:
    """Put something that is no regular file in the run's folder."""
    path = Path("run", name)
    path.unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "hard link":
        path.hardlink_to("theirs")
    else:
        path.symlink_to({"link": "../theirs", "link to nowhere": "../nowhere", "device": "/dev/zero"}[kind])


KINDS = {
    "link": "it is a link",
    "link to nowhere": "it is a link",
    "device": "it is a link",
    "FIFO": "it is not a regular file",
    "folder": "Is a directory",
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in (LOCK, journal.FILE, "run.json")
        for kind in KINDS
        if (name, kind) != ("run.json", "folder")
    ],
)
def test_a_file_of_a_run_that_leads_elsewhere_is_refused(name: str, kind: str, capsys) -> None:
    lead(name, kind)
    for words in ([*COMMAND, "--resume"], *([["report", "run", "--no-open"]] if name != LOCK else [])):
        assert run(*words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert KINDS[kind] in line and not Path("run/report.html").exists()
    assert Path("theirs").read_text() == THEIRS and not Path("nowhere").exists()


def test_the_lock_of_a_new_run_leads_nowhere_either(capsys) -> None:
    Path("run/run.json").unlink()
    lead(LOCK, "link")
    assert run(*COMMAND) == 2 and "it is a link" in capsys.readouterr().err
    assert Path("theirs").read_text() == THEIRS


def test_a_second_name_of_another_file_is_not_written(saved: str, capsys) -> None:
    lead(journal.FILE, "hard link")
    with pytest.raises(BadInput, match="it has a second name"):
        journal.append(Path("run"), saved, "key", nth_ring(1, 1.0))
    Path("run", journal.FILE).unlink()
    lead(LOCK, "hard link")
    assert run(*COMMAND, "--resume") == 2 and "it has a second name" in capsys.readouterr().err
    assert Path("theirs").read_text() == THEIRS


@pytest.mark.parametrize("name", [FOLDER, f"{FOLDER}/plan"])
def test_a_profile_is_not_written_through_a_link(name: str) -> None:
    Path("elsewhere/plan").mkdir(parents=True)
    Path("elsewhere/plan/theirs").write_text(THEIRS)
    Path("run", name).parent.mkdir(exist_ok=True)
    Path("run", name).symlink_to(Path("elsewhere", "plan" if "/" in name else "").absolute())
    with Tracer(Path("run")) as tracer, pytest.raises(BadInput, match="because it is a link"):
        tracer.capture(tracer.reader, "0", Path("run", FOLDER, "plan").absolute(), 1.0)
    assert [path.name for path in Path("elsewhere/plan").iterdir()] == ["theirs"]


@pytest.mark.parametrize("kind", ["link", "FIFO"])
def test_a_report_is_not_written_through_a_link_or_into_a_pipe(kind: str, capsys) -> None:
    lead("report.html", kind)
    assert run("report", "run", "--no-open", "--quiet") == 2 and KINDS[kind] in capsys.readouterr().err
    assert run(*COMMAND, "--resume") == 2 and KINDS[kind] in capsys.readouterr().err
    assert Path("theirs").read_text() == THEIRS and len(Run.load(Path("run")).measurements) == 3


def test_lines_for_another_file_change_nothing(saved: str) -> None:
    Path("run", journal.FILE).write_text(
        "\n".join([line_for("0" * 64, nth_ring(0, 9.0).to_json()), json.dumps({"run": "id", "by": "key"}), "7"])
    )
    assert [m.median_s for m in Run.load(Path("run")).measurements] == [1.0]
    Path("run", journal.FILE).write_text(line_for(saved, nth_ring(0, 2.0).to_json()))
    assert [m.median_s for m in Run.load(Path("run")).measurements] == [2.0]
    Path("run/run.json").write_text(Path("run/run.json").read_text() + " ")
    assert [m.median_s for m in Run.load(Path("run")).measurements] == [1.0]


def test_a_journal_has_the_limits_of_a_run(saved: str, capsys) -> None:
    path, line = Path("run", journal.FILE), line_for(saved, nth_ring(1, 1.0).to_json())
    deep = "[" * 200_000 + "]" * 200_000
    bad = {
        deep: "nested too deeply",
        line.replace('"reason": null', f'"reason": {"[" * 40}{"]" * 40}'): "nested too deeply",
        line.replace('"median_s": 1.0', '"median_s": 1e-300'): "is not a number",
        line.replace('"by": "key"', '"by": "what"'): "is not a complete journal",
        line.replace('"by": "key"', '"by": []'): "is not a complete journal",
        "[]," * (2**22 + 1): "lists and mappings",
        "0," * 2**24 + "0,": "values",
    }
    for text, why in bad.items():
        path.write_text(text)
        assert run("report", "run", "--format", "md") == 2, why
        (said,) = capsys.readouterr().err.splitlines()
        assert why in said
    path.write_text("")
    os.truncate(path, MAX_JOURNAL_BYTES + 1)
    assert run("report", "run", "--format", "md") == 2 and "it is larger than" in capsys.readouterr().err


def test_text_of_a_journal_is_escaped(saved: str) -> None:
    said = {**nth_ring(0, 1.0).to_json(), "status": "refused", "reason": "\x1b]0;owned\x07\u202e"}
    Path("run", journal.FILE).write_text(line_for(saved, said))
    (found,) = Run.load(Path("run")).measurements
    assert str(found.reason) == "\ufffd]0;owned\ufffd\ufffd"


def test_text_of_a_lock_is_escaped(capsys) -> None:
    with Path("run", LOCK).open("w") as held:
        for holder in ({"pid": 1, "host": "\x1b[2J", "since": ""}, [], "[" * 200_000, {"pid": "9" * 10**6}):
            held.truncate(0), held.seek(0)
            held.write(holder if isinstance(holder, str) else json.dumps(holder))
            held.flush()
            fcntl.flock(held, fcntl.LOCK_EX)
            assert run(*COMMAND, "--resume") == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert "another stripectl process writes in run" in line and line.isprintable() and len(line) < 700
