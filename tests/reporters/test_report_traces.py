"""What the report says of profiles: as data, drawn, and from a run.json that is anybody's."""

import base64
import gzip
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stripectl.core.plan import read_plan
from stripectl.errors import BadInput
from stripectl.reporters.html import run_archive
from stripectl.reporters.html.charts import MAX_TABLE_ROWS
from stripectl.reporters.html.profiles import MAX_LANES, MAX_PROFILES, profile_content, thinned
from stripectl.reporters.html.timeline import HopChart, StepChart
from stripectl.reporters.html.vega_lite import filled
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import indexed
from stripectl.results.run import Run
from stripectl.util.files import data_folder, utf8
from tests.support.factories import run_of, timed_ring, with_parts
from tests.support.pages import HOSTILE, Page, carried_by, check_harmless, content_of, page_of, poison
from tests.support.traces import TRACE, large

COLOURS = {"compute": "var(--c1)", "exposed": "var(--c2)", "hidden": "var(--c3)", "skew": "currentColor"}
BUDGET = 1_500_000  # bytes of a page
PROFILE = "profiles/8k ring; rm -rf x"


def traced(trace: dict[str, Any], layout: str = "striped", **given: Any) -> Measurement:
    return timed_ring(layout, 0.6, profile=trace, **given)


def shown(trace: dict[str, Any]) -> dict[str, Any]:
    (found,) = content_of(run_of(traced(trace)))["traces"]["profiles"]
    return found


def test_a_run_without_a_trace_has_no_section() -> None:
    page = page_of(run_of(timed_ring("striped", 0.6)))
    assert 'href="#overlap"' not in page and 'id="overlap"' not in page
    assert "<dt>skew</dt>" not in page


@pytest.mark.parametrize(
    ("per", "title", "column"),
    [
        ("step", "Where does the time of a step go?", "step"),
        ("call", "Where does the time of a call go?", "call"),
        ("profile", "Where does the time of the whole profile go?", "profile"),
        (None, "Where does the time of a step go?", "step"),  # of an older run
    ],
)
def test_a_trace_names_the_part_that_its_figures_are_of(per: str | None, title: str, column: str) -> None:
    others = [{"module": "jit_other(2)", "calls": 4}, {"module": "jit_more(3)"}]
    found = shown(TRACE | {"per": per, "calls": 5 * (per == "call"), "other_programs": others})
    assert (found["timeline"].title, found["devices"]["columns"][1]) == (title, column)
    assert (
        found["others"]
        == "The profile has other programs, which no figure includes: jit_other (4 calls), jit_more (n/a)."
    )


def test_a_trace_is_headed_by_its_share_and_the_prediction() -> None:
    plan = traced(TRACE | {"profile": PROFILE})
    compiled = with_parts(timed_ring("striped", 0.6, "compiled"), overlap={"ratio": 0.875})
    (found,) = content_of(run_of(plan, compiled))["traces"]["profiles"]
    assert found["headline"] == (
        "25% of the communication hides on the device that computes longest (the compiled schedule predicts 88%)"
    )
    assert found["what"].endswith("on cpu:4; 3 steps of jit_step, 233% slower than without the profile")
    assert found["open"] == "xprof --logdir 'profiles/8k ring; rm -rf x' --port 8791"
    text = " ".join(Page(page_of(run_of(plan, compiled))).text)
    for words in (
        "Where does the time of a step go?",
        "Try: a longer block",
        PROFILE,
        "Overlap",
        "Which hops are exposed?",
    ):
        assert words in text
    unread = json.loads(json.dumps(run_of(plan, compiled).to_json()))
    unread["measurements"][1]["overlap"]["ratio"] = "half"
    with pytest.raises(BadInput, match=r"'half' is not a number of zero or more @ \$\.overlap\.ratio"):
        Run.from_json(unread, "run.json")


def test_a_step_is_lanes_and_their_seconds() -> None:
    found = shown(TRACE)["timeline"]
    assert (found.drawing.unit, found.drawing.end) == ("s", 2.0)
    assert [lane.device for lane in found.drawing.lanes] == ["TPU:0", "TPU:1"]
    assert found.drawing.lanes[0].parts == [("compute", 0.0, 1.0), ("hidden", 1.0, 2.0)]
    assert found.drawing.lanes[1].parts == [("exposed", 0.0, 0.5), ("idle", 0.5, 2.0)]
    assert found.table["columns"] == ["device", "compute alone", "hidden", "exposed", "skew", "idle"]
    assert found.table["rows"][0] == ["TPU:0", "1.00 s", "1.00 s", "0 ns", "0 ns", "0 ns"]
    assert found.table["rows"][1] == ["TPU:1", "0 ns", "0 ns", "500 ms", "0 ns", "1.50 s"]
    assert found.more[0]["table"]["rows"][2] == ["TPU:1", "exposed", "0 ns", "500 ms"]


def test_a_drawn_step_has_a_path_a_lane_and_kind() -> None:
    drawn = shown(TRACE)["timeline"].drawing.draw(320)
    for path, colour in (
        ("M0,0L300,0", COLOURS["compute"]),  # compute, alone and during a transfer
        ("M150,0L300,0", COLOURS["hidden"]),
        ("M0,0L75,0", COLOURS["exposed"]),
    ):
        assert any(path in mark and colour in mark for mark in drawn.split("<path"))
    assert "TPU:1</text>" in drawn


def test_the_exposed_hop_has_a_label_where_there_is_room() -> None:
    chart = shown(TRACE)["timeline"]
    first, second = chart.drawing.lanes
    assert first.label is None
    assert (second.label.start, second.label.end) == (0.0, 0.5)
    assert second.label.words.endswith(": 500 ms exposed")
    wide, narrow = chart.drawing.draw(720), chart.drawing.draw(160)
    places = [re.search(r"translate\(([\d.]+),([\d.]+)\)[^>]*>[^<]*500 ms exposed", drawn) for drawn in (wide, narrow)]
    assert places[0] and places[1]
    assert float(places[0][1]) > 0.25 * 700  # behind the part
    assert float(places[0][2]) - float(places[1][2]) > 20  # in the lower lane, and above it


def test_the_keys_of_the_page_have_the_colours_of_the_drawings() -> None:
    style = (data_folder("templates") / "style.css").read_text()
    scale = filled("step", {})["layer"][0]["encoding"]["color"]["scale"]
    assert dict(zip(scale["domain"], scale["range"], strict=True)) == COLOURS
    for kind, colour in COLOURS.items():
        assert re.search(rf"\.step i\.{kind} .*{re.escape(colour)}", style)
    dark = style.partition("prefers-color-scheme: dark")[2].partition("* {")[0]
    for name in ("--c1", "--c2", "--c3"):
        assert f"{name}: #" in style.partition("@media")[0] and f"{name}: #" in dark


def test_hops_are_bars_of_what_hides_shows_and_waits() -> None:
    found = shown(TRACE)["hops"]
    assert found.drawing.hops == ["1", "2", "3"]
    first = {bar.kind: (bar.low, bar.high) for bar in found.drawing.bars if bar.hop == "1"}
    assert found.drawing.unit == "s"
    assert first == {"hidden": (0.0, 0.5), "exposed": (0.5, 0.875), "skew": (0.875, 1.0)}
    assert not [bar for bar in found.drawing.bars if bar.hop == "2" and bar.kind == "skew"]
    assert found.table["columns"][-2:] == ["rate", "on"]
    assert found.table["numbers"][5:11] == [True] * 6
    assert shown(TRACE | {"hops_left_out": 4})["hops"].table["left_out"] == 4


def test_other_tables() -> None:
    found = shown(TRACE)
    assert found["causes"][0].which == "hop 2 and 1 more"
    assert [row[0] for row in found["devices"]["rows"]] == ["TPU:0", "TPU:1"]
    assert found["axes"]["rows"] == [["ring", "1.00 MiB", "n/a", "500 ms", "500 ms", "n/a"]]
    assert found["operations"]["rows"] == [["fusion.1", "fusion", "6", "1.00 s", "50%"]]


def test_a_profile_that_says_nothing_says_why() -> None:
    run = run_of(traced({"reason": "no profile: the worker died"}))
    found = content_of(run)["traces"]
    assert found["profiles"] == []
    assert found["others"]["rows"][0][-1] == "overlap n/a: no profile: the worker died"
    page = Page(page_of(run))
    check_harmless(page)
    assert "overlap n/a: no profile: the worker died" in page.text


@pytest.mark.parametrize("gone", ["hops", "axes", "operations", "timeline", "module", "steps"])
def test_parts_may_be_absent(gone: str) -> None:
    check_harmless(Page(page_of(run_of(traced({name: part for name, part in TRACE.items() if name != gone})))))


@pytest.mark.parametrize("end_s", [0.0, 1e-60, 1e60])
def test_a_step_of_any_length(end_s: float) -> None:
    row = [["compute", 0.0, end_s], ["compute", end_s, 0.0], ["what", 0.0, end_s], ["hidden", 0.0, 1e60]]
    check_harmless(Page(page_of(run_of(traced(TRACE | {"timeline": {"end_s": end_s, "devices": [row]}})))))


@pytest.mark.parametrize("end_s", [5e-324, 1e-300, 1e299, -1.0])
def test_a_step_of_no_length_that_a_unit_shows_is_refused(end_s: float) -> None:
    with pytest.raises(TypeError, match=r"timeline\.end_s"):
        traced(TRACE | {"timeline": {"end_s": end_s, "devices": []}})


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_shown_and_never_run(text: str) -> None:
    run = run_of(traced(poison(TRACE | {"profile": "x"}, text)), traced({"reason": text}, "zigzag"))
    strange = replace(run.measurements[0], plan=read_plan(text))
    page = Page(page_of(replace(run, measurements=[*run.measurements, strange])))
    check_harmless(page)
    assert utf8(text) in " ".join(page.text)


def test_many_devices_are_thinned_to_some_with_the_one_that_computes_longest() -> None:
    trace = large(64, 3, 10)
    trace["devices"][37]["compute_s"] = 9.0
    found = shown(trace)["timeline"]
    assert len(found.drawing.lanes) == MAX_LANES
    assert "TPU:37" in [lane.device for lane in found.drawing.lanes]
    assert found.more == []
    assert "16 of 64 devices" in page_of(run_of(traced(trace)))
    assert thinned(3, 16, 2) == [0, 1, 2]
    assert thinned(100_000, 16, 99_999)[-1] == 99_999


def test_a_huge_trace_is_cut_and_says_so() -> None:
    found = profile_content(traced(large(3000, 100, 100) | {"axes": TRACE["axes"] * 1000}), indexed([]))
    assert len(found["devices"]["rows"]) <= MAX_TABLE_ROWS
    assert found["devices"]["left_out"] == 3000 - len(found["devices"]["rows"])
    assert found["hops"] and isinstance(found["hops"].drawing, HopChart)
    assert found["hops"].table["left_out"] == 100 - MAX_TABLE_ROWS
    assert len(found["hops"].drawing.hops) == MAX_TABLE_ROWS
    assert found["axes"]["left_out"] == 1000 - MAX_TABLE_ROWS
    row = large(1, 1, 100_000)["timeline"]["devices"][0]
    wide = traced(TRACE | {"timeline": {"end_s": 1.0, "devices": [row, row]}})
    drawn = profile_content(wide, indexed([]))["timeline"]
    assert drawn and isinstance(drawn.drawing, StepChart)
    assert all(len(lane.parts) <= 500 for lane in drawn.drawing.lanes)


def test_a_large_run_keeps_the_page_small(tmp_path: Path) -> None:
    trace = large(64, 64, 500)
    plans = [traced(trace, flags={"number": str(at)}) for at in range(MAX_PROFILES + 3)]
    page = page_of(run_of(*plans))
    assert len(page.encode()) < BUDGET
    assert "3 more profiles are not drawn" in page
    assert page.count('<figure class="step') == MAX_PROFILES
    check_harmless(Page(page))
    assert len(carried_by(page, tmp_path).measurements) == len(plans)


def test_of_too_large_a_run_profiles_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [math.sin(at) ** 2 for at in range(2000)]
    timeline = {"end_s": 2.0, "devices": [[["compute", at, 2.0] for at in times]]}
    hops = [TRACE["hops"][0] | {"window_s": [math.cos(at) ** 2] * 2} for at in range(500)]
    run = run_of(traced(TRACE | {"timeline": timeline, "hops": hops}))
    every = {*TRACE}
    for limit, left, words in (
        (10**6, every, ""),
        (15_000, every - {"timeline"}, ", without the timelines of its profiles"),
        (3_000, set(), ", without its profiles"),
        (10, set(), ", without its profiles, without plans that have no time"),
    ):
        monkeypatch.setattr(run_archive, "MAX_ARCHIVE_BYTES", limit)
        content, left_out = run_archive.data_link(run)
        (held,) = json.loads(gzip.decompress(base64.b64decode(content)))["measurements"]
        assert {name for name, part in (held["profile"] or {}).items() if part} == left
        assert left_out == words
