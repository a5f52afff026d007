"""Plans that real compilers compiled, as `python benchmarks/agreement.py` recorded them, against what no machine can
beat, and beside the same plans simulated without a compiler."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from stripectl.analysis.plausibility import why_implausible
from stripectl.compile.compiler import CompilerPool
from stripectl.compile.cost_model import DISAGREEMENT
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.workload import Workload
from stripectl.costs.source_order import cost_model
from stripectl.costs.sources.table import read_transfer
from stripectl.hardware.placement import place_mesh
from stripectl.hardware.target import Target, parse_target
from stripectl.results.case import Case
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import with_speedups
from stripectl.runner.static_facts import with_static_facts
from stripectl.simulate.simulation import simulate
from stripectl.util.progress import quiet
from tests.support.compilers import NEVER_MISSING

FOLDER = Path(__file__).parents[2] / "benchmarks" / "compiled"


class Compiled(NamedTuple):
    """A plan on a target: seconds predicted from its program, bytes a device sends, cycles of a tile by pass, and the
    share of transfers that its schedule puts no tiles beside."""

    target: Target
    plan: Plan
    workload: Workload
    seconds: float
    sent_bytes: int
    cycles: dict[str, dict[str, int]]
    exposed: dict[str, float]

    @property
    def both(self) -> tuple[float, float]:
        """Seconds (simulated, compiled), by the tables that ship today."""
        wired = place_mesh(self.target, self.plan.mesh or ())
        machine = cost_model(self.target.hardware, self.workload, self.plan, wired)
        own = machine.with_schedule({read_transfer(text): share for text, share in self.exposed.items()})
        simulated, compiled = (simulate(self.workload, self.plan, each).seconds for each in (machine, own))
        return simulated, compiled


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
            row["exposed"],
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
@pytest.mark.parametrize("tokens", [2**15, 2**18])
def test_simulated_without_a_compiler_and_compiled_tell_the_same(name: str, tokens: int) -> None:
    """Times within 10 %, and in the same order where two differ by more."""
    found = {str(x.plan): x.both for x in RECORDS[name] if x.workload.seq_len == tokens}
    assert {plan: times for plan, times in found.items() if abs(times[0] / times[1] - 1) > 0.10} == {}
    for (one, (simulated, compiled)), (other, times) in itertools.combinations(found.items(), 2):
        if abs(math.log(compiled / times[1])) > math.log(1.10):
            assert (simulated < times[0]) == (compiled < times[1]), (one, other)


@pytest.mark.parametrize("name", ["v4", "v5e", "v5p", "v6e", "tpu7x"])
@pytest.mark.parametrize("layout", ["striped", "zigzag"])
def test_a_bidirectional_ring_takes_as_long_as_a_ring_of_the_same_tiles(name: str, layout: str) -> None:
    found = {x.plan.scheme: x.seconds for x in RECORDS[name] if x.plan.layout == layout and x.workload.seq_len == 2**18}
    assert found["bidirectional"] == pytest.approx(found["ring"], rel=0.15)


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_no_record_is_implausible(name: str) -> None:
    """The same words as the guard of a run: bounds of FLOPs, bytes, devices and layouts."""
    rows = []
    for each in RECORDS[name]:
        case = Case(workload=each.workload, plan=each.plan, target=each.target.name, method="compiled")
        found = Measurement.of(with_static_facts(case, each.target.hardware))
        rows.append(replace(found, median_s=each.seconds))
    run = with_speedups(rows)
    assert [reason for m in run if (reason := why_implausible(m, run))] == []


@pytest.mark.parametrize("name", sorted(set(RECORDS) - {"h100", "a100"}))
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
    with CompilerPool(quiet, cached=False) as compilers:
        found = compilers.report(each.workload, each.plan, each.target, {})
    assert found.bytes and sum(found.bytes.values()) == each.sent_bytes
