"""A run of 10,000 measurements, and in full of 100,000, is read, gone on with, compared and reported, and kept while it
grows."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stripectl.core.plan import read_plan
from stripectl.core.workload import Workload
from stripectl.reporters.html.run_archive import MAX_SHOWN
from stripectl.results import journal
from stripectl.results.findings import Bound, TileTally
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from stripectl.results.writer import RunWriter
from tests.support.command import run
from tests.support.factories import because, measurement_of, run_of

pytestmark = pytest.mark.faults
COUNTS, SAMPLED = (10_000, pytest.param(100_000, marks=pytest.mark.full)), 1_000
LENGTHS = [2**14 + 1024 * at for at in range(100)]
TILES = [f"{a}x{b}" for a, b in itertools.product((128, 256, 512, 1024, 2048), repeat=2)]
PLANS = [
    f"{scheme}/{layout}/xla@ring=2,tile={tile}"
    for scheme, layout, tile in itertools.product(("ring", "all_gather"), ("contiguous", "striped", "zigzag"), TILES)
]
MAX_PAGE_BYTES = 4_000_000  # of a report, however large its run
NEW = ["bench", "--target", "v5p:8", "--method", "simulated", "--seqlen", "64k", "--quiet"]


def measurements(count: int) -> list[Measurement]:
    """Lengths in order, both passes, every plan by three methods; the first ones have samples."""
    tally = TileTally(tile="128x128", computed=8, useful=9, efficiency=0.9, per_round=((2, 0), (2, 4)))
    known: dict[str, Any] = {"bytes": {"collective-permute": 2**17}, "bound": Bound(attention_only=1.3), "tiles": tally}
    made = []
    for length, passes, plan, method in itertools.product(
        LENGTHS, ("forward", "forward-backward"), PLANS, ("measured", "compiled", "simulated", "refused")
    ):
        seconds = length / 2**14 * (1 + 0.37 * ((len(made) * 7919) % 1009) / 1009)
        sampled = method == "measured" and len(made) < 4 * SAMPLED
        samples_s = tuple(seconds * (1 + 0.01 * nth) for nth in range(5)) if sampled else ()
        why = because("it does not fit") if method == "refused" else None
        workload = Workload(seq_len=length, heads=4, kv_heads=4, head_dim=64, dtype="float32", passes=passes)
        m = measurement_of(
            plan + ",unroll=2" * (why is not None),
            None if why else seconds,
            workload,
            method="compiled" if method == "refused" else method,
            samples_s=samples_s,
            peak_bytes=2**20 if method == "compiled" else None,
            reason=why,
        )
        made.append(replace(m, **known))
        if len(made) == count:
            return made
    raise AssertionError("too few")


@pytest.fixture(scope="module", params=COUNTS)
def count(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def large(count: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    run_of(*measurements(count), devices=[{"processes": 2}], warnings=[], versions={}).save(folder)
    return folder


def test_its_comparison_shows_what_changed(large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads((large / "run.json").read_text())
    slower = next(m for m in content["measurements"] if m["method"] == "simulated")
    slower["median_s"] *= 2
    (tmp_path / "run.json").write_text(json.dumps(content))
    assert run("compare", str(large), str(tmp_path)) == 1
    shown = capsys.readouterr().out
    assert "1 REGRESSED" in shown and "more rows are not shown" in shown
    assert len(shown.splitlines()) < 3000


def test_it_is_gone_on_with_and_its_report_has_a_bound(
    count: int, large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.json").write_bytes((large / "run.json").read_bytes())
    assert run(*NEW, "--resume", "--output", str(tmp_path)) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run.json"]
    found = Run.load(tmp_path).measurements
    assert len(found) == count + 8 and {str(m.target) for m in found[count:]} == {"v5p:2x2x2", "v5p:1"}
    expected = measurements(count)
    assert [(m.key, m.samples_s) for m in found[:count]] == [(m.key, m.samples_s) for m in expected]
    assert len(capsys.readouterr().out.splitlines()) < 10_000

    text = (tmp_path / "report.html").read_text()
    assert len(text) < MAX_PAGE_BYTES
    carried = Run.load(tmp_path / "report.html").measurements
    assert 0 < len(carried) <= 2 * MAX_SHOWN
    assert f"{count + 8 - len(carried):,} more measurements are in run.json" in text
    assert f"without {count + 8 - len(carried):,} of {count + 8:,} measurements" in text
    assert {m.workload.seq_len for m in carried} == {m.workload.seq_len for m in found}
    assert run("report", str(tmp_path), "--format", "md", "-o", str(tmp_path / "comment.md")) == 0
    assert (tmp_path / "comment.md").stat().st_size < 2**20


def test_while_it_grows_what_comes_is_on_disk_and_the_whole_is_seldom_written(
    count: int, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, save = list[int](), Run.save
    monkeypatch.setattr(Run, "save", lambda self, folder: saved.append(1) or save(self, folder))
    kept = RunWriter(Run.load(large), tmp_path)
    plan = "ring/striped/xla@ring=2,tile=64x64,unroll="
    more = [replace(kept.run.measurements[0], plan=read_plan(f"{plan}{at + 1}")) for at in range(500)]
    for at, m in enumerate(more):
        kept.add(m)
        if at % 100 == 99:
            lines = (tmp_path / journal.FILE).read_text().split("\n")
            assert json.loads(lines[-2])["measurement"]["plan"] == str(m.plan)
    assert sum(saved) <= 3
    assert [m.plan for m in Run.load(tmp_path).measurements[count:]] == [m.plan for m in more]
