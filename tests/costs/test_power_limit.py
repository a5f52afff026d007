"""The rate that a GPU keeps at its power limit."""

from dataclasses import replace
from pathlib import Path

import pytest

from stripectl.core.layout import Tile
from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload
from stripectl.costs.power_limit import FULL_RATE_S, after_pause, sustained_share
from stripectl.costs.shape import Heads
from stripectl.costs.source_order import cost_model
from stripectl.costs.sources.table import table_of
from stripectl.hardware.target import parse_target
from tests.support.command import stripectl

WORK = Workload(seq_len=2**15, heads=64, kv_heads=64, head_dim=128)
PLAN = parse_plan("memory_efficient/contiguous/cudnn@tile=128x128")


def test_a_call_after_a_pause_begins_at_the_full_rate() -> None:
    assert after_pause(FULL_RATE_S / 2, 0.8) == FULL_RATE_S / 2
    assert after_pause(FULL_RATE_S + 0.8, 0.8) == pytest.approx(FULL_RATE_S + 1)
    assert after_pause(after_pause(1.0, 0.8), 1 / 0.8) == pytest.approx(1.0)


@pytest.mark.parametrize(("name", "share"), [("gb300", 0.88), ("gb200", 0.84), ("h200", 1.0)])
def test_a_plan_runs_without_pauses(name: str, share: float) -> None:
    hardware = parse_target(f"{name}:1").hardware
    model, table = cost_model(hardware, WORK, PLAN), table_of(hardware)
    assert sustained_share(hardware, "bfloat16") == share and sustained_share(hardware, "float32") == 1
    assert table
    full = table.costs["cudnn", "bfloat16", "forward"][Heads(128, 128)][Tile(128, 128)]
    assert model.forward == replace(full, whole_s=full.whole_s / share, boundary_s=full.boundary_s / share)
    assert ("sustained_share_bfloat16" in (model.cost_source.sources or {})) == (share < 1)


def test_the_line_of_costs_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = [
        stripectl("bench", "--seqlen", "64k", "--target", target, "--method", "simulated", "--pass", "forward").stdout
        for target in ("gb200:2", "h200:2")
    ]
    assert ["at the rate that the GPU sustains" in each for each in said] == [True, False]
