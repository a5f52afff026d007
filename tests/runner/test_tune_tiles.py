"""`stripectl tune-tiles`: candidates, the four ways to judge them, the cache, and what an interrupt costs."""

import itertools
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stripectl.analysis.ranking import rankings
from stripectl.core.kernel import kernels
from stripectl.core.layer_kinds import LayerKind
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.workload import Workload
from stripectl.costs import default_tiles
from stripectl.costs.keys_at_once import cost_of_scores
from stripectl.costs.shape import Heads, TileShape
from stripectl.costs.sources.table import table_of
from stripectl.errors import BadInput
from stripectl.hardware.target import parse_target
from stripectl.measure.local_target import LocalTarget
from stripectl.measure.sampler import SamplingOptions
from stripectl.results.backend import finals
from stripectl.results.case import Case
from stripectl.results.environment import cores
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from stripectl.runner.cases import case_of
from stripectl.runner.request import Request
from stripectl.runner.tuning.candidates import TileSearch, forward_cases, searched_tiles
from stripectl.runner.tuning.search import tune
from stripectl.util.progress import quiet
from stripectl.workers.worker_group import WorkerGroup
from tests.support.command import run
from tests.support.plans import tiles_for
from tests.support.processes import children

PAPER = ["tune-tiles", "--target", "v5p:8", "--method", "simulated", "--quiet"]
SMALL = Workload(seq_len=1024, heads=2, kv_heads=2, head_dim=16, dtype="float32")
BOTH = Workload(**{**SMALL.__dict__, "passes": "forward-backward"})
two_cores = pytest.mark.skipif(len(cores()) < 2, reason="a ring of pinned processes needs two cores")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrations of seconds, not minutes."""
    monkeypatch.setattr("stripectl.costs.sources.timed_tiles.BLOCKS", (256, 512))
    monkeypatch.setattr("stripectl.costs.sources.timed_tiles.HELD_OUT", 384)
    monkeypatch.setattr("stripectl.measure.block_sampler.BLOCK_ROWS", 512)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, dict]]]:
    """What is asked of workers."""
    requests: list[tuple[str, dict]] = []
    real = WorkerGroup.ask

    def ask(self, do: str, *limit, **arguments):
        requests.append((do, arguments))
        return real(self, do, *limit, **arguments)

    monkeypatch.setattr(WorkerGroup, "ask", ask)
    yield requests


def tuning(**changes: Any) -> TileSearch:
    request: dict[str, Any] = {"workloads": [SMALL, BOTH], "plans": [parse_plan("ring/striped/xla")], "target": "cpu:2"}
    request |= {"sampling": SamplingOptions(budget_s=60, min_samples=3), "use_cache": False}
    asked: dict[str, Any] = {"tiles": (Tile(128, 128), Tile(256, 128))}
    asked |= {name: changes.pop(name) for name in ("tiles", "strategy", "refine_count") if name in changes}
    return TileSearch(request=Request(**(request | changes)), **asked)


def test_candidates_come_from_the_kernel_and_the_block() -> None:
    work = Workload(seq_len=2**18, heads=16, kv_heads=16, head_dim=128)
    tiles = tiles_for(parse_plan("ring/striped/splash@ring=8"), work, "tpu")
    assert tiles[0] == Tile(1024, 1024) and len(tiles) == len(set(tiles)) == 36
    assert {Tile(2048, 4096), Tile(2048, 2048), Tile(128, 4096)} <= set(tiles)
    assert kernels["xla"].candidate_tiles(64) == [Tile(64, 64), Tile(2048, 4096), Tile(2048, 2048)]
    odd = kernels["splash"].candidate_tiles(384)  # 256 pads 128 rows, 384 pads none
    assert odd[0] == Tile(128, 128) and {Tile(256, 256), Tile(384, 384)} <= set(odd)
    padded = kernels["pallas_tpu"].candidate_tiles(18_900)  # 1920 pads 300 rows and 2048 pads 1,580
    assert {Tile(1024, 1024), Tile(1920, 1920), Tile(2048, 2048), Tile(3840, 512)} <= set(padded)


def simulated_case(work: Workload, plan: Plan, place: LocalTarget) -> Case:
    return case_of(work, plan, {}, place, "simulated")


def test_of_the_third_sides_of_a_tile_the_cheapest_of_the_table_is_searched() -> None:
    place, plan = LocalTarget(parse_target("tpu7x:2x2x1", None)), parse_plan("ring/striped/pallas_tpu@ring=4")
    work = Workload(seq_len=2**16, heads=4, kv_heads=4, head_dim=128, passes="forward-backward")
    found = searched_tiles(simulated_case(work, plan, place), place, "backward", False)
    usual = default_tiles.tiles_for(plan, work, place.target.hardware, "backward")
    assert found[0] == usual[0] and len(found) <= len(usual) + 1
    assert {tile.sides for tile in found} == {tile.sides for tile in usual}
    table, named = table_of(place.target.hardware), next(tile for tile in found if tile.block_kv_compute)
    assert table
    heads = Heads(128, 128)
    best, own = (
        cost_of_scores(table, TileShape("pallas_tpu", "bfloat16", heads, tile, passes="backward"), masked=False)
        for tile in (named, Tile(*named.sides))
    )
    assert best and own and best < own
    other = parse_plan("ring/striped/xla@ring=4")
    usual = default_tiles.tiles_for(other, work, place.target.hardware, "backward")
    assert searched_tiles(simulated_case(work, other, place), place, "backward", False) == usual


def test_a_kernel_that_multiplies_whole_tiles_at_once_is_searched_within_the_blocks_of_the_table() -> None:
    place, plan = LocalTarget(parse_target("tpu7x:2x2x1", None)), parse_plan("ring/zigzag/tokamax@ring=4")
    work = Workload(seq_len=2**18, heads=32, kv_heads=8, head_dim=128)
    found = searched_tiles(simulated_case(work, plan, place), place, "forward", False)
    assert {Tile(1024, 1024, 512), Tile(2048, 2048, 512)} <= set(found) and Tile(2048, 2048) not in found
    table, every = (
        table_of(place.target.hardware),
        searched_tiles(simulated_case(work, plan, place), place, "forward", True),
    )
    assert table and set(found) < set(every)
    entries = table.tiles(TileShape("tokamax", "bfloat16", Heads(128, 128), Tile(1024, 1024)))
    most, tried = (max(kernels["tokamax"].full_name(tile).scores_at_once for tile in each) for each in (entries, every))
    assert tried == most


def test_a_search_that_only_simulates_ranks_every_third_side() -> None:
    place, plan = LocalTarget(parse_target("tpu7x:1", None)), parse_plan("memory_efficient/contiguous/tokamax")
    work = Workload(seq_len=2**13, heads=32, kv_heads=8, head_dim=128)
    few, every = (searched_tiles(simulated_case(work, plan, place), place, "forward", each) for each in (False, True))
    sides = {tile.block_kv_compute or tile.block_kv for tile in every if tile.sides == (2048, 2048)}
    assert len(sides) > 1 and sum(tile.sides == (2048, 2048) for tile in few) == 1


def test_what_does_not_fit_is_refused_with_the_reason() -> None:
    place = LocalTarget(parse_target("v5p:8", None))
    work = Workload(seq_len=2**14, heads=2, kv_heads=2, head_dim=128)
    cases = forward_cases(TileSearch(), simulated_case(work, parse_plan("ring/striped/splash@ring=8"), place), place)
    refused = {str(case.plan): str(case.reason) for case in cases if case.status == "refused"}
    reasons = {plan.partition("tile=")[2]: reason for plan, reason in refused.items()}
    assert reasons.keys() == {"2048x1024", "2048x2048", "2048x4096"}
    assert "larger than the 2048 rows of a shard" in reasons["2048x4096"]
    assert all("of a core's memory" in reasons[tile] for tile in ("2048x1024", "2048x2048"))
    (alone,) = forward_cases(
        TileSearch(), simulated_case(work, parse_plan("ring/striped/splash@ring=16"), place), place
    )
    assert alone.status == "refused" and "needs 16 devices" in str(alone.reason)


def test_a_search_on_paper_keeps_all_and_shows_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*PAPER, "--seqlen", "16k", "--layout", "striped", "--output", "first") == 0
    shown = capsys.readouterr().out
    found = Run.load(Path("first")).measurements
    assert {m.method for m in found} == {"simulated"} and len(found) == 52
    refused = [str(m.reason) for m in found if m.status == "refused"]
    assert len(refused) == 6 and sum("of a core's memory" in reason for reason in refused) == 4
    assert sum(line.startswith("ring/striped/splash@") for line in shown.splitlines()) <= 2 * (11 + 1)
    assert "13 more in run.json" in shown and "refused: ring/striped/splash@" in shown
    assert "from the cache" not in shown
    assert run(*PAPER, "--seqlen", "16k", "--layout", "striped", "--output", "second") == 0
    assert "from the cache" in capsys.readouterr().out
    assert Run.load(Path("second")).measurements == found
    assert run(*PAPER, "--seqlen", "16k", "--layout", "striped", "--output", "third", "--no-cache") == 0
    assert "from the cache" not in capsys.readouterr().out


def test_layers_of_two_kinds_have_tiles_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    what = ("tune-tiles", "--model", "linear-llama-1b-hybrid", "--pass", "step", "--scheme", "lasp2", "--seqlen", "16k")
    assert run(*what, "--target", "v5e:2x4", "--method", "simulated", "--output", "run") == 0
    found = [m for m in Run.load(Path("run")).measurements if m.status == "ok"]
    kinds = {(m.workload.attention, m.plan.scheme, m.plan.kernel) for m in found}
    assert kinds == {("linear", "lasp2", "pallas_chunked"), ("softmax", "all_gather", "splash")}
    printed = capsys.readouterr().out
    assert "linear attention" in printed
    steps = [parse_plan(line.split()[1]) for line in printed.splitlines() if line.startswith("step ")]
    assert [step.softmax_layout for step in steps] == [None, "striped", "zigzag"]
    work = found[0].workload
    for step, kind in itertools.product(steps, ("linear", "softmax")):
        alike = replace(work.of_kind(LayerKind(kind, "causal")), passes="forward-backward")
        both = [m for m in found if m.workload == alike]
        (ranking,), own = rankings(both), step.for_attention(kind)
        assert own == next(m.plan for m in ranking.rivals if m.plan.layout == own.layout)
    tried = {kind: len({m.plan for m in found if m.workload.attention == kind}) for kind in ("linear", "softmax")}
    assert tried["linear"] > 2 and tried["softmax"] > 4


def test_alone_it_takes_the_workload_of_the_newest_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*PAPER, "--dry-run") == 0
    assert "model 1b, 256k tokens" in capsys.readouterr().out
    bench = ["bench", "--target", "v5p:8", "--method", "simulated", "--quiet", "--seqlen", "32k", "--heads", "4"]
    assert run(*bench, "--pass", "forward") == 0
    capsys.readouterr()
    assert run(*PAPER, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "32k tokens, 4 heads" in shown and "backward=" not in shown and "refused" in shown
    assert run(*PAPER, "--dry-run", "--seqlen", "64k") == 0
    assert "model 1b, 64k tokens" in capsys.readouterr().out
    assert run(*PAPER, "--dry-run", "--documents", "64k") == 0
    assert "model 1b, 256k tokens" in capsys.readouterr().out
    hybrid = ["--model", "linear-llama-1b-hybrid", "--pass", "step", "--scheme", "lasp", "--seqlen", "16k"]
    assert run("bench", "--target", "v5p:8", "--method", "simulated", "--quiet", *hybrid) == 0
    capsys.readouterr()
    assert run("tune-tiles", "--target", "v5p:8", "--scheme", "lasp", "--dry-run") == 0
    assert "model linear-llama-1b-hybrid, 16k tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["--seqlen", "max"], 2, "search tiles for --seqlen max"),
        (["--tile", "axb"], 2, "is not a tile"),
        (["--strategy", "luck"], 2, "is not one of"),
        (["--refine", "0"], 2, "is not in the range"),
        (["--seqlen", "1001"], 2, "nothing is left to try"),
        (["--method", "measured"], 3, "cannot measure"),
        (["--resume", "--output", "nowhere"], 2, "cannot read"),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str], code: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*PAPER, *arguments) == code
    error = capsys.readouterr().err.splitlines()
    assert error[0].startswith("error: ") and why in error[0]


@two_cores
@pytest.mark.hosts
def test_plans_that_run_here_are_raced(asked: list[tuple[str, dict]]) -> None:
    found: dict[tuple, Measurement] = {}
    for m in finals(tune(tuning(method="measured"), quiet)):
        found[m.identity] = m
    assert {m.status for m in found.values()} == {"ok"}
    best_first = [m.workload.passes for m in found.values()]  # and the default's tiles where others are best
    assert best_first[:4] == ["forward"] * 2 + ["forward-backward"] * 2 and len(best_first) <= 5
    measured = [m for m in found.values() if m.method == "measured"]
    assert {m.workload.passes for m in measured} == {"forward", "forward-backward"}
    assert all(m.samples_s and m.check and m.check.max_rel_error <= 2e-6 for m in measured)
    raced = {m.plan.tile for m in measured if m.workload.passes == "forward"}
    (chosen,) = {m.plan.tile for m in list(found.values())[2:4]}  # later samples may change their order
    assert chosen in raced
    asked.clear()
    again = {m.identity: m for m in finals(tune(tuning(method="measured", previous=tuple(found.values())), quiet))}
    assert {m.identity: m.samples_s for m in again.values()} == {m.identity: m.samples_s for m in found.values()}
    assert not [do for do, _ in asked if do in ("prepare", "sample")]


@two_cores
@pytest.mark.hosts
def test_tiles_are_timed_once_for_every_layout(small_blocks: None, asked: list[tuple[str, dict]]) -> None:
    plans = [parse_plan(f"ring/{layout}/xla") for layout in ("contiguous", "striped")]
    found: dict[tuple, Measurement] = {}
    for m in finals(tune(tuning(method="simulated", plans=plans, tiles=(Tile(128, 128),)), quiet)):
        found[m.identity] = m
    assert len(found) == 4 and all(m.method == "simulated" and m.median_s for m in found.values())
    sources = {m.cost_source.source for m in found.values() if m.cost_source}
    assert "measured_tile" in sources
    prepared = [given["key"] for do, given in asked if do == "prepare_block"]
    assert len(prepared) == len(set(prepared)) == 2
    assert all(m.cost_source and m.cost_source.timings.coarse for m in found.values())


@two_cores
@pytest.mark.hosts
def test_an_interrupt_keeps_what_was_timed_and_is_not_cached(
    small_blocks: None, asked: list[tuple[str, dict]], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def interrupt(self, now: str, done: int, total: int) -> None:
        said.append(now)
        if now.startswith("time tiles of 256x128"):
            raise KeyboardInterrupt

    shape = ["--seqlen", "1k", "--heads", "1", "--head-dim", "16", "--tile", "128,256x128", "--layout", "striped"]
    shape += ["--pass", "forward"]
    call = ["tune-tiles", "--target", "cpu:2", "--method", "simulated", "--quiet", "--output", "run", *shape]
    monkeypatch.setattr("stripectl.runner.tuning.evaluators.TimeTiles.calibrated", lambda self, case, coarse: coarse)
    with monkeypatch.context() as patched:
        patched.setattr("stripectl.reporters.terminal.screen.ProgressDisplay.say", interrupt)
        assert run(*call) == 130
    kept = json.loads(Path("run/run.json").read_text())["measurements"]
    assert len(kept) == 1 and kept[0]["cost_source"]["coarse"]["forward"]
    assert not list(Path("cache").rglob("*.json"))
    asked.clear()
    assert run(*call, "--resume") == 0
    first, second = (m.cost_source.timings.coarse["forward"] for m in Run.load(Path("run")).measurements)  # type: ignore
    samples_s = kept[0]["cost_source"]["coarse"]["forward"]
    assert list(first[: len(samples_s)]) == samples_s and second
    taken = sum(do == "sample_block" for do, _ in asked)
    assert taken == len(first + second) - len(samples_s)
    assert list(Path("cache").rglob("*.json"))


@two_cores
@pytest.mark.hosts
@pytest.mark.parametrize("strategy", ["race", "exhaustive"])
def test_a_search_that_is_resumed_loses_no_sample(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = ["tune-tiles", "--target", "cpu:2", "--method", "measured", "--quiet", "--output", "run", "--no-cache"]
    call += ["--seqlen", "512", "--heads", "2", "--head-dim", "16", "--tile", "64,128", "--layout", "striped"]
    call += ["--pass", "forward", "--strategy", strategy, "--min-samples", "3"]

    def found() -> dict[str, tuple[float, ...]]:
        return {str(m.plan): m.samples_s for m in Run.load(Path("run")).measurements if m.samples_s}

    def kill(self, heard: str, done: int, total: int) -> None:
        for worker in children(os.getpid()) if heard.startswith("sample 3") else ():
            os.kill(worker, signal.SIGKILL)

    def interrupt(self, heard: str, done: int, total: int) -> None:
        if heard.startswith("sample 3"):
            raise KeyboardInterrupt

    monkeypatch.setattr("stripectl.reporters.terminal.screen.ProgressDisplay.say", kill)
    assert run(*call) == 1
    before = found()
    assert 2 in map(len, before.values())  # whose worker was killed
    monkeypatch.setattr("stripectl.reporters.terminal.screen.ProgressDisplay.say", interrupt)
    assert run(*call, "--resume") == 130
    between = {plan: samples_s for plan, samples_s in found().items() if plan in before}
    assert {plan: samples_s[: len(before[plan])] for plan, samples_s in between.items()} == before
    assert max(map(len, between.values())) <= 3 and (strategy == "race" or between == before)
    monkeypatch.setattr("stripectl.reporters.terminal.screen.ProgressDisplay.say", lambda *_: None)
    assert run(*call, "--resume") == 0
    after = found()
    assert all(after[plan][: len(samples_s)] == samples_s for plan, samples_s in before.items())
    assert 3 in map(len, after.values()) and (strategy == "race" or {*map(len, after.values())} == {3})


def test_nothing_left_is_said_once() -> None:
    with pytest.raises(BadInput, match="nothing is left to try"):
        list(tune(tuning(target="v5p:8", method="simulated", tiles=(Tile(4096, 4096),)), quiet))
