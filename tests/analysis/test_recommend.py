"""What a run recommends, of runs made by hand."""

import io
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console

import stripectl
from stripectl.analysis import explanation
from stripectl.analysis.answer import base_phrase, equal_plans_phrase, plan_phrase, rival_phrase
from stripectl.analysis.recommendation import recommend
from stripectl.analysis.statements import margin_statement
from stripectl.cli.bench import command
from stripectl.core.plan import parse_plan, read_plan
from stripectl.core.workload import Workload
from stripectl.costs.defaults import with_defaults
from stripectl.export.integrations.python import snippet
from stripectl.export.integrations.yaml import as_yaml, command_line
from stripectl.hardware.profile import Hardware
from stripectl.reporters.terminal.recommendation import recommendation_panel
from stripectl.reporters.terminal.screen import UNLIMITED_COLUMNS
from stripectl.results.measurement import Measurement
from stripectl.results.recommendation import Recommendation
from stripectl.results.records import record_json
from stripectl.results.run import Run
from stripectl.runner.options import RequestOptions
from stripectl.runner.parse import parse_request
from stripectl.runner.request import Request
from tests.support.factories import because, measurement_of, run_of

WORK = Workload(seq_len=2**16, heads=16, kv_heads=16, head_dim=128, model="1b", passes="forward-backward")
COMPUTE = {"compute": 0.45, "communication": 0.02, "latency": 0.0, "memory": 0.01}
LINK = {"compute": 0.1, "communication": 0.4, "latency": 0.05, "memory": 0.0}


def plan(layout: str, tile: int = 1024, mesh: str = "ring=16") -> str:
    return f"ring/{layout}/splash@{mesh},tile={tile}x{tile}"


def clocked(layout: str, time_s: float, workload: Workload = WORK, tile: int = 1024, **given: Any) -> Measurement:
    known = {"target": "v5p:2x2x4", "cost_source": {"source": "datasheet"}, "bottleneck_shares": COMPUTE}
    return measurement_of(plan(layout, tile), time_s, workload, **known | given)


def timed(layout: str, samples_s: Sequence[float], workload: Workload = WORK, **given: Any) -> Measurement:
    """Measured, with an interval that leaves out the ends."""
    ordered = sorted(samples_s)
    known: dict[str, Any] = {"samples_s": tuple(samples_s), "ci95_s": (ordered[1], ordered[-2])}
    known |= {"method": "measured", "cost_source": None, "bottleneck_shares": None}
    return clocked(layout, ordered[len(ordered) // 2], workload, **known | given)


def around(time_s: float, share: float = 0.01) -> list[float]:
    return [time_s * (1 + share * at) for at in (-2, -1, 0, 1, 2)]


def curve(*times: float) -> list[dict[str, float]]:
    """Times at 32k, 64k, 128k and so on."""
    return [{"seq_len": 2 ** (15 + at), "median_s": time_s} for at, time_s in enumerate(times)]


def recommended(*measurements: Measurement) -> Recommendation:
    answer = recommend(run_of(*measurements))
    assert answer
    return answer


def found(*measurements: Measurement) -> dict[str, Any]:
    """What is recommended, as run.json has it."""
    return json.loads(json.dumps(record_json(recommended(*measurements)), allow_nan=False))


def test_the_fastest_with_its_gain_margin_and_what_bounds_it() -> None:
    bound = {"attention_only": 1.9375, "layer": None}
    answer = found(
        clocked("contiguous", 3.0),
        clocked("striped", 1.6, bound={"attention_only": 1.83, "layer": None}),
        clocked("zigzag", 1.5, bottleneck_shares=LINK, bound=bound),
    )
    assert (answer["plan"], answer["runner_up"]) == (plan("zigzag"), plan("striped"))
    assert answer["margin"] == pytest.approx(1.6 / 1.5 - 1)
    assert answer["gain"] == {"over": plan("contiguous"), "value": 2.0, "ci95": None}
    assert answer["bound"] == {"attention_only": 1.9375, "layer": None, "reached": pytest.approx(2.0 / 1.9375)} | {
        "above": "above its bound, which counts all tiles as equally expensive and no waiting for hops"
    }
    assert (answer["bound_by"], answer["bottleneck_shares"]) == ("communication", LINK)
    assert answer["tokens_per_s"] == pytest.approx(2**16 / 1.5)
    assert answer["headline"] == "zigzag is fastest"
    assert answer["confidence"]["word"] == "datasheet"
    assert any("would take 40% less time if" in reason for reason in answer["reasons"])


def test_reasons_hold_the_figures_of_the_run() -> None:
    hop = {"source": "datasheet", "hop": {"latency_s": 1e-6, "bytes_per_s_one_way": 9e10}}
    answer = found(
        clocked("contiguous", 3.0),
        clocked(
            "zigzag", 2.0, bytes={"collective-permute": 90 * 10**9}, cost_source=hop, peak_bytes=2**30, hbm_bytes=2**35
        ),
    )
    said = " ".join(answer["reasons"])
    assert "A device sends 83.8 GiB. A link of 90.0 GB/s needs 1.00 s for this, 50% of the time." in said
    assert "It needs 1.00 GiB of memory on each device, 3% of 32.0 GiB." in said
    assert f"The runner-up, {plan('contiguous')}, takes 50.0% longer." in said


def test_the_slowest_hop_of_the_mesh_is_the_link() -> None:
    slower = {
        "source": "datasheet",
        "hop": {"latency_s": None, "bytes_per_s_one_way": 9e10},
        "slower_hops": {"ring": {"slowest_bytes_per_s": 4.5e10}},
    }
    answer = found(clocked("zigzag", 2.0, bytes={"collective-permute": 45 * 10**9}, cost_source=slower))
    assert any("A link of 45.0 GB/s needs 1.00 s" in reason for reason in answer["reasons"])


def test_measured_and_apart() -> None:
    answer = found(timed("contiguous", around(3.0)), timed("zigzag", around(1.5)))
    assert answer["confidence"]["word"] == "measured"
    assert answer["gain"]["ci95"] == pytest.approx([2.0, 2.0])
    assert not answer["too_close"]
    assert answer["bound_by"] is None


def test_measured_but_ambiguous() -> None:
    noisy = [1.4, 1.7, 1.5, 1.6, 1.45]
    answer = found(timed("contiguous", around(3.0)), timed("striped", noisy[::-1]), timed("zigzag", noisy))
    assert answer["too_close"]
    assert answer["confidence"]["word"] == "ambiguous"
    assert answer["confidence"]["sentence"].endswith("is smaller than the noise.")
    assert answer["headline"].endswith("equally fast, as far as the run can tell")


def test_limits_of_what_is_measured_are_those_of_its_simulation() -> None:
    answer = found(
        timed("zigzag", around(1.5)), clocked("zigzag", 1.4, bottleneck_shares=LINK), timed("contiguous", around(3.0))
    )
    assert (answer["bound_by"], answer["method"], answer["limits_method"]) == ("communication", "measured", "simulated")


def test_methods_are_not_ranked_together() -> None:
    answer = found(timed("striped", around(2.0)), clocked("zigzag", 0.1), timed("contiguous", around(3.0)))
    assert answer["plan"] == plan("striped")
    assert f"Not ranked because they were not measured: {plan('zigzag')}." in answer["reasons"][-1]


def test_a_simulation_no_better_than_its_margin_is_ambiguous() -> None:
    """The simulated speed-up of zigzag was off by 20 %, which is more than the 10 % between the plans."""
    small = replace(WORK, seq_len=2**12, model=None)
    pairs = [
        *(timed("contiguous", around(3.0), small), clocked("contiguous", 3.0, small)),
        *(timed("zigzag", around(2.0), small), clocked("zigzag", 2.5, small)),
    ]
    answer = found(clocked("striped", 1.1), clocked("zigzag", 1.0), clocked("contiguous", 2.0), *pairs)
    assert answer["workload"]["seq_len"] == 2**16
    assert (answer["too_close"], answer["confidence"]["word"]) == (True, "ambiguous")
    assert "times were off by up to 25% and speed-ups by up to 20%" in answer["confidence"]["sentence"]


def test_clocks_do_not_tell_plans_apart_that_are_within_a_hundredth() -> None:
    assert found(clocked("striped", 1.009), clocked("zigzag", 1.0))["too_close"]
    assert not found(clocked("striped", 1.011), clocked("zigzag", 1.0))["too_close"]


def test_a_prediction_is_called_one() -> None:
    given = {"method": "compiled", "cost_source": {"source": "bundles", "predicted": True}}
    answer = found(clocked("striped", 1.2, **given), clocked("zigzag", 1.0, **given))
    assert answer["confidence"]["word"] == "predicted"
    assert answer["limits_method"] == "compiled"
    said = answer["confidence"]["sentence"]
    assert "; memory is the compiler's figure. No published time of splash on v5p tells the error of" in said
    given["cost_source"] = {"source": "datasheet", "predicted": True, "memory_left_out": "the workspace of a library"}
    sentence = found(clocked("zigzag", 1.0, **given))["confidence"]["sentence"]
    assert sentence.endswith("; memory is the compiler's figure, without the workspace of a library.")


def test_one_plan_is_no_choice() -> None:
    answer = found(clocked("zigzag", 1.0))
    assert (answer["runner_up"], answer["margin"], answer["too_close"]) == (None, None, None)
    assert answer["headline"] == "zigzag: the only plan timed"
    statements = {each["name"]: each["text"] for each in answer["statements"]}
    assert {"plan", "time", "bound by", "confidence"} <= {*statements} and statements["margin"].startswith("none")


def test_refusals_are_grouped_and_all_refused_is_no_recommendation() -> None:
    lost = [
        replace(
            clocked("striped", 1.0, tile=tile),
            status="refused",
            reason=because("does not fit" + "!" * 300),
            median_s=None,
        )
        for tile in (512, 256)
    ]
    assert recommend(run_of(*lost)) is None
    assert recommend(run_of()) is None
    (group,) = found(clocked("zigzag", 1.0), *lost)["refused"]
    assert group["plans"] == [plan("striped", 512), plan("striped", 256)]
    assert len(group["reason"]) == 200


def test_the_gain_is_over_the_default_tile_where_the_run_holds_it() -> None:
    """The default is the best of the machine's table."""
    tiles = [clocked("striped", time_s, tile=tile) for tile, time_s in ((256, 2.0), (512, 1.0))]
    usual = with_defaults(parse_plan("ring/striped/splash@ring=16"), WORK, Hardware.load("v5p"), 16)
    default = replace(clocked("striped", 1.5), plan=usual)
    assert found(clocked("contiguous", 4.0), *tiles, default)["gain"] == {
        "over": str(usual),
        "value": 1.5,
        "ci95": None,
    }
    assert found(clocked("contiguous", 4.0), *tiles)["gain"]["over"] == plan("contiguous")


def test_one_device_is_a_comparison_and_no_rival() -> None:
    alone = clocked("contiguous", 0.5, target="v5p:1")
    alone = replace(alone, plan=read_plan("ring/contiguous/splash@ring=1,tile=1024x1024"))
    answer = found(clocked("zigzag", 1.0), clocked("contiguous", 2.0), alone)
    assert (answer["plan"], answer["over_one_device"]) == (plan("zigzag"), 0.5)
    assert answer["others"] == []
    assert found(alone)["plan"] == str(alone.plan)


def test_curves_cross_where_the_logarithms_of_their_ratio_do() -> None:
    """At 64k zigzag takes half of contiguous, at 32k twice as long: they meet in the middle of the logarithms."""
    zigzag, ring = curve(0.8, 1.0, 2.0, 4.0), curve(0.4, 2.0, 4.0, 8.0)
    answer = found(clocked("zigzag", 1.0, scaling=zigzag), clocked("contiguous", 2.0, scaling=ring))
    (change,) = answer["crossover"]
    assert change["seq_len"] == round(2**15 * math.sqrt(2))
    assert (change["between"], change["direction"]) == ([2**15, 2**16], "shorter")
    assert change["plan"] == plan("contiguous")
    assert answer["lengths"] == {
        "first": 2**15,
        "last": 2**18,
        "count": 4,
        "methods": ["simulated"],
        "source": "scaling",
    }


def test_an_answer_that_holds_says_from_where_to_where() -> None:
    answer = found(
        clocked("zigzag", 1.0, scaling=curve(0.5, 1.0, 2.0)), clocked("striped", 1.1, scaling=curve(0.5, 1.1, 1.99))
    )
    assert answer["crossover"] == []
    assert "No other plan is clearly faster from 32k to 128k tokens (simulated)." in answer["reasons"]


def test_a_tie_before_a_loss_is_where_the_curves_meet() -> None:
    """Striped is ahead by less than a hundredth at 128k and surely at 256k: they met before 128k."""
    answer = found(
        clocked("zigzag", 1.0, scaling=curve(0.5, 1.0, 2.0, 4.0)),
        clocked("striped", 1.005, scaling=curve(0.6, 1.005, 1.99, 3.0)),
    )
    (change,) = answer["crossover"]
    assert (change["between"], change["direction"]) == ([2**16, 2**17], "longer")
    assert 2**16 < change["seq_len"] < 2**17


def test_curves_of_what_is_measured_pass_through_what_was_measured() -> None:
    """The simulation has striped ahead at 64k, the measurement zigzag: twice its simulated time is striped's."""
    answer = found(
        timed("zigzag", around(1.0), scaling=curve(0.5, 1.0, 2.0)),
        timed("striped", around(1.6), scaling=curve(0.4, 0.8, 1.6)),
    )
    assert answer["crossover"] == []


def test_winners_of_several_lengths_are_the_crossover() -> None:
    """Tiles are the default's at each length, so that the plan is the same: 1 to 2 at 64k, and 4 to 2 at 128k."""
    longer = replace(WORK, seq_len=2**17)
    own = [clocked("zigzag", 1.0, tile=256), clocked("contiguous", 2.0, tile=256)]
    far = [clocked("zigzag", 4.0, longer, tile=512), clocked("contiguous", 2.0, longer, tile=512)]
    answer = found(*own, *far)
    assert answer["workload"]["seq_len"] == 2**17
    assert answer["crossover"] == [
        {
            "direction": "shorter",
            "seq_len": round(2**16 * math.sqrt(2)),
            "between": [2**16, 2**17],
            "plan": plan("zigzag", 256),
            "method": "simulated",
        }
    ]
    assert answer["lengths"]["source"] == "run"
    (other,) = answer["others"]
    assert other["crossover"][0]["direction"] == "longer"


def test_a_winner_that_is_not_sure_is_no_crossover() -> None:
    noisy, shorter = [1.4, 1.7, 1.5, 1.6, 1.45], replace(WORK, seq_len=2**15)
    short = [timed("zigzag", noisy[::-1], shorter), timed("striped", noisy, shorter)]
    answer = found(timed("zigzag", around(1.0)), timed("striped", around(2.0)), *short)
    assert answer["crossover"] == []
    assert answer["lengths"]["methods"] == ["measured"]


def test_the_strongest_pass_comes_first() -> None:
    forward = replace(WORK, passes="forward", seq_len=2**20)
    answer = found(clocked("zigzag", 1.0, forward), clocked("striped", 1.0), clocked("zigzag", 2.0))
    assert (answer["workload"]["pass"], answer["plan"]) == ("forward-backward", plan("striped"))
    assert [each["plan"] for each in answer["others"]] == [plan("zigzag")]
    assert answer["others"][0]["use"] is None


def test_a_step_stands_before_its_attention() -> None:
    sizes = {"hidden": 2048, "feed_forward": 5504, "layers": 24, "vocabulary": 32000}
    step = replace(WORK, passes="step", **sizes)
    bound = {"attention_only": 1.83, "layer": 1.6}
    steps = clocked("contiguous", 9.0, step), clocked("striped", 8.0, step, bound=bound)
    answer = found(*(plans := (clocked("zigzag", 1.0), clocked("striped", 2.0), *steps)))
    assert answer["bound"]["reached"] is None
    assert yaml.safe_load(answer["use"]["yaml"]["text"])["layers"] == 24
    assert (answer["workload"]["pass"], answer["plan"]) == ("step", plan("striped"))
    assert "64k forward-backward: ring/zigzag, " in shown(recommended(*plans), UNLIMITED_COLUMNS)


def test_parts_of_a_step_are_shares_of_it() -> None:
    parts = {"attention": 0.6, "feed_forward": 0.3, "communication": 0.0, "optimizer": 0.1}
    answer = found(*(plans := (clocked("zigzag", 1.0, step_parts=parts), clocked("striped", 1.5))))
    assert "Parts of the step: attention 60%, feed forward 30%, optimizer 10%." in answer["reasons"]
    assert "attention 60%" in shown(recommended(*plans), 100)


def test_a_file_cannot_recommend_what_its_figures_do_not_show() -> None:
    run = run_of(clocked("zigzag", 1.0))
    run.recommendation = recommend(run)
    stored = json.loads(json.dumps(run.to_json()))
    assert stored["recommendation"]["plan"] == plan("zigzag")
    stored["recommendation"] = {"plan": "<script>"}
    assert Run.from_json(stored, "there").recommendation is None


# --- the card


def shown(answer: Recommendation, width: int) -> str:
    screen = Console(width=width, record=True, file=io.StringIO(), highlight=False)
    screen.print(recommendation_panel(answer, width, "run/report.html"))
    return screen.export_text()


def several() -> Recommendation:
    others = [clocked("zigzag", 1.0, replace(WORK, seq_len=2**16 >> at)) for at in range(1, 12)]
    return recommended(clocked("contiguous", 2.0), clocked("zigzag", 1.0), *others)


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_card_fits_the_screen(width: int) -> None:
    lines = shown(several(), width).splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).replace("│", " ").split())
    assert "bound by compute: 45% less time if compute were twice as fast (simulated)" in text
    assert "margin 100.0% ahead of" in text
    assert "3 more in the report" in text


def test_the_other_lengths_of_a_hybrid_step_are_lines_of_the_card() -> None:
    sizes = {"hidden": 64, "feed_forward": 64, "layers": 8, "vocabulary": 64, "model": "a", "attention": "LLLS"}
    work = replace(WORK, passes="step", **sizes)
    others = [clocked(layout, 1.0, replace(work, seq_len=2**15)) for layout in ("contiguous", "zigzag")]
    text = shown(
        recommended(clocked("contiguous", 2.0, work), clocked("zigzag", 1.0, work), *others), UNLIMITED_COLUMNS
    )
    assert "LLLS attention" in text and "32k step: " in text


def test_the_card_is_neither_wrapped_nor_cut_when_piped() -> None:
    lines = shown(several(), UNLIMITED_COLUMNS).splitlines()
    assert lines[0].startswith("Use zigzag ring attention")
    assert lines[2].split() == ["plan", plan("zigzag")]
    assert not any("│" in line for line in lines)
    assert any(line.rstrip().endswith("run/report.html") for line in lines)


def test_bench_begins_with_the_answer(tmp_path) -> None:
    arguments = [
        "--target",
        "v5p:2x2x4",
        "--seqlen",
        "64k",
        "--method",
        "simulated",
        "--quiet",
        "--output",
        str(tmp_path),
    ]
    ran = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert ran.exception is None
    usual = with_defaults(parse_plan("ring/zigzag@ring=16"), WORK, Hardware.load("v5p"), 16)
    sizes = [" x ".join(map(str, tile.sides)) for tile in (usual.tile, usual.backward) if tile]
    tiles = f"{sizes[0]} ({sizes[1]} in the backward pass)"
    assert ran.output.startswith(f"Use zigzag ring attention with tiles of {tiles}: ")
    assert str(tmp_path / "report.html") in ran.output
    stored = json.loads((tmp_path / "run.json").read_text())["recommendation"]
    assert stored["bound_by"] in stored["bottleneck_shares"]
    alone = CliRunner().invoke(
        command, [*arguments[:-1], str(tmp_path / "alone"), "--layout", "striped"], standalone_mode=False
    )
    assert "recommended" not in alone.output


# --- what to use


@pytest.mark.parametrize("text", ["ring/zigzag/xla@data=2,fsdp=2,ring=2,tile=64", "ring/striped/xla@tensor=2,tile=64"])
def test_the_snippet_runs_as_it_is(text: str) -> None:
    work = Workload(seq_len=1024, heads=4, kv_heads=2, head_dim=8, batch=4, dtype="float32")
    code = snippet(work, parse_plan(text))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.training
def test_the_snippet_of_a_step_trains(tmp_path) -> None:
    (tmp_path / "tiny.yaml").write_text(
        "hidden: 16\nfeed_forward: 32\nlayers: 2\nheads: 2\nkv_heads: 1\nhead_dim: 8\nvocabulary: 32\n"
    )
    sizes = {"hidden": 16, "feed_forward": 32, "layers": 2, "vocabulary": 32, "model": str(tmp_path / "tiny.yaml")}
    work = Workload(seq_len=64, heads=2, kv_heads=1, head_dim=8, dtype="float32", passes="step", **sizes)
    hybrid = replace(work, layers=4, attention="LS", decay="0.9")
    for each, plan in ((work, "ring/striped/xla@ring=2,tile=8"), (hybrid, "lasp@ring=2,tile=8")):
        code = snippet(each, parse_plan(plan))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0 and float(done.stdout) > 0, done.stderr
        assert ("attention='LS'" in code) == (each is hybrid)


def test_the_yaml_holds_the_options_of_a_bench() -> None:
    flagged = clocked("zigzag", 1.0, flags={"xla_some_flag": "true"})
    read = yaml.safe_load(as_yaml(flagged))
    known = {option.name.rstrip("_").replace("_", "-") for option in command.params if option.name}
    assert read.keys() <= known
    assert (read["seqlen"], read["model"], read["plan"]) == ("64k", "1b", plan("zigzag"))
    strange = replace(flagged, workload=replace(WORK, model="a: [b"))
    assert yaml.safe_load(as_yaml(strange))["kv-heads"] == 16


def test_plans_of_a_hybrid_are_told_apart_by_the_layout_of_their_softmax_layers() -> None:
    def timed(layout: str, seconds: float) -> Measurement:
        m = clocked("contiguous", seconds)
        return replace(m, plan=parse_plan(f"lasp2/contiguous/gated@ring=4,softmax=ring{layout}/xla"))

    equals, others = [timed("/zigzag", 1.0), timed("", 1.0)], [timed("/striped", 1.1)]
    phrase = equal_plans_phrase(equals, [*equals, *others])
    assert phrase == "contiguous LASP-2 and zigzag or contiguous ring attention in softmax layers"
    assert rival_phrase(others[0], equals[0]) == "striped ring attention in softmax layers"
    assert base_phrase(others[0], equals[1].plan) == "contiguous ring attention in softmax layers"
    large = parse_plan(f"{others[0].plan}/512x512")
    assert base_phrase(replace(others[0], plan=large), others[0].plan) == "the same scheme with its default tiles"
    assert "softmax" not in plan_phrase(clocked("zigzag", 1.0), [clocked("zigzag", 1.0), clocked("striped", 1.0)])


def test_a_model_whose_heads_are_replaced_lends_its_attention() -> None:
    words = shlex.split("--plan ring@ring=8 --kernel chunked --model tnl-1b --heads 8 --seqlen 64k --pass forward")
    (work,) = parse_request(RequestOptions.of(command.make_context("bench", words).params)).workloads
    assert (work.attention, work.decay, work.heads, work.model) == ("linear", "per-head", 8, None)


@pytest.mark.parametrize(
    "asked",
    [
        "--plan lasp@ring=8 --seqlen 64k --model 1b --pass step --attention LLLS --decay per-head --layers 8",
        "--plan ring@ring=8 --seqlen 64k --model tnl-1b --pass step --attention softmax",
        "--plan lasp2@ring=8 --seqlen 64k --model linear-llama-1b-hybrid --pass step --batch 2",
        "--plan lasp@ring=8 --seqlen 64k --heads 8 --head-dim 8 --feature-map elu --decay 0.9 --pass forward",
        "--plan ring@ring=8 --seqlen 64k --model llama3-8b --documents 4k,1k --mask sliding:4k --pass forward-backward",
        "--plan pass_q@ring=8 --seqlen 128k --query-len 1 --batch 4 --dtype float32 --xla-flag a=1 --xla-flag b=2,3",
    ],
)
def test_the_command_of_a_measurement_asks_for_the_same_workload(asked: str) -> None:
    def request(words: list[str]) -> Request:
        return parse_request(RequestOptions.of(command.make_context("bench", words).params))

    (wanted,), flags = request(shlex.split(asked)).workloads, request(shlex.split(asked)).flags
    m = clocked("zigzag", 1.0, wanted, flags=flags[-1])
    line = shlex.split(command_line(replace(m, plan=request(shlex.split(asked)).plans[0])))
    assert line[:2] == ["stripectl", "bench"]
    assert (request(line[2:]).workloads, request(line[2:]).flags) == ([wanted], flags[-1:])


def test_tiles_that_clocks_do_not_tell_apart_are_those_nearest_to_the_kernels_default() -> None:
    """Of plans that differ in nothing else and whose costs come from a datasheet: the next plan stays the runner-up,
    and the ties are said."""
    tied = [clocked("zigzag", 1.0 + 1e-3 * at, tile=tile) for at, tile in enumerate((128, 512, 1024, 2048))]
    other = clocked("striped", 1.2, tile=128)
    answer = found(other, *tied)
    assert (answer["plan"], answer["runner_up"]) == (plan("zigzag", 1024), str(other.plan))
    said = "3 other choices of tiles are as fast (simulated); its tiles are the nearest to the kernel's default."
    assert any(reason.startswith(said) for reason in answer["reasons"])
    slower = replace(tied[2], median_s=1.02)
    assert found(other, *tied[:2], slower)["plan"] == plan("zigzag", 512)
    ran = [timed("zigzag", around(1.0 + 1e-3 * at, 1e-6), tile=tile) for at, tile in enumerate((128, 1024))]
    assert found(*ran)["plan"] == plan("zigzag", 128)


def test_of_tiles_that_a_table_hardly_tells_apart_the_fastest_stays() -> None:
    """As the default tile of the plan is the fastest of the table."""
    source = {"source": "bundles"}
    tied = [
        clocked("zigzag", 1.0 + 1e-3 * at, tile=tile, cost_source=source) for at, tile in enumerate((128, 512, 1024))
    ]
    answer = found(*tied)
    assert answer["plan"] == plan("zigzag", 128)
    said = "2 other choices of tiles are as fast (simulated); its tiles are first by less than the method can tell."
    assert any(reason.startswith(said) for reason in answer["reasons"])


@pytest.mark.parametrize(("margin", "said"), [(0.05, "takes 5.0% longer"), (-0.001, "takes 0.1% less")])
def test_a_runner_up_may_take_less_where_the_default_tile_is_kept(margin: float, said: str) -> None:
    answer = replace(
        recommended(clocked("zigzag", 1.0), clocked("striped", 1.0)),
        runner_up="ring@ring=4",
        margin=margin,
        too_close=True,
    )
    ranking: Any = SimpleNamespace(runner_up=object())
    assert (
        explanation.runner_up_sentence(answer, ranking)
        == f"The runner-up, ring@ring=4, {said}, which is too close to tell."
    )
    assert margin_statement(answer).text == f"{max(0, margin):.1%} ahead of ring@ring=4, too close to tell"


def test_a_gain_with_another_kernel_says_so() -> None:
    run = stripectl.bench(
        target="v4:2x2x4", scheme="ring,ulysses", seqlen="1M", method="simulated", pass_="forward-backward"
    )
    said = run.recommendation
    assert said and "with another kernel (pallas_tpu, not splash)" in said.reasons[0]
    assert "with another kernel (pallas_tpu, not splash)" in str(said.statement("gain"))


def test_a_next_plan_that_differs_in_its_mesh_is_named_by_it() -> None:
    text = plan("zigzag")
    other = replace(clocked("zigzag", 1.6), plan=read_plan(text.replace("@ring=16", "@ring=4,tensor=4")))
    assert recommended(clocked("zigzag", 1.5), other).answer.endswith(": a mesh of ring=4, tensor=4 takes 7% longer.")


def test_a_rival_that_differs_in_tiles_alone_is_the_same_plan_with_other_tiles() -> None:
    best = clocked("zigzag", 1.0, tile=512)
    own = replace(best, plan=replace(best.plan, backward=parse_plan("ring@tile=256").tile))
    assert rival_phrase(clocked("zigzag", 1.1), best) == "the same plan with tiles of 1024 x 1024"
    assert rival_phrase(best, own) == "the same plan with tiles of 512 x 512 in both passes"
    assert rival_phrase(own, best) == "the same plan with tiles of 512 x 512 (256 x 256 in the backward pass)"
