"""Predictions that no machine can keep are marked and never recommended."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stripectl.analysis import plausibility
from stripectl.analysis.note import lines_of_note
from stripectl.analysis.plausibility import implausible_sentences, why_implausible, why_so_fast
from stripectl.analysis.ranking import rankings
from stripectl.analysis.recommendation import recommend
from stripectl.core.linear_attention import CONSTANT
from stripectl.core.plan import STATES, parse_plan, read_plan
from stripectl.core.recurrence import recurrences
from stripectl.core.scheme import schemes
from stripectl.core.workload import Workload
from stripectl.costs.source_order import cost_model
from stripectl.costs.sources.table import nearest_entries
from stripectl.hardware.placement import place_mesh
from stripectl.hardware.target import parse_target, read_target
from stripectl.results.case import Case
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import indexed, with_speedups
from stripectl.runner.static_facts import with_static_facts
from stripectl.simulate.simulation import simulate
from tests.support.factories import run_of

WORK = Workload(seq_len=2**18, heads=16, kv_heads=16, head_dim=128, passes="forward-backward")


def seconds(text: str, target: str, work: Workload = WORK, faster: str = "") -> float:
    plan, place = parse_plan(text), parse_target(target)
    machine = cost_model(place.hardware, work, plan, place_mesh(place, plan.mesh or ()))
    return simulate(work, plan, machine.with_part_sped_up(faster) if faster else machine).seconds


def found(text: str, target: str = "v4:2x2x4", work: Workload = WORK, **changes) -> Measurement:
    took = seconds(text, target, work)
    case = Case(workload=work, plan=read_plan(text), target=read_target(target), method="simulated")
    found = Measurement.of(with_static_facts(case, parse_target(target).hardware))
    return replace(found, **{"median_s": took, **changes})


def ring(layout: str, devices: int = 16) -> str:
    return f"ring/{layout}/pallas_tpu@ring={devices},tile=1024x1024"


def test_what_is_predicted_is_plausible() -> None:
    several = [found(ring(layout)) for layout in ("contiguous", "striped", "zigzag")]
    run = with_speedups([*several, found(ring("contiguous", 1))])
    assert [why_implausible(m, run) for m in run] == [None] * 4


def test_fewer_scores_than_the_mask_leaves_are_not() -> None:
    """As of a scheme that omits a pair of shards."""
    whole = found(ring("zigzag"))
    assert whole.tiles
    few = replace(whole, tiles=replace(whole.tiles, efficiency=1.6))
    why = why_implausible(few, with_speedups([few, found(ring("contiguous", 1))]))
    assert why == "ring computes 62% of the scores that the mask leaves"


def test_more_than_the_peak_is_not() -> None:
    fast = found(ring("contiguous"), median_s=WORK.flops / 16 / 275e12 / 1.5)
    assert "50% above the peak" in str(why_implausible(fast, indexed([fast])))


def test_sixteen_devices_are_not_twenty_times_as_fast_as_one() -> None:
    alone = found(ring("contiguous", 1))
    assert alone.median_s
    fast = found(ring("striped"), median_s=alone.median_s / 20, peak_flops_per_s=1e18)
    assert "16 devices are 20.00x as fast as one" in str(why_implausible(fast, indexed([alone, fast])))
    other = replace(fast, plan=read_plan(str(fast.plan).replace("1024x1024", "512x512")))
    assert why_implausible(other, indexed([alone, other])) is None
    assert "which has tiles of 1024x1024, not tiles of 512x512" in str(why_so_fast(other, indexed([alone, other])))


def test_a_layout_gains_no_more_than_the_balance_of_its_tiles() -> None:
    slow, fast = found(ring("contiguous")), found(ring("striped"))
    assert slow.median_s
    fast = replace(fast, median_s=slow.median_s / 2.28, peak_flops_per_s=1e18)
    assert "2.28x as fast as the contiguous layout" in str(why_implausible(fast, with_speedups([slow, fast])))
    waits = replace(slow, bottleneck_shares={"communication": 0.2})
    run = with_speedups([waits, fast])
    assert why_implausible(fast, run) is None and "waits for hops" in str(why_so_fast(fast, run))


def test_bytes_take_their_time() -> None:
    fast = found(ring("contiguous"), bytes={"collective-permute": 10**13}, peak_flops_per_s=1e18)
    assert "all links of a device need" in str(why_implausible(fast, indexed([fast])))


def test_a_measured_time_is_never_implausible() -> None:
    fast = found(ring("contiguous"), median_s=1e-9, method="measured", samples_s=(1e-9,))
    assert why_implausible(fast, indexed([fast])) is None


def test_what_is_implausible_is_said_and_not_recommended() -> None:
    slow, fair, fast = found(ring("contiguous")), found(ring("zigzag")), found(ring("striped"))
    assert slow.median_s
    fast = replace(fast, median_s=slow.median_s / 5)
    run = run_of(*with_speedups([slow, fair, fast]))
    (ranking,) = rankings(run.measurements)
    assert ranking.best.plan == fair.plan and list(ranking.broken) == [str(fast.plan)]
    said = recommend(run)
    assert said and said.plan == fair.plan
    assert any("is implausible and not ranked" in reason for reason in said.reasons)
    (line,) = lines_of_note("implausible", run)
    assert str(line).startswith(f"implausible  {fast.plan}: ")


TARGETS = {"v4:2x2x4": 16, "v5e:4x4": 16, "v5p:2x2x4": 16, "v6e:4x4": 16, "tpu7x:2x2x1": 8}


def test_a_run_is_looked_through_once_however_many_measurements_it_has(monkeypatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(plausibility, "why_implausible", lambda m, run: looked.append(id(run)))
    measurements = [found(ring(layout)) for layout in ("contiguous", "striped", "zigzag")]
    assert implausible_sentences(indexed(measurements)) == []
    assert len(looked) == 3 and len(set(looked)) == 1 and looked[0] != id(measurements)


@st.composite
def plans(draw: st.DrawFn) -> tuple[str, str, Workload]:
    target = draw(st.sampled_from(sorted(TARGETS)))
    devices = TARGETS[target]
    scheme = draw(st.sampled_from(["ring", "bidirectional", "all_gather", "usp", "ulysses"]))
    layout = "contiguous" if scheme == "ulysses" else draw(st.sampled_from(["contiguous", "striped", "zigzag"]))
    mesh = {"usp": f"ring={devices // 4},ulysses=4", "ulysses": f"ulysses={devices}"}.get(scheme, f"ring={devices}")
    tile, kernel = draw(st.sampled_from(["512", "1024", "512x1024"])), draw(st.sampled_from(["pallas_tpu", "splash"]))
    passes = draw(st.sampled_from(["forward", "forward-backward"]))
    work = replace(WORK, seq_len=2 ** draw(st.integers(15, 20)), passes=passes)
    return f"{scheme}/{layout}/{kernel}@{mesh},tile={tile}", target, work


@st.composite
def linear_plans(draw: st.DrawFn) -> tuple[str, str, Workload]:
    """Recurrences, and a constant decay."""
    target = draw(st.sampled_from(sorted(TARGETS)))
    scheme = draw(st.sampled_from(["lasp", "lasp2", "linear_scan", "ulysses"]))
    recurrence = draw(st.sampled_from([CONSTANT, *recurrences.names()]))
    work = replace(
        WORK,
        seq_len=2 ** draw(st.integers(15, 20)),
        passes=draw(st.sampled_from(["forward", "forward-backward"])),
        attention="linear",
        recurrence=recurrence,
        decay="per-head" if recurrence == CONSTANT else "1",
    )
    kernel = "pallas_chunked" if recurrence == CONSTANT else "pallas_gated"
    axis, tile = "ulysses" if scheme == "ulysses" else "ring", draw(st.sampled_from(["64", "128"]))
    states = draw(st.sampled_from(STATES)) if schemes[scheme].sends_states else STATES[0]
    return f"{scheme}/contiguous/{kernel}@{axis}={TARGETS[target]},tile={tile},states={states}", target, work


def on_one_device(text: str) -> str:
    plan = parse_plan(text)
    return f"memory_efficient/contiguous/{plan.kernel}@tile={plan.tile}"


@settings(max_examples=60, deadline=None)
@given(st.one_of(plans(), linear_plans()))
def test_no_plan_beats_its_machine(given_plan: tuple[str, str, Workload]) -> None:
    text, target, work = given_plan
    plan = parse_plan(text)
    took, alone = seconds(text, target, work), seconds(on_one_device(text), target, work)
    masked = 1.0  # of splash, which masks all tiles of one device and visits as many dead ones
    if plan.kernel == "splash":
        known = nearest_entries(parse_target(target).hardware, work, plan)
        assert known
        costs = known.cost_source.by_pass.values()
        masked = max((each.boundary_s + each.dead_s) / each.whole_s for each in costs)
    assert took * plan.devices > alone / max(1.0, masked) * 0.999
    peak = parse_target(target).hardware.flops_per_s("bfloat16")
    assert peak and took > work.flops / plan.devices / peak
    assert seconds(text, target, replace(work, seq_len=2 * work.seq_len)) > took
    for part in ("compute", "communication", "latency", "memory"):
        assert seconds(text, target, work, part) <= took * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(linear_plans())
def test_no_plan_with_linear_layers_is_marked(given_plan: tuple[str, str, Workload]) -> None:
    text, target, work = given_plan
    measurements = [found(each, target, work) for each in (text, on_one_device(text))]
    run = with_speedups(measurements)
    assert [why_implausible(m, run) for m in measurements] == [None, None]
    fast = replace(measurements[0], median_s=(measurements[0].median_s or 0.0) / 1000)
    assert why_implausible(fast, run), "the bounds hold for linear layers too"


@settings(max_examples=30, deadline=None)
@given(plans())
def test_no_layout_gains_more_than_its_bound(given_plan: tuple[str, str, Workload]) -> None:
    """Where nothing is sent and no call costs anything but its tiles."""
    text, target, work = given_plan
    plan, place = parse_plan(text), parse_target(target)
    if plan.scheme == "ulysses":
        return
    took = []
    for layout in ("contiguous", plan.layout):
        own = replace(plan, layout=layout)
        machine = cost_model(place.hardware, work, own, place_mesh(place, own.mesh or ()))
        free = replace(machine, link_bytes_per_s_one_way=np.inf, hops={}, collective_spreads={}, hop_latency_s=0.0)
        took.append(simulate(work, own, replace(free, memory_bytes_per_s=np.inf, collective_latency_s=0.0)).seconds)
    assert took[0] / took[1] <= 2 - 1 / plan.shards + 0.02


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("layout", ["contiguous", "striped"])
def test_a_bidirectional_ring_is_within_15_percent_of_a_ring(target: str, layout: str) -> None:
    devices = TARGETS[target]
    alike = f"{layout}/pallas_tpu@ring={devices},tile=1024"
    one, both = (seconds(f"{scheme}/{alike}", target) for scheme in ("ring", "bidirectional"))
    assert both == pytest.approx(one, rel=0.15)
