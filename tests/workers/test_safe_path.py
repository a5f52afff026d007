"""Files of the current folder are never imported, and git runs no program of a folder's configuration."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest

from stripectl.results import git
from stripectl.workers.process import safe_path_environment
from tests.support.golden import PROFILES, xspace
from tests.support.processes import alive, wait_for

ROOT = Path(__file__).parents[2]
STRANGER = "from pathlib import Path\nPath({mark!r}).touch()\nraise SystemExit('a module of the folder was imported')\n"
SMALL = ["--seqlen", "1k", "--heads", "1", "--head-dim", "16", "--pass", "forward", "--layout", "striped", "--quiet"]
COMMANDS = [
    ["list"],
    ["doctor"],
    ["bench", "--target", "v5p:2x2x1", "--method", "simulated", *SMALL, "-o", "run"],
    ["report", "run", "--no-open"],
    ["compare", "run", "run"],
    ["topology", "--target", "v5p:2x2x1"],
    ["accuracy"],
    ["trace", "--read", "one.xplane.pb"],
    ["bench", "--target", "cpu:2", "--method", "measured", *SMALL],
    ["tune-tiles", "--target", "cpu:2", *SMALL, "--time-budget", "2s", "--no-cache"],
    ["trace", "ring/striped/xla@ring=2", "--target", "cpu:2", *SMALL[:8], "--quiet"],
]
QUICK = [COMMANDS[0], COMMANDS[8]]


def names_of_modules() -> set[str]:
    """Of the standard library, and of every direct dependency."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    found = {name for name in sys.stdlib_module_names if not name.startswith("_")}
    provided = metadata.packages_distributions()
    wanted = {text.split("[")[0].split(">")[0].split("=")[0].split(";")[0].strip().lower() for text in texts}
    return found | {name for name, packages in provided.items() if wanted & {each.lower() for each in packages}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a module of each of these names that leaves a mark, and a profile."""
    made = tmp_path / "folder"
    made.mkdir()
    for name in names_of_modules():
        (made / f"{name}.py").write_text(STRANGER.format(mark=str(tmp_path / f"imported-{name}")))
    (made / "one.xplane.pb").write_bytes(xspace((PROFILES / "cpu.txtpb").read_text()))
    return made


def check(commands: Sequence[Sequence[str]], folder: Path) -> None:
    assert len(list(folder.glob("*.py"))) > 150
    console = Path(sys.executable).with_name("stripectl")
    for command in commands:
        done = subprocess.run([console, *command], cwd=folder, capture_output=True, text=True, timeout=300)
        assert not list(folder.parent.glob("imported-*")), (command, done.stderr)
        assert done.returncode in (0, 1), (command, done.stderr)  # doctor says what is missing


def test_modules_of_the_current_folder_are_not_imported(folder: Path) -> None:
    check(QUICK, folder)


@pytest.mark.faults
def test_no_command_imports_modules_of_the_current_folder(folder: Path) -> None:
    check(COMMANDS, folder)


def test_python_m_stripectl_imports_none_after_it_began(tmp_path: Path) -> None:
    """Python itself puts the folder on its path; modules that stripectl alone imports do not come from there."""
    (tmp_path / "click.py").write_text("raise SystemExit('imported')\n")
    done = subprocess.run(
        [sys.executable, "-m", "stripectl", "--version"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_environment_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative entries of PYTHONPATH mean the current folder; the secret is of connections alone."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", ".", "/absolute", "relative"]))
    monkeypatch.setenv("STRIPECTL_TOKEN", "secret")
    monkeypatch.setenv("STRIPECTL_TOKEN_FILE", "file")
    found = safe_path_environment()
    assert (found["PYTHONPATH"], found["PYTHONSAFEPATH"]) == ("/absolute", "1")
    assert not [name for name in found if name.startswith("STRIPECTL_TOKEN")]
    monkeypatch.setenv("PYTHONPATH", "")
    assert "PYTHONPATH" not in safe_path_environment()


def run_git(*words: str) -> None:
    own = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *own, *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose configuration names a program wherever git runs one, in a folder of its own."""
    made = tmp_path / "repository"
    made.mkdir()
    monkeypatch.chdir(made)
    run_git("init", "--quiet")
    (made / ".gitattributes").write_text("*.txt filter=strange=one\n*.md filter=long\n")
    (made / "file.txt").write_text("one\n")
    (made / "file.md").write_text("one\n")
    run_git("add", ".")
    run_git("commit", "--quiet", "-m", "one")
    program = made / "program"
    program.write_text(f"#!/bin/sh\necho $0 $@ >> {tmp_path}/ran\ncat\n")
    program.chmod(0o755)
    for name in ("core.fsmonitor", "filter.strange=one.clean", "filter.long.process", "filter.long.clean"):
        run_git("config", name, str(program))
    run_git("config", "filter.long.required", "true")
    hooks = made / ".git" / "hooks"
    for name in ("post-index-change", "fsmonitor-watchman"):
        (hooks / name).write_text(program.read_text())
        (hooks / name).chmod(0o755)
    return made


def test_git_runs_no_program_of_the_folder(repository: Path) -> None:
    ran = repository.parent / "ran"
    os.utime(repository / "file.txt", (1, 1))  # git must read them again
    os.utime(repository / "file.md", (1, 1))
    before = (repository / ".git" / "index").read_bytes()
    clean = git.git_commit()
    assert clean and len(clean) >= 7 and not clean.endswith("-dirty")
    (repository / "file.md").write_text("two\n")
    assert git.git_commit() == f"{clean}-dirty"
    assert not ran.exists() and (repository / ".git" / "index").read_bytes() == before
    subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True)
    assert ran.exists(), "the configuration of this test has an effect"


def test_outside_of_a_repository_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert git.git_commit() is None


def test_what_git_started_ends_with_its_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git, "TIMEOUT_S", 0.2)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "git").write_text(f"#!/bin/sh\nsleep 300 & echo $! > {tmp_path}/child\nsleep 300\n")
    (tmp_path / "git").chmod(0o755)
    assert git.ask(git.DESCRIBE, {}) is None
    child = int((tmp_path / "child").read_text())
    assert wait_for(lambda: not alive(child))  # a killed process needs a moment
