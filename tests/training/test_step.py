"""A training step as a workload: what it computes and sends, by arithmetic, by compilers and by running it."""

import json
import math
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stripectl.compile.compiler import CompilerPool, compile_case
from stripectl.core.layout_switch import switch_transfers
from stripectl.core.plan import parse_plan, read_plan
from stripectl.core.scopes import ATTENTION
from stripectl.core.workload import DTYPE_BYTES, Workload
from stripectl.costs.core_memory import VMEM_FLAG
from stripectl.costs.cost_model import CostModel
from stripectl.costs.matrices import matrix_seconds
from stripectl.errors import BadInput
from stripectl.execute import verification
from stripectl.hardware.profile import Hardware
from stripectl.hardware.target import parse_target, read_target
from stripectl.measure.local_target import LocalTarget
from stripectl.results.case import Case
from stripectl.results.cost_source import FROM_DATASHEET
from stripectl.results.findings import Check
from stripectl.results.measurement import Measurement
from stripectl.results.tile_cost import TileCost
from stripectl.runner.cases import bench_cases
from stripectl.runner.meshes import every_mesh, promising_plans
from stripectl.runner.request import Request
from stripectl.simulate.fewer_layers import LAYERS_RUN, from_fewer_layers, with_fewer_layers
from stripectl.simulate.layer_attention import attention_times, recomputes_attention
from stripectl.simulate.simulation import simulate
from stripectl.simulate.step_program import run_step
from stripectl.simulate.training_step import (
    COMMUNICATION,
    SimulatedStep,
    explained_step,
    simulated_step,
)
from stripectl.simulate.transfers import seconds_sent
from stripectl.util.progress import quiet
from tests.support.command import run
from tests.support.compilers import needs
from tests.support.factories import because, measurement_of

SIZES = {"hidden": 256, "feed_forward": 512, "layers": 2, "vocabulary": 512}
PLAN = "ring/striped/xla@ring=2,tensor=2,tile=256,chunk=512"


def step(**other) -> Workload:
    shape = {"seq_len": 4096, "heads": 4, "kv_heads": 2, "head_dim": 64, "model": "tiny"}
    return Workload(**{**shape, **SIZES, "passes": "step", **other})


def sent(workload: Workload, plan: str) -> Counter[tuple[str, tuple[str, ...]]]:
    """Bytes beside attention, by opcode and axes."""
    total: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for each in run_step(workload, parse_plan(plan)).sent:
        total[each.opcode, each.axes] += round(each.nbytes * each.times)
    return total


def test_flops_of_a_step_are_six_a_parameter_and_token_and_attentions() -> None:
    layer = 256 * (4 + 4 + 2 + 2) * 64 + 3 * 256 * 512
    attention = 6 * 2 * (4096 * 4097 // 2) * 64 * 4
    assert step().flops == 2 * attention + 6 * (2 * layer + 256 * 512) * 4096
    assert step(batch=3).flops == 3 * step().flops


def test_what_is_computed_again_is_what_the_plan_does_not_keep() -> None:
    def flops(options: str) -> dict[str, float]:
        return run_step(step(), parse_plan(f"ring/striped/xla@ring=2,tile=256,{options}")).flops

    heads, head, tokens = 2 * 256 * 12 * 64, 256 * 512, 2048
    least, most = flops("chunk=0,remat=none"), flops("chunk=512,remat=full")
    assert least["projections"] == 6 * heads * tokens and most["projections"] == 8 * heads * tokens
    assert least["head"] == 6 * head * tokens and most["head"] == 8 * head * tokens
    assert least["feed_forward"] == 6 * 2 * 3 * 256 * 512 * tokens
    assert most["feed_forward"] == pytest.approx((6 + 4 / 3) * 2 * 3 * 256 * 512 * tokens)  # not its last matrix
    assert flops("chunk=0,remat=dots") == least
    plans = [f"ring@ring=2,remat={each}" for each in ("full", "attention", "dots", "none")]
    assert [recomputes_attention(parse_plan(plan)) for plan in plans] == [True, False, False, False]
    again = [recomputes_attention(parse_plan(plan.replace("ring@", "rsa@"))) for plan in plans]
    assert again == [True, True, True, False]  # its output is not named


Bytes = defaultdict[tuple[str, tuple[str, ...]], float]


def first_half(opcode: str) -> tuple[str, float]:
    """(opcode, share of its bytes), where a sum counts as the reduce-scatter that is its first half."""
    return ("reduce-scatter", 0.5) if opcode == "all-reduce" else (opcode, 1.0)


@needs
@pytest.mark.parametrize(
    "plan", [PLAN, pytest.param(PLAN.replace("ring=2", "fsdp=2,ring=2").replace("512", "0"), marks=pytest.mark.full)]
)
def test_what_a_step_sends_is_what_its_arithmetic_says(plan: str) -> None:
    """A TPU's compiler sums some gradients whole, for twice the bytes of scattering them."""
    target = parse_target("v5e:2x4" if "fsdp" in plan else "v5e:2x2")
    workload = step(batch=2)
    case = Case(workload=workload, plan=read_plan(plan), target=target.name, method="compiled")
    with CompilerPool(quiet, cached=False) as compilers:
        found = compile_case(case, target, compilers)
    assert found.status == "ok" and found.compiled_program and found.step_parts, found.reason
    got, wanted = Bytes(float), Bytes(float)
    for each in found.compiled_program.collectives:
        if each.section != ATTENTION:
            assert each.axis
            opcode, part = first_half(each.opcode)
            got[opcode, tuple(each.axis.split("+"))] += part * each.sent_bytes * each.times
    for (opcode, axes), nbytes in sent(workload, plan).items():
        opcode, part = first_half(opcode)
        wanted[opcode, axes] += part * nbytes
    assert wanted == pytest.approx({key: got[key] for key in wanted}, rel=0.02)
    assert sum(got.values()) == pytest.approx(sum(wanted.values()), rel=0.02)
    assert set(found.step_parts) >= {ATTENTION, "projections", "feed_forward", "head", "optimizer", COMMUNICATION}
    assert found.median_s == pytest.approx(sum(found.step_parts.values()))
    assert found.peak_bytes and found.cost_source and found.cost_source.predicted


HYBRID = "lasp2/contiguous/chunked@ring=4,tile=128,chunk=512,softmax=all_gather/xla/512"
SWITCHES = {layout: HYBRID.replace("all_gather", f"all_gather/{layout}") for layout in ("zigzag", "striped")}
HYBRID_STEP = replace(step(), layers=4, attention="LLLS", decay="per-head")


@cache
def compiled_hybrid(plan: str) -> Measurement:
    """The step compiled once for the tests that look at it."""
    target = parse_target("v5e:2x2")
    case = Case(workload=HYBRID_STEP, plan=read_plan(plan), target=target.name, method="compiled")
    with CompilerPool(quiet, cached=False) as compilers:
        return compile_case(case, target, compilers)


@needs
def test_a_step_of_two_kinds_of_layers_takes_the_time_of_both() -> None:
    found = compiled_hybrid(SWITCHES["zigzag"])
    assert found.status == "ok" and found.compiled_program and found.step_parts and found.cost_source, found.reason
    opcodes = {each.opcode for each in found.compiled_program.collectives if each.section == ATTENTION}
    assert opcodes >= {"all-gather"}
    assert found.cost_source.softmax
    assert found.cost_source.source == found.cost_source.softmax.source == "estimated_cycles"
    assert found.cost_source.forward != found.cost_source.softmax.forward
    assert found.median_s == pytest.approx(sum(found.step_parts.values()))


@needs
@pytest.mark.parametrize("layout", SWITCHES)
def test_a_compiled_switch_of_layouts_sends_what_its_arithmetic_says(layout: str) -> None:
    """The transfers of hidden states and of their gradients, there and back, in number and bytes."""
    workload, plan, found = HYBRID_STEP, parse_plan(SWITCHES[layout]), compiled_hybrid(SWITCHES[layout])
    assert found.status == "ok" and found.compiled_program, found.reason
    got: Counter[tuple[str, float]] = Counter()
    for each in found.compiled_program.collectives:
        if each.section != ATTENTION and each.opcode in ("collective-permute", "all-to-all"):
            got[each.opcode, each.sent_bytes] += each.times
    rows = workload.batch * workload.seq_len // plan.shards * workload.sizes.hidden * DTYPE_BYTES[workload.dtype]
    wanted: Counter[tuple[str, float]] = Counter()
    for each in switch_transfers(layout, plan.shards):
        wanted[each.opcode, each.share * rows] += 4
    assert got == wanted


@pytest.mark.parametrize("wrong", ["linear", "softmax"])
def test_the_worse_of_two_kinds_of_layers_is_what_a_check_says(wrong: str, monkeypatch) -> None:
    def found(workload: Workload, *_: Any) -> Check:
        error = math.nan if workload.attention == wrong else 1e-7
        return Check(max_rel_error=error, tolerance=1e-6, reference=workload.attention)

    monkeypatch.setattr(verification, "check_layer", found)
    said = verification.check_attention(replace(step(), layers=4, attention="LLLS"), parse_plan(HYBRID), [])
    assert math.isnan(said.max_rel_error) and said.reference == "linear; softmax"


@needs
def test_a_step_that_does_not_fit_is_refused_with_what_it_lacks() -> None:
    target = parse_target("h100:2")
    request = Request(workloads=[step(seq_len=2**26)], plans=[parse_plan("ring/striped/xla@ring=2,tile=2048")])
    with CompilerPool(quiet, cached=False) as compilers:
        found = compile_case(bench_cases(request, LocalTarget(target))[0], target, compilers)
    assert found.status == "refused" and "does not fit" in str(found.reason)
    assert (found.peak_bytes or 0) > (found.hbm_bytes or 0)


def simulated(case: Measurement, hardware: Hardware, machine: CostModel) -> Measurement:
    """The step as it is timed with other plans."""
    attention = attention_times(case.layers, [machine])
    clock = SimulatedStep(case.workload, case.plan, hardware, [machine]).run(attention)
    return simulated_step(case, hardware, clock, attention)


def test_a_simulated_step_is_the_sum_of_its_parts() -> None:
    target = parse_target("v5e:2x2")
    hardware, workload, plan = target.hardware, step(), parse_plan(PLAN)
    machine = CostModel(TileCost(1e-3, 2e-3), TileCost(3e-3, 4e-3), FROM_DATASHEET, 1e-6, 1e9, torus=True)
    case = Measurement(workload=workload, plan=read_plan(PLAN), target=target.name, method="simulated")
    timed = simulated(case, hardware, machine)
    found = explained_step(timed, hardware, [machine])
    assert found.median_s == pytest.approx(timed.median_s, rel=1e-12) and found.bytes == timed.bytes
    assert found.step_parts and found.median_s == pytest.approx(sum(found.step_parts.values()))
    both, once = (simulate(workload.one_layer(each), plan, machine) for each in ("forward-backward", "forward"))
    assert both.overlap and once.overlap
    hops = 2 * (both.overlap.exposed_s + once.overlap.exposed_s)
    assert found.step_parts[ATTENTION] + hops == pytest.approx(2 * (both.seconds + once.seconds))
    beside = sum(seconds_sent(each, plan, machine) for each in run_step(workload, plan).sent)
    assert found.step_parts[COMMUNICATION] == pytest.approx(hops + beside)
    own = matrix_seconds(hardware, 512, 256, 256, "bfloat16"), matrix_seconds(hardware, 256, 512, 256, "bfloat16")
    assert found.step_parts["head"] == pytest.approx(4 * (3 * (own[0] or 0) + (own[1] or 0)))
    source = timed.cost_source
    assert source and (source.sources or {})["matrices"].startswith("profiles/compiled/matrices.csv")
    other = simulated(case, Hardware.load("v3"), machine).cost_source
    assert other and other.left_out and "rates of matrices on this machine (the shares of v4, v5e" in other.left_out
    assert found.bottleneck_shares and found.scaling
    # Parts of a step follow one another, and nothing hides.
    assert sum(found.bottleneck_shares.values()) == pytest.approx(0.5)
    own = [each.median_s for each in found.scaling if each.seq_len == workload.seq_len]
    assert own == [found.median_s]
    reduced = [nbytes for (opcode, _), nbytes in sent(workload, PLAN).items() if opcode == "all-reduce"]
    assert found.bytes and found.bytes["all-reduce"] == sum(reduced)


def test_a_step_that_keeps_attention_takes_its_moves_again(monkeypatch) -> None:
    """By the sum of parts and by the times of many plans at once: one all-to-all of each array, and every gather."""
    monkeypatch.setattr("stripectl.simulate.step_program.hides_parameters", lambda _: False)
    target, workload = parse_target("v5e:2x2"), step(kv_heads=4)
    machine = CostModel(TileCost(1e-3, 2e-3), TileCost(3e-3, 4e-3), FROM_DATASHEET, 1e-6, 1e9, memory_bytes_per_s=1e12)
    for text in ("usp/striped/xla@ring=2,ulysses=2,tile=256", "all_gather/striped/xla@ring=4,tile=256,parts=2"):
        seconds = dict[str, float]()
        for remat in ("attention", "none"):
            plan = read_plan(f"{text},remat={remat}")
            case = Measurement(workload=workload, plan=plan, target=target.name, method="simulated")
            timed = simulated(case, target.hardware, machine)
            found = explained_step(timed, target.hardware, [machine])
            assert found.step_parts and found.median_s == pytest.approx(timed.median_s, rel=1e-12)
            seconds[remat] = found.step_parts[COMMUNICATION]
        array = workload.seq_len // 4 * 4 * 64 * 2
        sent = 2 * 3 * array if "all_gather" in text else 4 * array // 2
        assert seconds["attention"] - seconds["none"] == pytest.approx(2 * sent / 1e9, rel=0.1)


def test_parameters_travel_while_matrices_run(monkeypatch) -> None:
    """The same transfers, of which a device waits for the first gather of a layer and for its last gradient."""
    hardware, plan = Hardware.load("h100"), parse_plan("ring/contiguous/xla@fsdp=4,tile=256,remat=attention")
    workload = step(batch=16, hidden=4096, feed_forward=14336)
    machine = CostModel(TileCost(1e-5, 2e-5), TileCost(3e-5, 4e-5), FROM_DATASHEET, 1e-6, 1e11)
    found = []
    for hides in (False, True):
        monkeypatch.setattr("stripectl.simulate.step_program.hides_parameters", lambda _, hides=hides: hides)
        found.append(SimulatedStep(workload, plan, hardware, [machine]).timed())
    waits, hides = found
    exposed = [each.parts.pop(COMMUNICATION) for each in found]
    assert waits.parts == hides.parts and waits.hidden_s == 0
    assert exposed[1] + hides.hidden_s == pytest.approx(exposed[0])
    query = 4096 * 4 * 64 * 3 / 4
    first_s, last_s = 2 * query / 1e11, 4 * query / 1e11
    assert workload.sizes.layers * (2 * first_s + last_s) < exposed[1] < 0.5 * exposed[0]


def test_matrices_of_a_simulated_step_follow_the_limit_of_a_cores_memory() -> None:
    target, plan = parse_target("v6e:2x2"), "ring/striped/xla@fsdp=4,tile=256,chunk=0"
    workload = step(seq_len=2**14, batch=4, hidden=4096, feed_forward=14336)
    machine = CostModel(TileCost(1e-3, 2e-3), TileCost(3e-3, 4e-3), FROM_DATASHEET, 1e-6, 1e9)
    usual = Measurement(workload=workload, plan=read_plan(plan), target=target.name, method="simulated")
    raised = replace(usual, flags={VMEM_FLAG: "98304"})
    parts = [explained_step(each, target.hardware, [machine]).step_parts or {} for each in (usual, raised)]
    assert parts[1]["feed_forward"] < 0.8 * parts[0]["feed_forward"]
    assert parts[1][ATTENTION] == parts[0][ATTENTION]


def test_a_models_step_follows_from_few_layers() -> None:
    case = Case(workload=step(layers=22), plan=read_plan(PLAN), target=read_target("cpu:4"), method="measured")
    less, more = map(Measurement.of, with_fewer_layers(case))
    assert [each.workload.layers for each in (less, more)] == list(LAYERS_RUN)
    assert with_fewer_layers(replace(case, workload=step(layers=3)))[0].workload.layers == 3
    less = replace(less, samples_s=(1.0, 1.2, 1.1), median_s=1.1, bytes={"all-gather": 10})
    more = replace(more, samples_s=(2.0, 2.2, 2.1), median_s=2.1, bytes={"all-gather": 14}, peak_bytes=5)
    whole = from_fewer_layers(case, [less, more])
    assert whole.samples_s == pytest.approx((11.5, 11.7, 11.6)) and whole.median_s == pytest.approx(11.6)
    assert whole.bytes == {"all-gather": 52} and whole.peak_bytes is None and whole.workload.layers == 22
    assert whole.cost_source and whole.cost_source.source == "few_layers"
    assert whole.step_parts == pytest.approx({"layers": 11.0, "the rest": 0.6})
    slow = from_fewer_layers(case, [replace(less, samples_s=(0.1,)), more])
    assert slow.step_parts == {"layers": slow.median_s, "the rest": 0.0}
    failed = from_fewer_layers(case, [less, replace(more, status="failed", reason=because("no"))])
    assert (failed.status, failed.reason, failed.workload.layers) == ("failed", because("no"), 22)
    disturbed = from_fewer_layers(case, [replace(less, samples_s=(1.0, 9.0, 1.1)), more])
    assert disturbed.status == "ok" and disturbed.samples_s == pytest.approx((11.5, 11.6))
    assert from_fewer_layers(case, [replace(less, samples_s=(9.0, 9.0, 1.1)), more]).status == "failed"


def test_every_mesh_has_all_devices_and_comes_once() -> None:
    found = [plan.mesh for plan in every_mesh(parse_plan("ring"), 16)]
    assert len(found) == len(set(found)) == 35
    assert {parse_plan(f"ring@{text}").mesh for text in ("ring=16", "tensor=16", "data=2,fsdp=2,ring=2,tensor=2")} <= {
        *found
    }
    assert all(replace(parse_plan("ring"), mesh=mesh).devices == 16 for mesh in found)


def test_the_fastest_plan_of_each_mesh_goes_on() -> None:
    def timed(plan: str, seconds: float | None) -> Measurement:
        return measurement_of(plan, seconds, step(), "v5e:2x2")

    slow, best, other = "ring/contiguous@ring=4,tile=256", "ring/striped@ring=4,tile=256", "ring/striped@tensor=4"
    found = promising_plans([timed(slow, 3), timed(other, 2.5), timed(best, 2), timed("ring@ring=2,tensor=2", None)])
    assert [m.plan for m in found] == [read_plan(best), read_plan(other)]


def test_a_step_needs_a_model() -> None:
    with pytest.raises(BadInput, match="hidden must be"):
        Workload(seq_len=64, heads=1, kv_heads=1, head_dim=8, passes="step")


def bench(*arguments: str) -> tuple[int, list[Measurement]]:
    code = run("bench", "--quiet", "--output", "run", *arguments)
    found = json.loads(Path("run/run.json").read_text())["measurements"] if Path("run/run.json").exists() else []
    return code, [Measurement.from_json(each) for each in found]


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(
        "hidden: 64\nfeed_forward: 128\nlayers: 5\nheads: 2\nkv_heads: 2\nhead_dim: 32\nvocabulary: 128\n"
    )
    return tmp_path


@pytest.mark.training
@pytest.mark.parametrize("layout", ["zigzag", pytest.param("striped", marks=pytest.mark.full)])
def test_a_step_runs_on_two_processes_with_few_layers(here: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stripectl.measure.sampler.MAX_SAMPLES", 3)
    what = ["--target", "cpu:2", "--method", "measured", "--pass", "step", "--model", "tiny.yaml", "--seqlen", "512"]
    code, found = bench(*what, "--layout", layout, "--tile", "64", "--time-budget", "10m", "--min-samples", "3")
    (m,) = found
    assert code == 0 and m.status == "ok"
    assert m.check and m.check.max_rel_error <= m.check.tolerance
    assert m.cost_source and m.cost_source.few_layers.layers_run == LAYERS_RUN and len(m.samples_s) >= 3
    assert m.tokens_per_s and m.bytes


def test_every_mesh_is_ranked_and_each_refused_one_has_its_reason(here: Path, capsys) -> None:
    code, found = bench(
        "--target", "v5p:8", "--method", "simulated", "--pass", "step", "--mesh", "auto", "--model", "7b"
    )
    assert code == 0
    timed, refused = ([m for m in found if m.status == status] for status in ("ok", "refused"))
    assert {m.plan.mesh for m in timed} == {
        (("ring", 8),),
        (("ring", 4), ("tensor", 2)),
        (("ring", 2), ("tensor", 4)),
        (("tensor", 8),),
    }
    assert refused and all("a batch of" in str(m.reason) for m in refused)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--pass", "step", "--heads", "4"], "cannot run a training step because --heads"),
        (
            ["--model", "gpt-oss-120b", "--heads", "4"],
            "cannot replace heads of the model gpt-oss-120b because it has sinks",
        ),
        (["--layers", "2"], "Add --pass step"),
        (["--model", "linear-llama-1b-hybrid", "--pass", "forward"], "Add --pass step, or for one layer"),
        (["--pass", "step", "--model", "tnl-1b", "--plan", "lasp@ring=8,softmax=ring"], "Omit softmax=ring"),
        (["--plan", "ring@ring=8,states=recomputed"], "ring sends no states"),
        (["--pass", "step", "--layers", "0"], "not in the range"),
        (["--mesh", "auto", "--mesh", "ring=8"], "Omit the other meshes"),
        (["--pass", "step", "--model", "3b", "--mesh", "ring=3", "--seqlen", "48k"], "Try zero=0"),
    ],
)
def test_bad_steps(here: Path, capsys, arguments: list[str], said: str) -> None:
    code, _ = bench("--target", "v5p:8", "--method", "simulated", *arguments)
    assert code == 2 and said in capsys.readouterr().err


def test_a_resumed_run_of_every_mesh_ranks_them_all_again(here: Path) -> None:
    what = ["--target", "v5p:8", "--method", "simulated", "--pass", "step", "--mesh", "auto", "--layout", "striped"]
    code, found = bench(*what, "--seqlen", "64k")
    path = Path("run/run.json")
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "measurements": content["measurements"][:3]}))
    again, resumed = bench(*what, "--seqlen", "64k", "--resume")
    assert (code, again) == (0, 0) and [m.key for m in resumed] == [m.key for m in found]
