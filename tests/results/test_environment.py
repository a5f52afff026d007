"""What a run says of the machine that it ran on."""

import subprocess
import sys

import pytest

from stripectl.results import environment

SPIN = "print('spins', flush=True)\nwhile True: pass"


def test_other_programs_are_told_from_the_load_of_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (100.0, 100.0, 100.0))
    monkeypatch.setattr(environment, "busy_cores", lambda: 0.1)
    assert environment.warnings() == []
    monkeypatch.setattr(environment, "busy_cores", lambda: 99.0)
    assert environment.warnings() == [
        f"other programs keep 99.0 of {len(environment.cores())} cores busy; times will be noisy"
    ]


def test_a_busy_core_is_counted() -> None:
    with subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE) as busy:
        assert busy.stdout and busy.stdout.readline()
        assert environment.busy_cores() > 0.5
        busy.kill()


def test_a_system_without_times_of_its_cores_has_a_load_average(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathlib.Path.read_text", lambda path: "")
    monkeypatch.setattr("os.getloadavg", lambda: (3.5, 0.0, 0.0))
    assert environment.busy_cores() == 3.5
