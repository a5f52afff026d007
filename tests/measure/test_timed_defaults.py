"""The default tile of a CPU is the fastest of a few tiles that are timed on it, where another is clearly faster."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stripectl.core.layout import Tile
from stripectl.core.plan import Plan
from stripectl.core.workload import Workload
from stripectl.costs.defaults import with_defaults
from stripectl.hardware.profile import Hardware
from stripectl.hardware.target import parse_target
from stripectl.measure.block_sampler import TimedTiles
from stripectl.measure.local_target import LocalTarget
from stripectl.measure.local_workers import LocalWorkers
from stripectl.measure.machine_timings import MachineTimings
from stripectl.measure.timed_defaults import SAMPLES, TimedDefaults
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from stripectl.util.progress import quiet
from stripectl.workers.worker_group import WorkerGroup
from tests.support.command import stripectl

LONG = Workload(seq_len=262144, heads=4, kv_heads=4, head_dim=64, dtype="float32", mask="causal")
USUAL = 256
Timings = dict[int, list[float]]  # seconds of the samples of square tiles


def chosen(
    workload: Workload, timings: dict[str, Timings], plan: Plan | None = None, previous: list[Measurement] | None = None
) -> Plan:
    """The plan with default tiles on a CPU whose blocks were timed before, as a search leaves its timings."""
    with LocalWorkers(quiet) as workers:
        tiles = TimedTiles(MachineTimings(workers), LocalTarget(parse_target("cpu:8"), processes=2))
        for passes, each in timings.items():
            for side, seconds in each.items():
                tiles.known(workload, "xla", Tile(side, side), passes).extend(seconds)
        timed = TimedDefaults(tiles, previous or [])
        found = with_defaults(plan or Plan("ring", "zigzag"), workload, Hardware.load("cpu"), 8, timed=timed)
        assert not workers.groups  # nothing ran
    return found


FASTER: Timings = {128: [5.0] * SAMPLES, 256: [4.0] * SAMPLES, 512: [3.0] * SAMPLES, 1024: [3.5] * SAMPLES}
NOISY: Timings = {**FASTER, 512: [1.0, 1.0, 3.9], 1024: [1.0, 5.0, 1.0]}


@pytest.mark.parametrize(("timings", "side"), [(FASTER, 512), (NOISY, USUAL)], ids=["clearly faster", "noise"])
def test_a_tile_that_is_faster_in_each_sample_is_the_default(timings: Timings, side: int) -> None:
    assert chosen(LONG, {"forward": timings}).tile == Tile(side, side)


def test_each_pass_has_its_own() -> None:
    found = chosen(replace(LONG, passes="forward-backward"), {"forward": NOISY, "backward": FASTER})
    assert (found.tile, found.backward) == (Tile(256, 256), Tile(512, 512))


def test_a_window_counts_the_scores_that_a_tile_computes_in_vain() -> None:
    """In a window of 256 tokens, tiles of 512 compute twice as many scores as tiles of 256, and tiles of 128 three
    quarters as many."""
    assert chosen(replace(LONG, mask="sliding:256"), {"forward": FASTER}).tile == Tile(128, 128)


def test_what_is_not_timed_keeps_the_tile_of_its_kernel() -> None:
    """Short work is not worth a timing, a named tile stays, and other kernels choose their tiles themselves."""
    short = replace(LONG, seq_len=32768, heads=1, kv_heads=1)
    assert chosen(short, {}).tile == Tile(USUAL, USUAL)
    assert chosen(LONG, {"forward": FASTER}, Plan("ring", "zigzag", tile=Tile(128, 128))).tile == Tile(128, 128)
    assert chosen(LONG, {}, Plan("ring", "contiguous", "dense")).kernel == "dense"
    linear = replace(LONG, attention="linear", decay="per-head")
    assert chosen(linear, {}, Plan("lasp", "contiguous")).kernel == "chunked"


def test_a_resumed_run_keeps_its_tiles() -> None:
    plan = replace(chosen(LONG, {"forward": FASTER}), tile=Tile(1024, 1024))
    before = Measurement(workload=LONG, plan=plan, target=parse_target("cpu:8").name, method="simulated")
    assert chosen(LONG, {"forward": FASTER}, previous=[before]) == plan


@pytest.mark.hosts
def test_bench_times_its_default_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On real processes; a resumed run repeats nothing, and a dry run times nothing."""
    asked, ask = list[str](), WorkerGroup.ask

    def noted(self: WorkerGroup, what: str, *given: Any, **named: Any) -> Any:
        asked.append(what)
        return ask(self, what, *given, **named)

    monkeypatch.setattr(WorkerGroup, "ask", noted)
    monkeypatch.chdir(tmp_path)
    words = ["--target", "cpu:8", "--seqlen", "128k", "--heads", "1", "--head-dim", "16", "--pass", "forward"]
    dry = stripectl("bench", *words, "--dry-run")
    assert dry.returncode == 0 and "256x256" in dry.stdout and "sample_block" not in asked
    first = stripectl("bench", *words, "-o", "run")
    assert first.returncode == 0, first.stderr
    assert asked.count("sample_block") == 4 * SAMPLES  # once for all layouts
    plans = {m.plan for m in Run.load(Path("run")).measurements}
    asked.clear()
    again = stripectl("bench", *words, "-o", "run", "--resume")
    assert again.returncode == 0 and "sample_block" not in asked
    assert plans == {m.plan for m in Run.load(Path("run")).measurements}
