"""Paths that no file can have are refused in one line, of every option and argument."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from stripectl.cli.app import COMMANDS, group
from stripectl.cli.paths import CheckedPath, why_impossible
from tests.support.command import run

RUN = str(Path(__file__).parents[2] / "examples/runs/tpu.json.gz")
CONTEXT = click.Context(group)
PARAMETERS = [(name, each) for name in COMMANDS for each in group.get_command(CONTEXT, name).params]  # type: ignore


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_path_is_checked() -> None:
    paths = [(name, each.name) for name, each in PARAMETERS if isinstance(each.type, click.Path | click.File)]
    assert len(paths) >= 20
    assert all(isinstance(each.type, CheckedPath) for _, each in PARAMETERS if isinstance(each.type, click.Path))
    assert not [each for _, each in PARAMETERS if isinstance(each.type, click.File)]


@pytest.mark.parametrize(
    ("name", "parameter"), [each for each in PARAMETERS if isinstance(each[1].type, CheckedPath)], ids=str
)
def test_an_empty_path_and_one_that_is_too_long_are_one_line(name: str, parameter: click.Parameter, capsys) -> None:
    words = [parameter.opts[-1]] if isinstance(parameter, click.Option) else []
    for path, why in (("", "it is empty"), ("x" * 256, "File name too long"), ("x/" * 3000, "File name too long")):
        assert run(name, *words, path) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: cannot use the ") and why in line
    assert os.listdir() == []


def test_what_else_no_path_can_be() -> None:
    Path("looped").symlink_to("looped")
    assert why_impossible("looped") == "Too many levels of symbolic links"
    assert why_impossible("a\0b") == "it holds a zero byte"
    assert why_impossible("nothing/here") is why_impossible(".") is None


CASES = {
    "a folder": "bench --seqlen 8k --target v5e:8 --method simulated -o {closed}/run",
    "a run": "report {closed}/run",
    "a model": "topology --target v5e:8 --model {closed}/model.yaml",
    "a config.json": "topology --target v5e:8 --model {closed}/config.json",
    "a history": "history {closed}/history",
    "a file of verdicts": f"compare {RUN} {RUN} --junit {{closed}}/junit.xml",
    "a profile": "trace --read {closed}/profile",
}
# root, as which tests may run, may read everything else
BOUND = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.getuid() == 0 else []
NO_NAME = ["unshare", "--user", "--map-user", "1234567"]


def works(*command: str) -> bool:
    return not command or bool(shutil.which(command[0]) and not subprocess.run([*command, "true"]).returncode)


def stripectl(before: list[str], words: str, **more: Any) -> "subprocess.CompletedProcess[str]":
    command = [*before, sys.executable, "-m", "stripectl", *words.split()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **more)


@pytest.mark.faults
@pytest.mark.skipif(not works(*BOUND), reason="root cannot be bound here")
@pytest.mark.parametrize("case", CASES)
def test_what_the_user_must_not_read_is_one_line(case: str, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    done = stripectl(BOUND, CASES[case].format(closed=closed))
    closed.chmod(0o700)
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
    assert done.returncode == 2 and line.startswith("error: ") and "Permission denied" in line


@pytest.mark.faults
@pytest.mark.skipif(not works(*NO_NAME), reason="user namespaces cannot be made here")
def test_a_user_without_a_name_has_no_cache() -> None:
    around = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
    words = "tune-tiles --target v5e:8 --method simulated --seqlen 8k --pass forward --layout striped --quiet"
    done = stripectl(NO_NAME, words, env=around)
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.faults
def test_a_current_folder_that_was_removed_is_one_line(tmp_path: Path) -> None:
    script = f"mkdir gone && cd gone && rmdir ../gone && {sys.executable} -P -m stripectl"
    for words in ("bench --seqlen 8k --target v5e:8 --method simulated", "report", "check claims.yaml", "list"):
        done = subprocess.run(["sh", "-c", f"{script} {words}"], cwd=tmp_path, capture_output=True, text=True)
        (line,) = done.stderr.splitlines()
        assert done.returncode == 2 and "cannot work in the current folder" in line
