"""Commands that run plans, in the test's own process, on a backend that needs no device."""

import json
from functools import partial
from pathlib import Path

import pytest

from stripectl.cli import main
from stripectl.results.run import Run
from tests.support.fake_backend import FakeBackends

SMALL = ("--seqlen", "4k", "--heads", "4", "--head-dim", "64", "--tile", "128", "--pass", "forward", "--quiet")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    use(monkeypatch)
    return tmp_path


def use(monkeypatch: pytest.MonkeyPatch, **how: str) -> None:
    for user in ("bench", "tuning.search"):
        monkeypatch.setattr(f"stripectl.runner.{user}.LocalBackends", partial(FakeBackends, **how))


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as done:
        main([*arguments])
    return int(done.value.code or 0)


def loaded(folder: str = "run") -> dict[str, tuple[str, str]]:
    """(method, status) by layout, of plans on several devices."""
    return {m.plan.layout: (m.method, m.status) for m in Run.load(Path(folder)).measurements if m.devices > 1}


@pytest.mark.parametrize("method", ["measured", "compiled", "simulated"])
def test_bench_runs_every_layout_by_the_method_that_is_asked_for(here: Path, method: str, capsys) -> None:
    target = "cpu:4" if method == "measured" else "v5e:4x4"
    assert run("bench", "--target", target, "--method", method, "--output", "run", *SMALL) == 0
    assert loaded() == dict.fromkeys(("contiguous", "striped", "zigzag"), (method, "ok"))
    assert "Use striped ring attention with tiles of 128 x 128: 1.20x faster" in capsys.readouterr().out
    assert (here / "run" / "report.html").exists()


def test_bench_measures_what_is_here_and_names_its_devices(here: Path) -> None:
    assert run("bench", "--target", "cpu:4", "--output", "run", *SMALL) == 0
    found = Run.load(Path("run"))
    assert {m.method for m in found.measurements if m.devices == 4} == {"measured"}
    assert [each["count"] for each in found.environment["devices"]] == [4]


def test_bench_ends_with_a_refusal_as_a_result(here: Path, monkeypatch, capsys) -> None:
    use(monkeypatch, refuses="zigzag")
    assert run("bench", "--target", "cpu:4", "--method", "measured", "--output", "run", *SMALL) == 0
    assert loaded()["zigzag"] == ("measured", "refused")
    assert "the fake backend refuses it" in capsys.readouterr().out


def test_bench_keeps_what_it_has_when_it_is_interrupted_and_goes_on_from_there(here: Path, monkeypatch) -> None:
    asked = ("bench", "--target", "v5e:4x4", "--method", "compiled", "--output", "run", *SMALL)
    use(monkeypatch, interrupted="zigzag")
    assert run(*asked) == 130
    assert set(loaded()) == {"contiguous", "striped"}
    use(monkeypatch)
    assert run(*asked, "--resume") == 0
    assert set(loaded()) == {"contiguous", "striped", "zigzag"}


def test_bench_prints_the_run_as_json_and_nothing_else(here: Path, capsys) -> None:
    assert run("bench", "--target", "v5e:4x4", "--method", "simulated", "--output", "run", "--json", *SMALL) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["recommendation"]["plan"].startswith("ring/striped")


def test_the_longest_sequence_is_sought_through_the_backend(here: Path) -> None:
    asked = ("--target", "v5e:4x4", "--method", "compiled", "--layout", "striped", "--tile", "128", "--pass", "forward")
    assert run("bench", *asked, "--seqlen", "max", "--output", "run", "--quiet") == 0
    (found,) = Run.load(Path("run")).measurements
    assert found.compiled_program and found.compiled_program.longest.reason.startswith("positions are 32-bit")


def test_tune_tiles_compiles_a_few_of_its_candidates(here: Path, capsys) -> None:
    asked = ("--target", "v5e:4x4", "--method", "compiled", "--layout", "striped", "--no-cache", "--output", "run")
    assert run("tune-tiles", "--seqlen", "64k", *SMALL[2:6], "--pass", "forward", "--quiet", *asked) == 0
    methods = [m.method for m in Run.load(Path("run")).measurements]
    assert methods.count("compiled") == 8 and "compiled, predicted" in capsys.readouterr().out


def test_a_plan_is_traced_on_devices_that_are_here_alone(here: Path, capsys) -> None:
    assert run("trace", "ring/striped/xla@ring=4,tile=128", "--target", "cpu:4", *SMALL[:6], "--quiet") == 0
    assert "profile none" in capsys.readouterr().out
