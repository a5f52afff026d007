"""Output goes into what is there: a file is replaced with its mode, a device or pipe is written, a link is refused."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stripectl.errors import BadInput
from stripectl.util import output
from stripectl.util.output import own_descriptor, write_atomically, write_output
from tests.support.command import run

RUN = str(Path(__file__).parents[2] / "examples/runs/tpu.json.gz")
COMPARE = ["compare", RUN, RUN]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_mode_of_the_umask_and_a_replaced_one_its_own(umask: int) -> None:
    before = os.umask(umask)
    try:
        for write in (write_atomically, write_output):
            write(Path("new"), "text")
            assert mode("new") == 0o666 & ~umask and Path("new").read_text() == "text"
            os.chmod("new", 0o640)
            write(Path("new"), "more")
            assert mode("new") == 0o640 and Path("new").read_text() == "more"
            Path("new").unlink()
    finally:
        os.umask(before)
    assert os.listdir() == []


@pytest.mark.parametrize("write", [write_atomically, write_output])
def test_links_and_folders_are_refused(write) -> None:
    Path("theirs").write_text("theirs")
    Path("folder").mkdir()
    Path("link").symlink_to("theirs")
    Path("nowhere").symlink_to("nothing")
    Path("looped").symlink_to("looped")
    for name, why in {"link": "a link", "nowhere": "a link", "looped": "a link", "folder": "Is a directory"}.items():
        with pytest.raises(BadInput, match=f"cannot write {name}: .*{why}"):
            write(Path(name), "ours")
    assert Path("theirs").read_text() == "theirs" and sorted(os.listdir()) == [
        "folder",
        "link",
        "looped",
        "nowhere",
        "theirs",
    ]


def test_a_link_among_the_folders_is_followed() -> None:
    Path("folder").mkdir()
    Path("link").symlink_to("folder")
    write_output(Path("link/file"), "text")
    assert Path("folder/file").read_text() == "text"


def test_a_device_stays_a_device() -> None:
    for name, code in (("/dev/null", 0), ("/dev/full", 2)):
        before = os.stat(name)
        for option in ("--markdown", "--junit", "--github-benchmark", "--bencher"):
            assert run(*COMPARE, option, name) == code
        assert run("report", RUN, "--format", "md", "-o", name) == code
        after = os.stat(name)
        assert (after.st_rdev, after.st_ino, after.st_mode) == (before.st_rdev, before.st_ino, before.st_mode)


def test_a_pipe_is_written_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo("pipe")
    read = list[str]()
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_text()))
    reader.start()
    write_output(Path("pipe"), "x" * 200_000)
    reader.join()
    assert len(read[0]) == 200_000 and stat.S_ISFIFO(os.stat("pipe").st_mode)
    monkeypatch.setattr(output, "WAIT_S", 0.1)
    with pytest.raises(BadInput, match="no process reads it"):
        write_output(Path("pipe"), "text")
    with pytest.raises(BadInput, match="it is not a regular file"):
        write_atomically(Path("pipe"), "text")


def test_open_files_of_the_process_are_found_by_their_names() -> None:
    found = {name: own_descriptor(Path(name)) for name in ("/dev/stdout", "/dev/stderr", "/dev/fd/0", "/dev/null")}
    assert found == {"/dev/stdout": 1, "/dev/stderr": 2, "/dev/fd/0": 0, "/dev/null": None}
    Path("link").symlink_to("/dev/stdout")
    assert own_descriptor(Path("link")) is None and own_descriptor(Path("file")) is None


SHELL = {
    "/dev/stdout into a file": (f"{{ echo before; $S report {RUN} --format md -o /dev/stdout; }} >all", "before\n##"),
    "/dev/stdout into a pipe": (f"$S report {RUN} --format md -o /dev/stdout | cat >all", "##"),
    "a process of bash": (f"$S report {RUN} --format md -o >(cat >all) && sleep 0.2", "##"),
}


@pytest.mark.parametrize("how", SHELL)
def test_a_shell_gets_the_output_where_it_wants_it(how: str) -> None:
    script, begins = SHELL[how]
    around = os.environ | {"S": f"{sys.executable} -m stripectl"}
    done = subprocess.run(["bash", "-c", script], env=around, capture_output=True, text=True)
    assert not done.stderr
    assert Path("all").read_text().startswith(begins) and len(Path("all").read_text()) > 500
    assert os.path.exists("/dev/stdout")
