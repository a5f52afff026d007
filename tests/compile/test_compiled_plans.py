"""Plans that real compilers compiled, as `python benchmarks/agreement.py` recorded them, against what no machine can
beat."""

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from stripectl.analysis.plausibility import why_implausible
from stripectl.compile.compiler import CompilerPool
from stripectl.compile.cost_model import DISAGREEMENT
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.workload import Workload
from stripectl.hardware.target import Target, parse_target
from stripectl.results.measurement import Measurement, with_speedups
from stripectl.runner.static_facts import with_static_facts
from tests.compile.test_compile import NEVER_MISSING, silent

FOLDER = Path(__file__).parents[2] / "benchmarks" / "compiled"


class Compiled(NamedTuple):
    """A plan on a target: seconds predicted from its program, bytes a device sends, and cycles of a tile by pass."""

    target: Target
    plan: Plan
    workload: Workload
    seconds: float
    sent_bytes: int
    cycles: dict[str, dict[str, int]]


def read(path: Path) -> list[Compiled]:
    rows = [row for row in json.loads(path.read_text()) if "refused" not in row]
    return [
        Compiled(
            parse_target(row["target"]),
            parse_plan(row["plan"]),
            Workload.from_json(row["workload"]),
            row["compiled_s"],
            sum(row["bytes"].values()),
            row["cycles"],
        )
        for row in rows
    ]


RECORDS = {path.stem: read(path) for path in sorted(FOLDER.glob("*.json"))}
EVERY = [each for rows in RECORDS.values() for each in rows]
NAMED = pytest.mark.parametrize("each", EVERY, ids=lambda x: f"{x.target}-{x.plan}-{x.workload.seq_len // 1024}k")


def test_there_are_at_least_forty_plans() -> None:
    assert len(EVERY) >= 40 and {"v4", "v5e", "v5p", "v6e", "tpu7x", "h100"} <= set(RECORDS)


@NAMED
def test_none_beats_its_flops_or_its_bytes(each: Compiled) -> None:
    hardware, devices = each.target.hardware, each.plan.devices
    peak, link = hardware.flops_per_s("bfloat16"), hardware.figure("link_bytes_per_s_one_way")
    assert peak and each.seconds > each.workload.flops / devices / peak
    assert link and each.seconds > each.sent_bytes / (link * max(1, 2 * hardware.torus_dims))


@NAMED
def test_devices_are_at_most_as_many_times_as_fast_as_one(each: Compiled) -> None:
    alike = [x for x in RECORDS[each.target.hardware.name] if x.workload == each.workload]
    alone = next((x for x in alike if x.plan.devices == 1), None)
    if alone:
        assert alone.seconds / each.seconds <= each.plan.devices * 1.001


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_no_record_is_implausible(name: str) -> None:
    """The same words as the guard of a run: bounds of FLOPs, bytes, devices and layouts."""
    rows = []
    for each in RECORDS[name]:
        case = Measurement(
            workload=each.workload,
            plan=each.plan,
            target=each.target.name,
            method="compiled",
            median_s=each.seconds,
        )
        rows.append(replace(with_static_facts(case, each.target.hardware), median_s=each.seconds))
    run = with_speedups(rows)
    assert [reason for m in run if (reason := why_implausible(m, run))] == []


@pytest.mark.parametrize("name", sorted(set(RECORDS) - {"h100"}))
def test_equal_tiles_cost_the_same_in_every_scheme(name: str) -> None:
    by_pass: dict[tuple[str, str], list[int]] = {}
    for each in RECORDS[name]:
        for passes, kinds in each.cycles.items():
            by_pass.setdefault((passes, "whole"), []).append(kinds["whole"])
    assert by_pass
    for found in by_pass.values():
        assert max(found) <= min(found) * (1 + DISAGREEMENT)


@pytest.mark.compilers
@pytest.mark.skipif("gpu" not in NEVER_MISSING, reason="no GPU compiler: make .venv/dev")
@pytest.mark.parametrize("scheme", ["ring", "all_gather", "ulysses"])
def test_a_plan_that_is_compiled_now_sends_what_its_record_says(without_toolkit, scheme: str) -> None:
    short = (x for x in RECORDS["h100"] if x.plan.scheme == scheme and x.plan.devices > 1)
    each = next(x for x in short if x.workload.seq_len == 2**15)
    with CompilerPool(silent, cached=False) as compilers:
        found = compilers.report(each.workload, each.plan, each.target, {})
    assert sum(found["bytes"].values()) == each.sent_bytes
