"""A search of every mesh and tile: what of it is simulated, kept whole, kept as a table and said."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from stripectl.cli import main
from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload
from stripectl.costs.defaults import with_defaults
from stripectl.errors import BadInput
from stripectl.hardware.profile import Hardware
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from stripectl.results.search_table import SearchTable
from stripectl.runner.meshes import MAX_FULL_ROWS, notable_plans
from tests.support.factories import because, measurement_of, run_of

ASKED = ["bench", "--target", "v5p:4x4x4", "--method", "simulated", "--pass", "forward", "--seqlen", "512k"]
ASKED += ["--model", "llama3-8b", "--kernel", "pallas_tpu", "--scheme", "ring,all_gather,ulysses,usp"]
ASKED += ["--mesh", "auto", "--tile", "all", "--output", "run"]


def stripectl(folder: Path, *arguments: str) -> int | str | None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as done:
        patch.chdir(folder)
        main([*ASKED, *arguments])
    return done.value.code


WORK = Workload(seq_len=2**12, heads=4, kv_heads=4, head_dim=64)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    folder = tmp_path_factory.mktemp("searched")
    assert stripectl(folder) == 0
    return Run.load(folder / "run"), folder


def test_every_plan_is_in_the_table_the_fastest_first(searched: tuple[Run, Path]) -> None:
    run, _ = searched
    (search,) = run.searches
    assert len(search.plans) == len(set(search.plans)) > MAX_FULL_ROWS
    assert list(search.median_s) == sorted(search.median_s) and min(search.peak_bytes) > 0
    tiles = {parse_plan(plan).tile for plan in search.plans}
    assert len(tiles) >= 20 and len({parse_plan(plan).mesh for plan in search.plans}) >= 10
    assert any("cannot be divided" in reason for reason in search.refused) and sum(search.refused.values()) > 100


def test_the_rows_of_a_run_hold_the_notable_plans_with_the_figures_of_the_table(searched: tuple[Run, Path]) -> None:
    run, _ = searched
    (search,) = run.searches
    table = dict(zip(search.plans, zip(search.median_s, search.peak_bytes, strict=True), strict=True))
    wide = [m for m in run.measurements if m.status == "ok" and m.devices > 1]
    assert all(table[str(m.plan)] == (m.median_s, m.peak_bytes) for m in wide)
    assert [str(m.plan) for m in sorted(wide, key=lambda m: m.median_s or 0.0)][:20] == list(search.plans[:20])
    best = {scheme: next(table) for scheme, table in itertools.groupby(sorted(search.plans), lambda p: p.split("/")[0])}
    assert best.keys() == {m.plan.scheme for m in wide}
    reasons = {str(m.reason) for m in run.measurements if m.status == "refused"}
    assert reasons == set(search.refused)


def test_one_device_has_its_own_best_tile(searched: tuple[Run, Path]) -> None:
    run, _ = searched
    (alone,) = (m for m in run.measurements if m.devices == 1)
    usual = with_defaults(parse_plan("ring/contiguous/pallas_tpu@ring=1"), alone.workload, Hardware.load("v5p"), 1)
    assert alone.plan == usual


def test_the_terminal_and_the_report_say_how_many_there_were(searched: tuple[Run, Path], capsys) -> None:
    run, folder = searched
    count = f"{len(run.searches[0].plans):,} plans for forward of 512k tokens on v5p:4x4x4 simulated in "
    page = (folder / "run" / "report.html").read_text(encoding="utf-8")
    assert count in page and "refused, for example: " in page
    assert stripectl(folder, "--resume") == 0
    said = capsys.readouterr().out
    assert count in said and "refused, for example: " in said
    again = Run.load(folder / "run")
    assert [m.key for m in again.measurements] == [m.key for m in run.measurements]
    assert [each.plans for each in again.searches] == [each.plans for each in run.searches]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--target", "local"], "Try stripectl tune-tiles, or name the tiles."),
        (["--seqlen", "max"], "Omit --tile all, or name a tile."),
    ],
)
def test_every_tile_is_refused_where_it_cannot_be_simulated(tmp_path: Path, capsys, arguments, said: str) -> None:
    assert stripectl(tmp_path, *arguments) == 2
    assert capsys.readouterr().err.endswith(f"{said}\n")


def measurement(plan: str, seconds: float | None, reason: str | None = None) -> Measurement:
    return measurement_of(plan, seconds, WORK, "v5e:2x2", reason=because(reason) if reason else None)


def test_notable_are_the_fastest_of_all_and_of_each_scheme_and_a_plan_for_each_reason() -> None:
    fast = [measurement(f"ring/striped/xla@ring=4,tile={128 * n}x128", 1 + n / 100) for n in range(4, 40)]
    other = [measurement(f"ulysses/contiguous/xla@ulysses=4,tile={128 * n}x128", 5 + n / 100) for n in range(4, 40)]
    refused = [measurement(f"usp@ring={n}", None, f"{n} heads cannot be divided") for n in (3, 5)]
    kept = notable_plans([*other, *fast, *refused, measurement("tree@ring=4", None, "it is for inference")])
    assert [m.plan for m in kept[1:21]] == [m.plan for m in fast[:20]]
    assert kept[0] is other[0] and [str(m.reason) for m in kept[21:]] == [
        "3 heads cannot be divided",
        "it is for inference",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"plans": ["ring@ring=4"]},
        {"plans": "no list"},
        {"median_s": [1.0, "2"]},
        {"refused": {"why": "many"}},
        {"workload": {}},
        {"more": 1},
        {"target": 4},
    ],
)
def test_a_search_that_is_not_whole_is_refused(tmp_path: Path, change: dict) -> None:
    made = SearchTable.of([measurement("ring@ring=4", 1.0), measurement("ring@ring=2", 2.0)], 0.5)
    run = replace(run_of(), searches=[made])
    path = run.save(tmp_path)
    assert Run.load(path).searches == [made]
    content = json.loads(path.read_text())
    content["searches"][0] |= change
    path.write_text(json.dumps(content))
    with pytest.raises(BadInput, match="not a complete stripectl run"):
        Run.load(path)
