"""What the charts of a report show, as data: each from measurements whose answer is known."""

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from stripectl.analysis.link_load import carried_bytes, traffic
from stripectl.core.model import MODEL_SIZES
from stripectl.core.plan import read_plan
from stripectl.core.workload import STEP, Workload
from stripectl.hardware.placement import TorusLink, place_mesh
from stripectl.hardware.target import parse_target, read_target
from stripectl.reporters.html.accuracy import Scatter
from stripectl.reporters.html.bar_chart import Bars
from stripectl.reporters.html.charts import Chart, ChartGroup, Rule, chart_table, section
from stripectl.reporters.html.heatmap import Heatmap
from stripectl.reporters.html.line_chart import Curves
from stripectl.reporters.html.links import Links
from stripectl.reporters.html.roofline import Roofline
from stripectl.reporters.html.speedup import ABOVE_BOUND
from stripectl.results.case import Method
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from tests.support.factories import FORWARD, LONG, because, ring_plan, run_of, timed_ring, with_parts
from tests.support.pages import content_of

GIB = 2**30
BOTH = ("contiguous", "zigzag")
TPU = replace(LONG, dtype="bfloat16")
Drawn = TypeVar("Drawn")


def charts(part: str, *measurements: Measurement) -> list[Chart]:
    found = content_of(run_of(*measurements))["sections"][part]
    drawn = [chart for group in found["groups"] for chart in group["charts"]]
    assert all(chart.drawing.draw(width).startswith("<svg") for chart in drawn for width in (332, 640))
    return drawn


def drawing(chart: Chart, of: type[Drawn]) -> Drawn:
    assert isinstance(chart.drawing, of)
    return chart.drawing


def at(seq_len: int, layout: str, time_s: float, method: Method = "compiled", **given: Any) -> Measurement:
    return timed_ring(layout, time_s, method, replace(TPU, seq_len=seq_len), **given)


def test_speed_ups_over_the_lengths_of_the_run_with_bounds_and_intervals() -> None:
    lengths = {4096: (4.0, 3.0), 8192: (16.0, 10.0)}
    run = [at(n, name, time) for n, both in lengths.items() for name, time in zip(BOTH, both, strict=True)]
    (chart,) = charts("speedup", *run)
    curves = drawing(chart, Curves)
    assert [(row.tokens, row.value, row.method) for row in curves.points] == [
        (4096, pytest.approx(4 / 3), "compiled"),
        (8192, 1.6, "compiled"),
    ]
    assert [row.value for row in curves.dotted] == [1.7, 1.7]
    assert chart.note == f"Speed-ups are over {ring_plan('contiguous').partition(',')[0]}."
    assert "ring/zigzag" in curves.series[0]
    measured = [replace(timed_ring(str(m.plan).split("/")[1], m.median_s or 0.0), workload=m.workload) for m in run]
    (chart,) = charts("speedup", *measured)
    assert all((row.low or 9) <= row.value <= (row.high or 0) for row in drawing(chart, Curves).points)
    assert chart.table["rows"][1][4] == "1.60 to 1.60"


def test_flags_of_the_compiler_are_part_of_a_plan() -> None:
    """With and without a flag at several lengths, of a step too, and from the scaling of one length."""
    scaling = [{"seq_len": n, "median_s": n / 4096} for n in (2048, 4096)]
    for n_lengths, passes in ((2, "forward"), (2, STEP), (1, "forward")):
        run = [
            replace(
                timed_ring(name, time_s, "compiled", scaling=scaling, flags=flags),
                workload=replace(
                    TPU, seq_len=n, passes=passes, **(dict.fromkeys(MODEL_SIZES, 256) if passes == STEP else {})
                ),
            )
            for n in (4096, 8192)[:n_lengths]
            for name, time_s in zip(BOTH, (2.0, 1.0), strict=True)
            for flags in (None, {"xla_tpu_foo": "true"})
        ]
        (chart,) = charts("speedup", *run)
        assert any("xla_tpu_foo=true" in row[0] for row in chart.table["rows"])
        for kind in ("memory", "tiles", "mesh", "time"):
            charts(kind, *(replace(m, peak_bytes=1, hbm_bytes=2) for m in run))


def test_a_bound_is_over_a_base_that_differs_in_its_layout_alone() -> None:
    run = [at(n, name, 1.0) for n in (4096, 8192) for name in BOTH]
    other = [
        replace(m, plan=read_plan(str(m.plan).replace("tile=64x64", "tile=64x128")))
        for m in run
        if "zigzag" in str(m.plan)
    ]
    (chart,) = charts("speedup", *run, *other)
    bounds = {(row[0], row[5]) for row in chart.table["rows"]}
    assert {bound for name, bound in bounds if "64x128" in name} == {"n/a"}
    assert {bound for name, bound in bounds if "64x64" in name} == {"1.70x"}


def test_speed_ups_of_one_length_come_from_the_scaling_of_plans() -> None:
    curves = {"contiguous": [(2048, 1.0), (4096, 4.0)], "zigzag": [(2048, 1.0), (4096, 2.5)]}
    run = [
        at(4096, name, curve[-1][1], "simulated", scaling=[{"seq_len": n, "median_s": s} for n, s in curve])
        for name, curve in curves.items()
    ]
    (chart,) = charts("speedup", *run)
    assert [(row.tokens, row.value) for row in drawing(chart, Curves).points] == [(2048, 1.0), (4096, 1.6)]
    assert chart.methods == ["simulated"]


def test_published_speed_ups_are_stars() -> None:
    run = Run.load(Path(__file__).parents[2] / "examples" / "runs" / "published.json.gz")
    found = [chart for group in content_of(run)["sections"]["speedup"]["groups"] for chart in group["charts"]]
    stars = {(star.tokens, star.value) for chart in found for star in drawing(chart, Curves).stars}
    assert {(131072, 1.25), (131072, 1.35), (131072, 1.29)} <= stars  # 1B on A100, rings of 2, 4 and 8
    ((near,),) = (group["charts"] for group in content_of(run)["sections"]["predicted"]["groups"])
    assert near.title == "How close is it to what was published?"
    assert len(drawing(near, Scatter).marks) == 68


def test_tiles_stand_by_their_ratio_and_refused_ones_say_why() -> None:
    def tiled(tile: str, time_s: float | None, **given: Any) -> Measurement:
        return with_parts(
            timed_ring("striped", time_s or 1.0, "compiled"),
            plan=read_plan(f"ring/striped/xla@ring=4,tile={tile}"),
            **given,
        )

    refused = tiled("128x128", None, status="refused", median_s=None, reason=because("too large"))
    rough = tiled("32x64", 3.0, method="simulated", cost_source={"source": "one_block"})
    (chart,) = charts("tiles", tiled("64x64", 2.0), tiled("64x128", 1.0), refused, rough)
    cells = {(cell.down, cell.across): cell for cell in drawing(chart, Heatmap).cells}
    assert (cells["64", "128"].first, cells["64", "128"].wins) == ("1.00x", True)
    assert cells["64", "64"].first == "2.00x"
    assert (cells["128", "128"].first, cells["128", "128"].second) == ("✕", "refused")
    assert ["128x128", "compiled", "n/a", "n/a", "too large"] in chart.table["rows"]
    assert cells["32", "64"].first.startswith("~")
    assert drawing(chart, Heatmap).across.order == ["64", "128"]


def test_tiles_of_a_backward_pass_are_a_chart_of_their_own() -> None:
    both = replace(FORWARD, passes="forward-backward")
    plans = ("tile=64x64", "tile=64x64,backward=32x32", "tile=64x64,backward=32x64")
    run = [
        replace(timed_ring("striped", time_s, "compiled", both), plan=read_plan(f"ring/striped/xla@ring=4,{plan}"))
        for plan, time_s in zip(plans, (3.0, 2.0, 1.0), strict=True)
    ]
    (chart,) = charts("tiles", *run)
    assert "tiles of the backward pass" in chart.subject
    assert [(cell.down, cell.across) for cell in drawing(chart, Heatmap).cells if cell.wins] == [("32", "64")]


def test_memory_is_lines_over_lengths_with_the_rule_and_crosses() -> None:
    fits = [at(n, "zigzag", 1.0, peak_bytes=n * 2**20, hbm_bytes=8 * GIB) for n in (2048, 4096)]
    large = replace(fits[1], workload=replace(TPU, seq_len=16384), status="refused", peak_bytes=16 * GIB, median_s=None)
    (chart,) = charts("memory", *fits, large)
    curves = drawing(chart, Curves)
    assert [(each.tokens, each.value) for each in curves.points] == [(2048, 2.0), (4096, 4.0)]
    assert [(each.tokens, each.value) for each in curves.crosses] == [(16384, 16.0)]
    assert curves.rules == [Rule(8.0, "a device has 8.00 GiB")]
    (chart,) = charts("memory", fits[0])
    assert drawing(chart, Bars).rules == [Rule(8.0, "a device has 8.00 GiB")]


def test_meshes_are_compared_and_drawn_with_what_links_carry() -> None:
    def meshed(mesh: str, time_s: float) -> Measurement:
        tiles = {"tile": "64x64", "computed": 1, "useful": 1, "efficiency": 1.0, "per_round": [[1]]}
        return with_parts(
            timed_ring("zigzag", time_s, "simulated", replace(TPU, heads=16, kv_heads=16)),
            plan=read_plan(f"ring/zigzag/xla@{mesh},tile=64x64"),
            target=read_target("v5e:4x4"),
            tiles=tiles,
        )

    bars, *links = charts("mesh", meshed("ring=16", 2.0), meshed("ring=4,tensor=4", 1.0))
    meshes = [bar.name.partition("@")[2].partition(",tile")[0] for bar in drawing(bars, Bars).bars]
    assert meshes == ["ring=4,tensor=4", "ring=16"]
    assert [chart.subject.partition(":")[0] for chart in links] == ["ring=4, tensor=4", "ring=16"]
    assert [len(drawing(chart, Links).dots) for chart in links] == [16, 16]
    assert sum(line.load > 0 for line in drawing(links[1], Links).lines) == 16


def test_bytes_of_a_ring_lie_on_the_links_of_its_cycle() -> None:
    m = replace(
        timed_ring("zigzag", 1.0, "simulated", TPU),
        plan=read_plan("ring/zigzag/xla@ring=4,tile=64x64"),
        target=read_target("v5e:2x2"),
    )
    work, along = m.workload, traffic(m)
    each = 2 * (work.seq_len // 4) * work.kv_heads * work.head_dim * 2  # K and V in bfloat16
    assert along == {("ring", "collective-permute"): 3 * each}
    carried = carried_bytes(place_mesh(parse_target("v5e:2x2"), (("ring", 4),)), along)
    assert carried.network == 0
    assert set(carried.links.values()) == {3 * each}
    assert set(carried.links) == {
        TorusLink(0, (0, 0), 0),
        TorusLink(0, (0, 1), 0),
        TorusLink(0, (0, 0), 1),
        TorusLink(0, (1, 0), 1),
    }
    assert carried_bytes(place_mesh(parse_target("2*v5e:1x1"), (("ring", 2),)), along).network == 2 * 3 * each


def test_bytes_of_a_compiled_step_are_shared_out_over_its_axes() -> None:
    told = {"opcode": "all-gather", "pass": "forward", "dtype": "bf16", "asynchronous": True, "beside_tiles": False}
    program = {"collectives": [told | {"axis": "ring+tensor", "sent_bytes": 10, "times": 3}]}
    plan = "ring/zigzag/xla@ring=2,tensor=2,tile=64x64"
    m = with_parts(timed_ring("zigzag", 1.0, "compiled", TPU), plan=read_plan(plan), compiled_program=program)
    assert traffic(m) == {("ring", "all-gather"): 15, ("tensor", "all-gather"): 15}


def test_an_all_to_all_counts_on_every_link_between() -> None:
    placement = place_mesh(parse_target("v5e:2x2"), (("ulysses", 4),))
    carried = carried_bytes(placement, {("ulysses", "all-to-all"): 300.0})
    assert set(carried.links.values()) == {300 * (1 + 2 + 1) / 3}


def test_an_all_to_all_between_nodes_crosses_the_network_from_every_device_to_every_other() -> None:
    placement = place_mesh(parse_target("2*h100:8"), (("ulysses", 16),))
    assert carried_bytes(placement, {("ulysses", "all-to-all"): 15.0}).network == pytest.approx(16 * 8)
    assert carried_bytes(placement, {("ulysses", "collective-permute"): 15.0}).network == 2 * 15


def test_bars_are_those_of_the_strongest_method_first_without_what_it_refuses() -> None:
    fast, slow = timed_ring("striped", 0.1, "simulated"), timed_ring("zigzag", 9.0, "compiled")
    refused = replace(
        timed_ring("striped", 1.0, "compiled"), status="refused", median_s=None, reason=because("does not fit")
    )
    (chart,) = charts("time", fast, slow, refused)
    assert [bar.method for bar in drawing(chart, Bars).bars] == ["compiled"]
    assert "zigzag" in chart.label


def test_plans_that_tie_have_the_colour_of_the_answer() -> None:
    run = [at(4096, name, time) for name, time in (("zigzag", 1.0), ("striped", 1.001), ("contiguous", 1.6))]
    (chart,) = charts("time", *run)
    assert [bar.best for bar in drawing(chart, Bars).bars] == [True, True, False]
    (chart,) = charts("memory", *(replace(m, peak_bytes=need) for m, need in zip(run, (2, 2, 3), strict=True)))
    assert [bar.best for bar in drawing(chart, Bars).bars] == [True, True, False]


def test_a_compiled_plan_and_its_simulation_share_a_row() -> None:
    (chart,) = charts("time", at(4096, "zigzag", 2.0), at(4096, "zigzag", 1.5, "simulated"))
    assert [(bar.method, bar.value, bar.predicted) for bar in drawing(chart, Bars).bars] == [("compiled", 2.0, 1.5)]
    assert [row[2] for row in chart.table["rows"]] == ["compiled", "simulated"]


def test_a_gain_above_its_bound_has_the_reason() -> None:
    for time_s, above in ((2.0, False), (1.75, True)):
        run = [at(n, name, time) for n in (4096, 8192) for name, time in (("contiguous", 3.0), ("zigzag", time_s))]
        (chart,) = charts("speedup", *run)
        assert (ABOVE_BOUND in chart.note) == above
        hero = content_of(run_of(*run[:2]))["first"]["chart"]
        assert (hero.note == ABOVE_BOUND) == above


def test_the_roof_is_that_of_the_hardware() -> None:
    m = replace(at(4096, "zigzag", 1e-3, peak_flops_per_s=1.97e14), target=read_target("v5e:2x2"))
    (chart,) = charts("roofline", m)
    roofline = drawing(chart, Roofline)
    assert roofline.marks[0].intensity == 64  # 4 FLOPs of a head's size a score, 4 bytes of K and V a key: 64 queries
    assert roofline.roof[1].intensity == pytest.approx(1.97e14 / 8.19e11)
    assert roofline.marks[0].roof == pytest.approx(64 * 8.19e11 / 1e12)
    assert not charts("roofline", timed_ring("zigzag", 1.0))  # nobody publishes a CPU's
    dense = replace(m, plan=read_plan("rsa/contiguous/dense@ring=4,tile=64x64"))
    (chart,) = charts("roofline", dense)
    assert drawing(chart, Roofline).marks[0].intensity < 32  # scores pass through memory


def test_of_many_groups_those_of_the_longest_sequences_are_drawn() -> None:
    empty = Chart("?", "", [], "", chart_table((), (), ()), Bars((), ""))
    groups: list[ChartGroup] = [{"title": str(n), "charts": [replace(empty, seq_len=n)] * 3} for n in (4, 1, 3, 2)]
    found = section("x", "X", "?", "", groups, "", (2, 2))
    assert [group["title"] for group in found["groups"]] == ["4", "3"]
    assert (found["left_out"], found["groups"][0].get("left_out")) == (2, 1)


def test_steps_have_a_bar_a_plan_and_one_device_a_word() -> None:
    alone = replace(
        timed_ring("contiguous", 9.0),
        plan=read_plan("ring/contiguous/xla@ring=1,tile=64x64"),
        target=read_target("cpu:1"),
    )
    (chart,) = charts("time", timed_ring("striped", 1.0), timed_ring("zigzag", 0.5), alone)
    assert [(bar.value, bar.method) for bar in drawing(chart, Bars).bars] == [(0.5, "measured"), (1.0, "measured")]
    assert all((bar.low or 9) < bar.value < (bar.high or 0) for bar in drawing(chart, Bars).bars)
    assert chart.note == "One device takes 9.00 s (measured)."


def test_workloads_differ_by_more_than_length() -> None:
    other = Workload(seq_len=512, heads=4, kv_heads=4, head_dim=64, dtype="float32")
    found = content_of(run_of(timed_ring("striped", 1.0), timed_ring("striped", 1.0, "measured", other)))["sections"][
        "time"
    ]["groups"]
    assert len(found) == 2
