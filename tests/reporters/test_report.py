import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stripectl.cli.report import command
from stripectl.core.plan import read_plan
from stripectl.errors import BadInput
from stripectl.hardware.target import read_target
from stripectl.reporters.html import run_archive
from stripectl.reporters.html.glossary_links import GlossaryLinks
from stripectl.reporters.html.measurements import BLANK
from stripectl.reporters.html.page import content_hash
from stripectl.results.case import Method
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from stripectl.util.files import utf8
from tests.support.factories import FORWARD, LONG, because, ring_plan, run_of, timed_ring
from tests.support.pages import HOSTILE, Page, carried_by, check_harmless, content_of, page_of, poison

LAYOUTS = ("contiguous", "striped", "zigzag")


@pytest.fixture(scope="module")
def bench() -> Run:
    """The long ring simulated, the small one measured beside its simulation, one plan refused."""
    long = [timed_ring(name, time_s, "simulated", LONG) for name, time_s in zip(LAYOUTS, (340, 205, 202), strict=True)]
    measured = [timed_ring(name, time_s) for name, time_s in zip(LAYOUTS, (0.8, 0.6, 0.5), strict=True)]
    small = [timed_ring(name, time_s, "simulated") for name, time_s in zip(LAYOUTS, (0.68, 0.5, 0.4), strict=True)]
    alone = replace(
        long[0], plan=read_plan("ring/contiguous/xla@tile=64x64"), target=read_target("cpu:1"), median_s=790.0, bytes={}
    )
    refused = replace(
        long[0],
        plan=read_plan(ring_plan("zigzag")),
        status="refused",
        reason=because("511 rows are odd"),
        median_s=None,
    )
    return run_of(
        *long, alone, *measured, *small, refused, warnings=["1.5 of 2 cores are busy"], versions={"jax": "0.10"}
    )


@pytest.fixture(scope="module")
def page_text(bench: Run) -> str:
    return page_of(bench)


def card_of(*measurements: Measurement) -> dict[str, Any]:
    return content_of(run_of(*measurements))["cards"][0]


def test_card_names_the_fastest_with_its_interval_and_bound() -> None:
    found = card_of(*(timed_ring(name, time_s) for name, time_s in zip(LAYOUTS, (0.8, 0.6, 0.5), strict=True)))
    assert (
        found["answer"]
        == "Use zigzag ring attention with tiles of 64 x 64: 1.60x faster than contiguous ring attention."
    )
    assert (found["time"].method, found["time"].value) == ("measured", "500 ms ±1.0%")
    said = {each.name: each.text for each in found["statements"]}
    most = "the balance of tiles allows 1.70x"
    assert said["gain"] == f"1.60x (95 % interval 1.60 to 1.60) over {ring_plan('contiguous')}; {most}"
    assert found["reasons"][0].startswith("It is 1.60x as fast as contiguous (95 % interval 1.60 to 1.60)")
    assert "94% of the 1.70x that the balance of its tiles allows" in found["reasons"][0]
    assert "5 samples" in said["confidence"]


def test_plans_that_tie_are_one_answer_with_two_names(bench: Run) -> None:
    found = content_of(bench)["first"]
    assert found["answer"] == (
        "Use zigzag or striped ring attention with tiles of 64 x 64: 1.68x faster than contiguous ring attention."
    )
    assert found["question"] == (
        "Which plan is fastest for a forward pass of attention of model 1b over 4k tokens on cpu:4 (4 devices)?"
    )
    assert {bar.name: bar.best for bar in found["chart"].drawing.bars} == {
        "ring/zigzag": True,
        "ring/striped": True,
        "ring/contiguous": False,
    }
    assert "4 devices are 3.91x as fast as one device" in found["reasons"][0]
    assert "times were off by up to 20%" in found["confidence"].sentence


def test_the_first_screen_has_its_figures_with_their_methods_and_the_bound_on_its_chart() -> None:
    run = [
        timed_ring(name, time_s, peak_bytes=2**30, hbm_bytes=2**31)
        for name, time_s in zip(LAYOUTS, (8, 6, 5), strict=True)
    ]
    twin = timed_ring("zigzag", 4.5, "simulated")
    found = content_of(run_of(*run, twin))["first"]
    assert [(fact.name, fact.value, fact.method) for fact in found["facts"]] == [
        ("time", "5.00 s ±1.0%", "measured"),
        ("gain", "1.60x", "measured"),
        ("memory", "1.00 GiB", "measured"),
    ]
    assert found["facts"][2].note == "50% of the 2.00 GiB of a device"
    assert (found["confidence"].level, found["confidence"].grade) == (4, "high")
    assert found["chart"].drawing.rules == [(pytest.approx(8 / 1.7), "bound 1.70x: 4.71 s")]
    assert [(bar.name, bar.value, bar.predicted) for bar in found["chart"].drawing.bars] == [
        ("ring/zigzag", 5.0, 4.5),
        ("ring/striped", 6.0, None),
        ("ring/contiguous", 8.0, None),
    ]


def test_a_gain_above_its_bound_has_its_reason() -> None:
    slow, fast = timed_ring("contiguous", 1.0, "simulated"), timed_ring("zigzag", 0.58, "simulated")
    found = content_of(run_of(slow, fast))["first"]
    assert found["facts"][1].value == "1.72x"
    assert found["facts"][1].note.startswith("above its bound, which counts all tiles as equally expensive")


def test_confidence_is_lower_the_less_is_known() -> None:
    def level(method: Method, **given: Any) -> int:
        both = (timed_ring(name, t, method, **given) for name, t in (("contiguous", 2.0), ("zigzag", 1.0)))
        return content_of(run_of(*both))["first"]["confidence"].level

    assert level("measured") == 4
    assert level("measured", ci95_s=(0.8, 1.2)) == 3
    assert level("measured", ci95_s=None, samples_s=(1.0,)) == 2
    assert level("simulated", cost_source={"source": "datasheet"}) == 1


def test_what_limits_the_best_plan_are_shares_of_the_time_that_each_part_would_save() -> None:
    shares = {"compute": 0.1, "communication": 0.3, "latency": 0.0, "memory": 0.0}
    found = content_of(run_of(timed_ring("zigzag", 0.5, bottleneck_shares=shares)))["first"]["limits"]
    assert found["sentence"] == "If communication were twice as fast, the plan would take 30% less time."
    assert [(each["part"], each["low"], each["share"]) for each in found["segments"]] == [
        ("compute", 0.0, pytest.approx(25)),
        ("communication", pytest.approx(25), pytest.approx(75)),
    ]


def test_every_workload_is_a_cell_that_leads_to_its_details(bench: Run) -> None:
    found = content_of(bench)
    cells = [cell for row in found["matrix"]["rows"] for cell in row["cells"] if cell]
    assert [cell["names"] for cell in cells] == ["ring/zigzag", "ring/zigzag or ring/striped"]
    assert [cell["gain"] for cell in cells] == ["1.60x", "1.68x"]
    assert [card["answer"].split(":")[0] for card in found["cards"]] == [
        "Use zigzag or striped ring attention with tiles of 64 x 64",
        "Use zigzag ring attention with tiles of 64 x 64",
    ]
    page = Page(page_of(bench))
    ids = {attributes.get("id") for _, attributes in page.tags}
    assert {f"w{at}" for at in range(2)} <= ids
    assert content_of(run_of(timed_ring("zigzag", 0.5)))["matrix"] is None


def test_the_matrix_takes_the_shape_with_the_fewest_empty_cells() -> None:
    works = [replace(FORWARD, seq_len=n, passes=p) for n in (512, 1024) for p in ("forward", "forward-backward")]
    matrix = content_of(run_of(*(timed_ring("zigzag", 1.0, "simulated", work) for work in works)))["matrix"]
    assert matrix["columns"] == ["forward", "forward-backward"]
    assert [row["length"] for row in matrix["rows"]] == ["512 tokens", "1k tokens"]
    assert all(cell for row in matrix["rows"] for cell in row["cells"])


def test_limits_and_crossover_show_their_method() -> None:
    limits = {"compute": 0.1, "communication": 0.4, "latency": 0.0, "memory": 0.0}
    slow, fast = [(256, 0.2), (512, 0.8), (1024, 3.2)], [(256, 0.32), (512, 0.5), (1024, 1.6)]
    scaling = [[{"seq_len": at, "median_s": time_s} for at, time_s in curve] for curve in (slow, fast)]
    found = card_of(
        timed_ring("contiguous", 0.8, bottleneck_shares=limits, scaling=scaling[0]),
        timed_ring("zigzag", 0.5, bottleneck_shares=limits, scaling=scaling[1]),
    )
    limited, _, change = [each for each in found["statements"] if each.name in ("bound by", "margin", "crossover")]
    assert limited.text.startswith(
        "communication: 40% less time if communication were twice as fast (simulated); for the other parts: compute"
    )
    assert limited.method == "simulated"
    assert change.text == (
        f"below about 362, between 256 and 512 tokens, {ring_plan('contiguous')} is faster (simulated)"
    )


def test_the_page_holds_what_to_use(page_text: str) -> None:
    text = " ".join(Page(page_text).text)
    assert "sequence_parallel_attention(q, k, v, plan, mesh" in text
    assert "seqlen: 4k" in text
    assert "MaxText's context parallelism is for TPUs and GPUs, not cpu." in text


def test_simulation_stands_beside_what_it_simulates(bench: Run) -> None:
    ((chart,),) = (group["charts"] for group in content_of(bench)["sections"]["predicted"]["groups"])
    assert [row[0] for row in chart.table["rows"]] == [ring_plan(name) for name in LAYOUTS]
    assert [row[4] for row in chart.table["rows"]] == ["-15%", "-17%", "-20%"]
    assert [row[-1] for row in chart.table["rows"]] == ["n/a", "+2%", "+6%"]
    assert [(mark.x, mark.y) for mark in chart.drawing.marks] == [(800, 680), (600, 500), (500, 400)]


def test_table_has_every_measurement_with_its_method_or_reason(bench: Run) -> None:
    tables = content_of(bench)["tables"]
    assert sum(len(table["rows"]) for table in tables) == len(bench.measurements)
    first, last = tables[0]["rows"][0], tables[0]["rows"][-1]
    assert (first["method"], [cell.text for cell in first["cells"][:2]]) == ("simulated", ["340 s", "base"])
    assert first["cells"][0].value == 340
    assert (last["status"], last["reason"]) == ("refused", "511 rows are odd")
    alone = dict(zip(tables[0]["columns"], tables[0]["rows"][3]["cells"], strict=True))
    assert (alone["speed-up"], alone["sent"]) == (BLANK, BLANK)
    assert {"column": "sent", "why": "one device sends nothing"} in tables[0]["lacking"]
    assert "simulation is off by" not in tables[0]["columns"]


def test_work_shows_idle_devices_on_one_scale(bench: Run) -> None:
    works = content_of(bench)["sections"]["work"]["groups"]
    assert [len(group["charts"]) for group in works] == [3, 3]
    contiguous, striped, _ = works[0]["charts"]
    assert contiguous.drawing.most == striped.drawing.most == 4
    assert contiguous.drawing.rows[0] == (0, [3, 0, 0, 0])
    assert contiguous.note == "36 tiles, 15 on the critical path; devices work 60% of the time."
    assert striped.note.endswith(" 12 on the critical path; devices work 100% of the time.")


def test_many_devices_are_thinned_and_say_so() -> None:
    rows = [[int(device >= at) for at in range(100)] for device in range(100)]
    big = timed_ring(
        "striped", 1.0, "simulated", tiles={"computed": 5050, "useful": 1, "efficiency": 0.5, "per_round": rows}
    )
    chart = content_of(run_of(big))["sections"]["work"]["groups"][0]["charts"][0]
    assert chart.drawing.rows[1] == (7, [1, 1, *[0] * 13])
    assert chart.note.endswith("The figure shows 1 of every 7 devices and 1 of every 7 rounds.")
    assert chart.note.startswith("5,050 tiles, ")


def test_calibration_in_words_and_units(bench: Run) -> None:
    (calibration,) = content_of(bench)["calibrations"]
    assert calibration["used_by"] == 7
    rows = {label: value for part in calibration["facts"] for label, value in part["rows"]}
    assert rows["a whole tile"] == "750 us"
    assert rows["held-out block: error"] == "-1.7%"
    assert rows["rate, one way"] == "1.35 GB/s"


def test_each_number_has_its_command(bench: Run) -> None:
    behind = content_of(bench)["behind"]
    commands = [each["command"] for each in behind]
    assert len(commands) == len([m for m in bench.measurements if m.status == "ok"])
    ids = [row["id"] for table in content_of(bench)["tables"] for row in table["rows"] if row["status"] == "ok"]
    assert ids == [each["id"] for each in behind]
    assert behind[4]["figures"][0] == ("samples", "792 ms, 796 ms, 800 ms, 804 ms, 808 ms")
    assert commands[0] == (
        "stripectl bench --plan ring/contiguous/xla@ring=4,tile=64x64 --seqlen 4k --model 1b --dtype float32 "
        "--pass forward --target cpu:4 --method simulated"
    )


def test_page_is_whole_and_holds_the_run(bench: Run, page_text: str, tmp_path: Path) -> None:
    page = Page(page_text)
    check_harmless(page)
    drawings = [attributes for _, attributes in page.tags if attributes.get("class") == "drawing"]
    groups = [group["charts"] for part in content_of(bench)["sections"].values() for group in part["groups"]]
    assert len(drawings) == 1 + sum(map(len, groups))
    variants = 2 + sum(2 if len(charts) == 1 else len(charts) for charts in groups)  # for wide and narrow screens
    assert sum(attributes.get("xmlns") is not None for tag, attributes in page.tags if tag == "svg") == variants
    assert all(attributes["aria-label"] for attributes in drawings)
    assert all("scope" in attributes for tag, attributes in page.tags if tag == "th")
    assert carried_by(page_text, tmp_path).measurements[4].samples_s == bench.measurements[4].samples_s
    assert "1.5 of 2 cores are busy" in " ".join(page.text)


def test_every_chart_is_a_question_with_its_method_and_a_table(bench: Run) -> None:
    for part in content_of(bench)["sections"].values():
        assert part["title"].endswith("?")
        assert part["absent"].endswith(".")
        for chart in (chart for group in part["groups"] for chart in group["charts"]):
            assert chart.title.endswith("?")
            assert chart.methods
            assert chart.table["rows"]
            assert all(len(row) == len(chart.table["columns"]) for row in chart.table["rows"])


def test_the_policy_lets_the_page_run_its_own_script_and_nothing_else(page_text: str) -> None:
    policy = next(attributes["content"] for _, attributes in Page(page_text).tags if attributes.get("http-equiv"))
    assert policy
    script = page_text.partition("<script>")[2].partition("</script>")[0]
    style = page_text.partition("<style>")[2].partition("</style>")[0]
    assert f"script-src '{content_hash(script)}'" in policy
    assert f"style-src '{content_hash(style)}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_a_large_run_is_carried_without_what_was_refused(
    bench: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run_archive, "MAX_ARCHIVE_BYTES", 100)
    text = page_of(bench)
    assert {m.status for m in carried_by(text, tmp_path).measurements} == {"ok"}
    assert "run.json.gz, without plans that have no time" in text


def test_same_run_same_page(bench: Run, page_text: str) -> None:
    assert page_of(bench) == page_text


def test_nothing_timed_and_nothing_at_all() -> None:
    failed = [
        replace(timed_ring(name, 1.0), status="failed", reason=because("worker died"), median_s=None)
        for name in LAYOUTS
    ]
    for run in (run_of(*failed), run_of()):
        assert content_of(run)["first"] is None
        page = Page(page_of(run))
        check_harmless(page)
        assert page.count("svg") == 0
    assert "worker died" in page_of(run_of(*failed))
    assert "This run has no measurements" in page_of(run_of())


def test_what_a_run_does_not_show_is_said_with_what_to_run(bench: Run) -> None:
    lacking = {each["title"]: each["why"] for each in content_of(bench)["lacking"]}
    assert "stripectl tune-tiles" in lacking["Which tile is fastest?"]
    assert "--profile" in lacking["How much of the communication hides?"]
    assert "How far are predictions from measurements?" not in lacking


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_and_never_runs(bench: Run, text: str) -> None:
    changed = [Measurement.from_json(poison(m.to_json(), text)) for m in bench.measurements]
    changed = [replace(m, workload=replace(m.workload, model=text)) for m in changed]
    broken = [replace(changed[0], plan=read_plan(text)), replace(changed[0], plan=read_plan(text), status="refused")]
    run = Run(text, text, text, poison(bench.environment, text), [*changed, *broken])
    page = Page(page_of(run))
    check_harmless(page)
    assert utf8(text) in " ".join(page.text)
    assert page.count("svg") > 0


def test_a_plan_of_another_version_is_a_row_with_a_reason() -> None:
    unknown = replace(timed_ring("striped", 1.0), plan=read_plan("moebius/striped/xla@ring=4"))
    row = content_of(run_of(unknown))["tables"][0]["rows"][0]
    assert row["status"] == "failed"
    assert "moebius" in row["reason"]


def test_command_writes_beside_the_run(bench: Run, tmp_path: Path) -> None:
    run_of(bench.measurements[0]).save(tmp_path)
    result = CliRunner().invoke(command, [str(tmp_path), "--no-open", "--quiet"], standalone_mode=False)
    assert result.exception is None
    assert result.output.strip() == str(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().lstrip().startswith("<!doctype html>")


def test_command_does_not_replace_the_run(bench: Run, tmp_path: Path) -> None:
    path = bench.save(tmp_path)
    result = CliRunner().invoke(command, [str(path), "-o", str(path)], standalone_mode=False)
    assert isinstance(result.exception, BadInput)
    assert Run.load(path).id == "one"


def test_jax_stays_out(bench: Run, tmp_path: Path) -> None:
    run_of(bench.measurements[0]).save(tmp_path)
    code = (
        "import sys; from pathlib import Path; from stripectl.results.run import Run\n"
        "from stripectl.reporters.html.page import render\n"
        f"render(Run.load(Path({str(tmp_path)!r}))); assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_terms_link_to_the_glossary_once(bench: Run) -> None:
    text = page_of(bench)
    targets = re.findall(r'class="term" href="#term-([a-z]+)"', text)
    ids = re.findall(r'id="term-([a-z]+)"', text)
    assert {"bound", "mesh", "round"} & {*targets} and len(ids) == len({*ids})
    assert {*targets} <= {*ids} and all(targets.count(each) == 1 for each in targets if each != "bound")
    links = GlossaryLinks(traced=False)
    assert links("<b>rings</b> of tiles, a tile; hidden") == (
        '&lt;b&gt;rings&lt;/b&gt; of <a class="term" href="#term-tile">tiles</a>, a tile; hidden'
    )
    assert links("tile=512 and the hop") == 'tile=512 and the <a class="term" href="#term-hop">hop</a>'
