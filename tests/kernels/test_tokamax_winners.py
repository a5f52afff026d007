"""The winners of tokamax's sweeps, read from files like those of the package, and the search that begins with one."""

import importlib.machinery
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from stripectl.analysis.accuracy.attention import PublishedTime, attention_rows, predicted_s
from stripectl.core.kernel import kernels
from stripectl.core.layout import Tile
from stripectl.core.plan import parse_plan
from stripectl.hardware.target import parse_target
from stripectl.kernels.tokamax import winners
from stripectl.kernels.tokamax.winners import Shape, nearest_winner, read_shape
from stripectl.measure.local_target import LocalTarget
from stripectl.runner.cases import case_of, make_case
from stripectl.runner.tuning.candidates import searched_tiles

KINDS = ("TPU v5",)
CAUSAL = {"bool_mask": None, "is_causal": True}


def splash(rows: int, head_dim: int, mask: dict = CAUSAL, **others: object) -> str:
    arrays = {"q": f"bf16[32,{rows},{head_dim}]", "k": f"bf16[8,{rows},{head_dim}]", "v": f"bf16[8,{rows},{head_dim}]"}
    return json.dumps(arrays | {"mask": mask, "segment_ids": None} | others)


def tile(q: int, kv: int, compute: int, suffix: str = "") -> str:
    return json.dumps({f"block_q{suffix}": q, f"block_kv{suffix}": kv, f"block_kv{suffix}_compute": compute})


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A package `tokamax` with the folder of a device's winners."""
    found = importlib.machinery.ModuleSpec("tokamax", None, is_package=True)
    found.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(winners.importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(winners.metadata, "version", lambda name: "0.0.17")
    winners.winners.cache_clear()
    folder = tmp_path / winners.FOLDER / "tpu_v5"
    folder.mkdir(parents=True)
    return folder


def test_the_winner_of_the_nearest_shape_is_found(sweeps: Path) -> None:
    content = {
        splash(4096, 128): {tile(1024, 1024, 1024): {}},
        splash(131072, 128): {tile(2048, 2048, 512): {}},
        splash(131072, 256): {tile(512, 512, 256): {}},
        splash(131072, 128, {"bool_mask": None}): {tile(4096, 4096, 256): {}},
        splash(65536, 128, sinks="f32[32]"): {tile(128, 128, 128): {}},
        splash(65536, 128, {"bool_mask": "bool[1,1]"}): {tile(128, 128, 128): {}},
        splash(60000, 128): {},
    }
    (sweeps / "pallas_mosaic_tpu_splash_attention.json").write_text(json.dumps(content))
    found = nearest_winner(KINDS, Shape(65536, 65536, 128, 128, 4, causal=True), "forward")
    assert found and found.tile == Tile(2048, 2048, 512)
    assert found.source == "the fastest in the sweep of tokamax 0.0.17 for 128k queries and 128k keys, heads of 128"
    found = nearest_winner(KINDS, Shape(65536, 65536, 128, 128, 4, causal=False), "forward")
    assert found and found.tile == Tile(4096, 4096, 256)
    assert nearest_winner(("TPU v4",), Shape(65536, 65536, 128, 128, 4, causal=True), "forward") is None


def test_backward_winners_have_files_and_names_of_their_own(sweeps: Path) -> None:
    arguments = {"q": "bf16[2,4096,32,192]", "k": "bf16[2,4096,8,192]", "v": "bf16[2,4096,8,128]"}
    limits = {"bool_mask": None, "causal_mask": {"offset": 0, "window_size": None}}
    content = {json.dumps(arguments | {"mask": limits}): {tile(1024, 2048, 512, "_dkv"): {}}}
    (sweeps / "pallas_mosaic_tpu_flash_attention_vjp.json").write_text(json.dumps(content))
    wanted = Shape(4096, 4096, 192, 128, 4, causal=True)
    found = nearest_winner(KINDS, wanted, "backward")
    assert found and found.tile == Tile(1024, 2048, 512) and "heads of 192/128" in found.source
    assert nearest_winner(KINDS, wanted, "forward") is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"q": "bf16[2,4096,32,128]", "k": None, "v": None},
        {"mask": {"causal_mask": {"offset": 0, "window_size": 512}}},
        {"bias": "bf16[1,4,4096,4096]"},
    ],
)
def test_other_calls_are_left_out(arguments: dict) -> None:
    arrays = dict.fromkeys(("q", "k", "v"), "bf16[2,4096,32,128]")
    assert read_shape(arrays | {"mask": {"is_causal": True}} | arguments) is None


SWEPT = [
    row
    for row in attention_rows()
    if row.measured == "tokamax splash" and row.mask == "causal" and row.head_dim == row.v_dim
]


def first_tiles(row: PublishedTime) -> list[Tile]:
    """The tiles of a search that only simulates, fastest first."""
    place = LocalTarget(parse_target(f"{row.hardware}:1", None))
    plan = parse_plan("memory_efficient/contiguous/tokamax@tile=1024x1024")
    option = "tile" if row.passes == "forward" else "backward"
    case = case_of(row.workload, plan, {}, place, "simulated")
    plans = {tile: replace(plan, **{option: tile}) for tile in searched_tiles(case, place, row.passes, True)}
    fit = [tile for tile, each in plans.items() if make_case(row.workload, each, {}, place, "simulated").is_ready]
    return sorted(fit, key=lambda tile: predicted_s(row._replace(tile=tile)) or math.inf)


def test_a_search_without_a_device_has_the_fastest_tile_of_the_published_sweep_among_its_first(monkeypatch) -> None:
    """The other is 1024x1024 for 128k tokens with heads of 256, backward; 1024x2048x512, which the same sweep has for
    32k tokens, takes 10 % less by the table (benchmarks/README.md "Tiles of Pallas kernels")."""
    monkeypatch.setattr(winners, "winners", lambda *_: [])
    shortest = kernels["tokamax"].shortest_name
    ranks = [first_tiles(row).index(shortest(row.tile)) + 1 for row in SWEPT if row.tile]
    assert len(ranks) == 12 and sum(rank <= 3 for rank in ranks) >= 11 and ranks.count(1) >= 9
