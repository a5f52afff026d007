"""The environment of a worker."""

import pytest

from stripectl.processes import worker_environment


def flags(monkeypatch: pytest.MonkeyPatch, own: str) -> dict[str, str]:
    monkeypatch.setenv("XLA_FLAGS", own)
    found = worker_environment({}, pinned=True)["XLA_FLAGS"].split()
    return dict(each.split("=") for each in found)


def test_a_pinned_worker_has_one_thread_and_one_device_whatever_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    own = "--xla_force_host_platform_device_count=8 --xla_cpu_multi_thread_eigen=true"
    assert flags(monkeypatch, own) == {
        "--xla_cpu_prefer_vector_width": "512",
        "--xla_cpu_multi_thread_eigen": "false",
    }


def test_the_users_own_vector_width_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flags(monkeypatch, "--xla_cpu_prefer_vector_width=256")["--xla_cpu_prefer_vector_width"] == "256"


def test_a_worker_that_is_not_pinned_has_the_users_flags_and_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=here")
    found = worker_environment({"LIBTPU_INIT_ARGS": "--a=b"}, pinned=False)
    assert (found["XLA_FLAGS"], found["LIBTPU_INIT_ARGS"]) == ("--xla_dump_to=here", "--a=b")
