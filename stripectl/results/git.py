"""The commit of the current folder. The folder may be somebody's: git runs no program that its configuration names, and
changes nothing in it."""

import os
import signal
import subprocess
from collections.abc import Mapping

TIMEOUT_S = 5.0  # of one question
DESCRIBE = ("describe", "--always", "--abbrev=12")
# Without the index being written, which runs a hook, and without submodules, which have a configuration of their own.
CHANGES = ("--no-optional-locks", "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
FILTERS = ("config", "--null", "--name-only", "--get-regexp", r"^filter\.")
WITHOUT_PROGRAMS = {"core.fsmonitor": "false", "core.hooksPath": os.devnull}


def git_commit() -> str | None:
    """The commit of the current folder, marked where files differ from it; None outside a repository, or where git
    takes too long."""
    commit, filters = ask(DESCRIBE, {}), ask(FILTERS, {})
    if commit is None:
        return None
    own = {key: "false" if key.endswith(".required") else "" for key in (filters or "").split("\0") if key}
    changes = ask(CHANGES, WITHOUT_PROGRAMS | own)
    return None if changes is None else commit.strip() + ("-dirty" if changes else "")


def ask(question: tuple[str, ...], settings: Mapping[str, str]) -> str | None:
    """Run git with these settings in place of the folder's, and return its output; None where it fails. The processes
    that it started end with it."""
    known = {f"GIT_CONFIG_KEY_{at}": key for at, key in enumerate(settings)}
    known |= {f"GIT_CONFIG_VALUE_{at}": value for at, value in enumerate(settings.values())}
    environment = os.environ | known | {"GIT_CONFIG_COUNT": str(len(settings))}
    try:
        process = subprocess.Popen(
            ["git", *question],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError:
        return None
    try:
        answer = process.communicate(timeout=TIMEOUT_S)[0]
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return answer if process.returncode == 0 else None
