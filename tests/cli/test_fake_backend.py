"""Commands that run plans, in the test's own process, on a backend that needs no device."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from stripectl.core.kernel import KnownTile, kernels
from stripectl.core.layout import Tile
from stripectl.results.run import Run
from stripectl.workers.hosts import HostLost
from tests.support.command import run
from tests.support.fake_backend import FakeBackends

SMALL = ("--seqlen", "4k", "--heads", "4", "--head-dim", "64", "--tile", "128", "--pass", "forward", "--quiet")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    use(monkeypatch)
    return tmp_path


def use(monkeypatch: pytest.MonkeyPatch, **how: object) -> None:
    for user in ("bench", "tuning.search"):
        monkeypatch.setattr(f"stripectl.runner.{user}.LocalBackends", partial(FakeBackends, **how))


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


def test_plans_of_all_later_lengths_are_refused_when_a_host_is_lost_and_resume_completes(here, monkeypatch) -> None:
    asked = ("bench", "--target", "cpu:4", "--method", "measured", "--output", "run", *SMALL, "--seqlen", "4k,8k")
    use(monkeypatch, interrupted="zigzag", interrupt=HostLost("host 1 is gone", "Try again."))
    assert run(*asked) == 1
    made = Run.load(Path("run")).measurements
    kept = [m for m in made if m.status == "ok"]
    assert {(m.workload.seq_len, m.plan.layout) for m in kept} == {(4096, "contiguous"), (4096, "striped")}
    lost = [m for m in made if m.status == "refused"]
    assert len(lost) == 6 and {str(m.reason) for m in lost} == {"a host was lost before this plan ran: host 1 is gone"}
    use(monkeypatch)
    assert run(*asked, "--resume") == 0
    after = Run.load(Path("run")).measurements
    assert {m.key for m in after} == {m.key for m in made} and {m.status for m in after} == {"ok"}


def test_bench_prints_the_run_as_json_and_nothing_else(here: Path, capsys) -> None:
    assert run("bench", "--target", "v5e:4x4", "--method", "simulated", "--output", "run", "--json", *SMALL) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["recommendation"]["plan"].startswith("ring/striped")


def test_the_longest_sequence_is_sought_through_the_backend(here: Path) -> None:
    asked = ("--target", "v5e:4x4", "--method", "compiled", "--layout", "striped", "--tile", "128", "--pass", "forward")
    assert run("bench", *asked, "--seqlen", "max", "--output", "run", "--quiet") == 0
    (found,) = Run.load(Path("run")).measurements
    assert found.compiled_program and found.compiled_program.longest
    assert str(found.compiled_program.longest.reason).startswith("positions are 32-bit")


def test_tune_tiles_compiles_a_few_of_its_candidates(here: Path, capsys) -> None:
    asked = ("--target", "v5e:2x2", "--method", "compiled", "--layout", "striped", "--no-cache", "--output", "run")
    assert run("tune-tiles", "--seqlen", "4k", *SMALL[2:6], "--pass", "forward", "--quiet", *asked) == 0
    methods = [m.method for m in Run.load(Path("run")).measurements]
    assert methods.count("compiled") == 8 and "compiled, predicted" in capsys.readouterr().out


def test_a_search_begins_with_the_tile_of_a_published_sweep_after_the_default(here: Path, monkeypatch, capsys) -> None:
    known = KnownTile(Tile(128, 1024), "the fastest in a sweep")
    about = replace(kernels["splash"], known_tile=lambda *_: known)
    monkeypatch.setitem(kernels._cache, "splash", about)
    asked = ("--target", "v5e:2x2", "--method", "compiled", "--layout", "striped", "--no-cache", "--output", "run")
    assert run("tune-tiles", "--seqlen", "4k", *SMALL[2:6], "--kernel", "splash", "--quiet", *asked) == 0
    compiled = [m.plan for m in Run.load(Path("run")).measurements if m.method == "compiled"]
    assert known.tile in [plan.tile for plan in compiled if plan.backward is None]
    assert known.tile in [plan.backward for plan in compiled]
    printed = capsys.readouterr().out
    assert "start   forward tile 128x1024: the fastest in a sweep" in printed
    assert "start   backward tile 128x1024: the fastest in a sweep" in printed


def test_a_plan_is_traced_on_devices_that_are_here_alone(here: Path, capsys) -> None:
    assert run("trace", "ring/striped/xla@ring=4,tile=128", "--target", "cpu:4", *SMALL[:6], "--quiet") == 0
    assert "profile none" in capsys.readouterr().out


TILES = (*SMALL[:6], "--layout", "striped", "--tile", "64,128,256x128", "--min-samples", "3", "--quiet")


def tiles(passes: str = "forward") -> dict[str, tuple[str, str, int]]:
    """(method, status, samples) by the tile of a pass."""
    own = [m for m in Run.load(Path("run")).measurements if m.workload.passes == passes]
    return {str(m.plan.tiles[passes.split("-")[-1]]): (m.method, m.status, len(m.samples_s)) for m in own}


@pytest.mark.parametrize("strategy", ["race", "exhaustive"])
def test_tune_tiles_runs_its_candidates_where_their_devices_are(here: Path, strategy: str) -> None:
    asked = ("tune-tiles", "--target", "cpu:4", "--method", "measured", "--strategy", strategy, "--output", "run")
    assert run(*asked, *TILES) == 0
    assert tiles()["256x128"] == ("measured", "ok", 3) and set(tiles()) == {"64x64", "128x128", "256x128"}
    assert tiles("forward-backward").keys() == tiles().keys()
    backward = [m.plan for m in Run.load(Path("run")).measurements if m.workload.passes == "forward-backward"]
    assert {str(plan.tile) for plan in backward} == {"256x128", "64x64"}  # the best of the forward pass, and the usual


def test_tune_tiles_times_tiles_where_plans_cannot_run(here: Path) -> None:
    asked = ("tune-tiles", "--target", "cpu:4", "--method", "simulated", "--pass", "forward", "--output", "run")
    assert run(*asked, *TILES) == 0
    assert set(tiles().values()) == {("simulated", "ok", 0)}
    sources = {str(m.plan.tile): m.cost_source.source for m in Run.load(Path("run")).measurements if m.cost_source}
    assert sources["256x128"] == "datasheet" and "one_block" in sources.values()  # the finalists run again


def test_tune_tiles_keeps_its_samples_when_it_is_interrupted(here: Path, monkeypatch) -> None:
    asked = ("tune-tiles", "--target", "cpu:4", "--method", "measured", "--strategy", "exhaustive", "--output", "run")
    first, second = list[str](), list[str]()
    use(monkeypatch, interrupted="tile=256x128", sampled=first)
    assert run(*asked, "--pass", "forward", *TILES) == 130
    use(monkeypatch, sampled=second)
    assert run(*asked, "--pass", "forward", *TILES, "--resume") == 0
    assert {each[2] for each in tiles().values()} == {3} and len(first) == 2 and len(first + second) == 9
    third = list[str]()
    use(monkeypatch, sampled=third)
    assert run(*asked[:-1], "again", "--pass", "forward", *TILES) == 0
    assert not third  # from the cache


def test_tune_tiles_refuses_a_tile_as_its_backend_does(here: Path, monkeypatch, capsys) -> None:
    use(monkeypatch, refuses="tile=64")
    asked = ("tune-tiles", "--target", "cpu:4", "--method", "measured", "--pass", "forward", "--output", "run")
    assert run(*asked, *TILES) == 0
    assert tiles()["64x64"] == ("measured", "refused", 0) and "the fake backend refuses it" in capsys.readouterr().out
