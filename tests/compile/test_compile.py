"""Plans compiled by the real TPU and GPU compilers for machines that are not here."""

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stripectl.analysis.explanation import schedule_sentence
from stripectl.compile.compiler import CompilerPool, compile_case, refusal, refused_memory, with_report
from stripectl.compile.cost_model import calls_of
from stripectl.compile.report import CompilerReport
from stripectl.compile.toolchain import TOOLCHAINS, Toolchain
from stripectl.core.defaults import with_mesh
from stripectl.core.kernel import kernels
from stripectl.core.model import MODEL_SIZES
from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import COUNTING, CostModel
from stripectl.execute.xla_flags import why_flag_unknown
from stripectl.hardware.target import parse_target, read_target
from stripectl.measure.local_target import LocalTarget
from stripectl.models.model_files import load_model
from stripectl.results.case import Case
from stripectl.results.compiled_program import CompiledProgram, LoopCopies
from stripectl.results.cost_source import CostOrigin, CostSource
from stripectl.results.measurement import Measurement
from stripectl.results.tile_cost import TileCost
from stripectl.runner.cases import bench_cases
from stripectl.runner.max_length import length_step, max_length_cases, search_max_length
from stripectl.runner.request import Request
from stripectl.runner.static_facts import with_static_facts
from stripectl.simulate.simulation import simulate
from stripectl.util.progress import quiet
from stripectl.util.units import nbytes
from tests.support.compilers import installed, needs
from tests.support.factories import because
from tests.support.plans import reference_plan, with_tile

TARGETS = ["v3:2x2", "v4:2x2x2", "v5e:2x4", "v5p:2x2x2", "v6e:2x4", "tpu7x:2x2x1", "a100:8", "h100:8", "b200:8"]
TARGETS += ["h20:8", "l40s:8", "rtx5090:8"]
TPUS = ("v4", "v5e", "v5p", "v6e", "tpu7x")  # that Pallas kernels compile for
PALLAS = ("splash", "pallas_tpu", "pallas_bounded", "pallas_ring")
FORWARD, BOTH = "forward", "forward-backward"
RING, GATHER = "ring/striped/xla@ring=8,tile=512", "all_gather/striped/xla@ring=8,tile=512"


def workload(passes: str, seq_len: int = 2**14) -> Workload:
    return Workload(seq_len=seq_len, heads=4, kv_heads=4, head_dim=128, passes=passes)


def case(plan: str, target: str, passes: str, **fields) -> Case:
    """What a bench would have compiled."""
    request = Request(workloads=[workload(passes)], plans=[parse_plan(plan)], **fields)
    return bench_cases(request, LocalTarget(parse_target(target)))[0]


@pytest.fixture(scope="module")
def compilers(without_toolkit) -> Iterator[CompilerPool]:
    with CompilerPool(quiet, cached=False) as found:
        yield found


QUICK = ("v5e:2x4", "h100:8")  # a TPU and a GPU
GATHERS = (*QUICK, "v5p:2x2x2")  # two sides of a torus, a switch, and three sides


def whole() -> Iterator[Any]:
    """(target, plan, pass) with the part that compiles it: the quick tests a ring of each kind of machine. Plans that
    only `full` compiles have one pass on each target, in turns."""
    layouts = [RING.replace("striped", layout) for layout in ("contiguous", "zigzag")]
    for at, target in enumerate(TARGETS):
        pallas = [RING.replace("xla", name) for name in PALLAS if target.partition(":")[0] in TPUS]
        for nth, plan in enumerate((RING, GATHER, *layouts, *pallas, f"{RING},unroll=8")):
            often = plan == RING or (plan == GATHER and target in GATHERS) or (target in QUICK and "unroll" in plan)
            part = () if target in QUICK and plan == RING else pytest.mark.compilers
            if often:
                yield pytest.param(target, plan, BOTH, marks=part)
            rest = FORWARD if often or (at + nth) % 2 else BOTH
            yield pytest.param(target, plan, rest, marks=pytest.mark.full)


@installed
@pytest.mark.parametrize(("target", "plan", "passes"), list(whole()))
def test_compiled_bytes_are_the_simulated_after_named_rewrites(
    compilers: CompilerPool, target: str, plan: str, passes: str
) -> None:
    found = compile_case(case(plan, target, passes), parse_target(target), compilers)
    assert found.status == "ok", found.reason
    assert found.bytes and found.compiled_program and found.peak_bytes
    simulated = simulate(found.workload, parse_plan(plan), COUNTING).sent
    rewrites = {each.name: each for each in found.compiled_program.rewrites}
    assert sum(found.bytes.values()) == sum(simulated.values()) + sum(each.bytes for each in rewrites.values())
    element_bytes, block = 2, 4 * 128 * 2**14 // 8
    allowed = {
        "narrowing": (2, -2 * block * (4 - element_bytes)),  # dK and dV on their hop home
        "merged rotation": (2, -2 * block * element_bytes),  # K and V of the first hop, which is before any round
        "reduce-scatter as all-reduce": (2, 2 * 7 * block * element_bytes),  # of dK and dV
    }
    for name, each in rewrites.items():
        assert (each.transfers, each.bytes) == allowed[name]
    expected = {RING: {"narrowing"}, f"{RING},unroll=8": {"narrowing", "merged rotation"}}
    if plan in expected:
        assert set(rewrites) == (expected[plan] if passes == BOTH else set())


@needs
def test_a_tpu_sums_where_a_gather_does_not_follow_its_torus(compilers: CompilerPool) -> None:
    target, plan = "v5p:4x4x4", "all_gather/striped/xla@ring=64,tile=256"
    found = compile_case(case(plan, target, BOTH), parse_target(target), compilers)
    assert found.compiled_program, found.reason
    sent = 63 * 4 * 128 * 2**14 // 64 * 2  # K or V, and the gradient of each
    rewrites = {each.name: (each.transfers, each.bytes) for each in found.compiled_program.rewrites}
    assert rewrites == {"all-gather as all-reduce": (2, 2 * sent), "reduce-scatter as all-reduce": (2, 2 * sent)}
    assert found.bytes == {"all-reduce": 8 * sent}


@needs
def test_a_tpu_hides_both_passes_of_a_rolled_ring_and_predicts_by_estimated_cycles(compilers: CompilerPool) -> None:
    found = compile_case(case(RING, "v5e:2x4", BOTH), parse_target("v5e:2x4"), compilers)
    assert found.compiled_program and found.cost_source
    loops = [each for each in found.compiled_program.collectives if each.times == 14]
    assert {(each.passes, each.dtype) for each in loops} == {
        ("forward", "bf16"),
        ("backward", "bf16"),
        ("backward", "f32"),
    }
    assert all(each.asynchronous and each.beside_tiles for each in loops)
    assert found.cost_source.source == "estimated_cycles"
    assert found.compiled_program.cycles
    tile_flops, cycles = 4 * 512 * 512 * 128, found.compiled_program.cycles["forward"]
    assert cycles["whole"] > tile_flops / 197e12 * 1.5e9  # no estimate beats the peak
    assert cycles["boundary"] > cycles["whole"]
    copied, rate = 4 * 2 * 4 * 2**11 * 128, 819e9
    assert found.compiled_program.copies == LoopCopies(
        per_round=4, bytes_per_round=copied, s_per_round=2 * copied / rate
    )
    assert "copies 8.00 MiB of the data that it sends, about 20.5 us; try unroll=2." in schedule_sentence(found)
    unrolled = compile_case(case(f"{RING},unroll=2", "v5e:2x4", BOTH), parse_target("v5e:2x4"), compilers)
    assert (
        unrolled.compiled_program
        and unrolled.compiled_program.copies
        and unrolled.compiled_program.copies.per_round == 0
        and not schedule_sentence(unrolled)
    )
    late = schedule_sentence(
        replace(found, compiled_program=CompiledProgram(collectives=(replace(loops[0], asynchronous=False),)))
    )
    size = nbytes(14 * loops[0].sent_bytes)
    assert late == f"14 of its transfers ({size} per device) run synchronously, so nothing hides them."
    assert found.median_s and found.overlap and str(found.overlap.source).startswith("predicted")
    assert found.bottleneck_shares and found.bottleneck_shares["compute"] > found.bottleneck_shares["communication"]
    assert [each.median_s for each in found.scaling or () if each.seq_len == found.workload.seq_len] == [found.median_s]


@needs
def test_a_tpu_hides_every_hop_of_a_chain_of_states_and_no_gather(compilers: CompilerPool) -> None:
    target = parse_target("v5e:2x4")
    linear = replace(workload(BOTH), attention="linear", decay="per-head")
    sent = {}
    for name in ("lasp", "lasp2"):
        request = Request(workloads=[linear], plans=[parse_plan(f"{name}@ring=8,tile=256")])
        found = compile_case(bench_cases(request, LocalTarget(target))[0], target, compilers)
        assert found.compiled_program and found.median_s, found.reason
        sent[name] = found.compiled_program.collectives
    chain, gather = sent["lasp"], sent["lasp2"]
    assert sum(each.times for each in chain) == 2 * 7
    assert all(each.opcode == "collective-permute" and each.asynchronous for each in chain)
    assert all(each.beside_tiles for each in chain)
    assert {(each.opcode, each.times) for each in gather} == {("all-gather", 1)}
    assert not any(each.beside_tiles for each in gather)


@needs
def test_a_gpu_has_no_cycles_and_its_prediction_says_so(compilers: CompilerPool) -> None:
    found = compile_case(case(RING, "a100:8", FORWARD), parse_target("a100:8"), compilers)
    assert found.cost_source and found.cost_source.source == "datasheet"
    assert "cycles" in str(found.cost_source.left_out)


@needs
def test_a_gpu_whose_tiles_were_measured_is_predicted_from_them(compilers: CompilerPool) -> None:
    found = compile_case(case(RING, "h100:8", FORWARD), parse_target("h100:8"), compilers)
    assert found.cost_source and found.cost_source.source == "measured_before"
    assert found.cost_source.forward and found.cost_source.forward.whole_s == pytest.approx(37.7e-6)


@needs
def test_flags_change_the_schedule_and_an_unknown_flag_is_refused(compilers: CompilerPool) -> None:
    target, flag = parse_target("v5e:2x2"), "xla_enable_async_collective_permute"
    plan = "ring/striped/xla@ring=4,tile=512"
    with_flag = case(plan, "v5e:2x2", FORWARD, flags=[{flag: "false"}])
    found = compile_case(with_flag, target, compilers)
    assert found.compiled_program and not any(each.asynchronous for each in found.compiled_program.collectives)
    assert found.overlap and found.overlap.ratio is not None and found.overlap.ratio < 1e-9
    wrong = compile_case(
        case(plan, "v5e:2x2", FORWARD, flags=[{flag.replace("permute", "premute"): "1"}]), target, compilers
    )
    assert wrong.status == "refused"
    assert "does not know the flag 'xla_enable_async_collective_premute'" in str(wrong.reason)


def test_only_the_message_about_an_unknown_flag_is_rewritten() -> None:
    said = "INVALID_ARGUMENT: No such compile option: 'xla_x'"
    assert "the ROCM compiler does not know the flag 'xla_x'." in str(why_flag_unknown(said, "rocm"))
    assert why_flag_unknown("INTERNAL: something else", "rocm") is None


@needs
def test_the_longest_sequence_fits_and_one_step_more_does_not(compilers: CompilerPool) -> None:
    target, plan = parse_target("v5e:2x2"), parse_plan("ring/striped/xla@ring=4,tile=1024x2048")
    template = Case(
        workload=Workload(seq_len=1, heads=1024, kv_heads=1024, head_dim=128),
        plan=plan,
        target=read_target("v5e:2x2"),
        method="compiled",
    )

    def compile_length(work: Workload) -> Measurement:
        return compile_case(with_static_facts(replace(template, workload=work), target.hardware), target, compilers)

    found = search_max_length(template, compile_length)
    assert found.status == "ok" and found.compiled_program
    assert found.workload.seq_len % length_step(plan, template.workload) == 0
    said = found.compiled_program.longest
    assert said and said.reason and said.refused == found.workload.seq_len + length_step(plan, template.workload)
    assert "does not fit" in str(said.reason)


def test_lengths_are_found_whatever_the_memory(monkeypatch) -> None:
    """Any monotone oracle, linear in the length or not."""
    plan = parse_plan("ring/zigzag/xla@ring=4,tile=16x32")
    step = length_step(plan, workload(FORWARD))
    assert step == 4 * 2 * 32
    assert length_step(plan, replace(workload(FORWARD), query_len=3 * step - 1)) == 3 * step
    template = Case(workload=workload(FORWARD), plan=plan, target=read_target("v5e:2x2"), method="compiled")
    for most, power in itertools.product((1, 2, 3, 7, 100, 12345), (1, 2)):
        asked: list[int] = []

        def oracle(work: Workload, most: int = most, power: int = power, asked: list[int] = asked) -> Measurement:
            steps = work.seq_len // step
            asked.append(steps)
            fits = steps <= most
            return Measurement(
                workload=work,
                plan=plan,
                target=read_target("v5e:2x2"),
                method="compiled",
                status="ok" if fits else "refused",
                reason=None if fits else because("does not fit"),
                peak_bytes=10 + steps**power if fits else None,
                hbm_bytes=10 + most**power,
            )

        found = search_max_length(template, oracle)
        assert found.workload.seq_len == most * step
        assert found.compiled_program and found.compiled_program.longest
        assert found.compiled_program.longest.refused == (most + 1) * step
        assert {most, most + 1} <= set(asked) and len(asked) == len(set(asked)) < 40


def test_a_search_of_lengths_names_the_tiles_of_both_kinds_of_layers() -> None:
    model = load_model("linear-llama-1b-hybrid")
    sizes = {name: getattr(model, name) for name in (*MODEL_SIZES, "heads", "kv_heads", "head_dim", "attention")}
    work, place = (
        Workload(seq_len=2**14, passes="step", model=model.name, **sizes),
        LocalTarget(parse_target("v5e:2x4")),
    )
    for text, step in (("lasp2", 2048), ("lasp2@ring=8,softmax=all_gather/xla/768", 768)):
        (case,) = max_length_cases(Request(workloads=[work], plans=[parse_plan(text)], find_max_length=True), place)
        plan = case.plan
        assert case.is_ready and plan.tile and plan.softmax and plan.softmax.tile, case.reason
        assert case.workload.seq_len == length_step(plan, work) == 8 * step
        assert str(with_tile(plan, case.workload, "tpu")) == str(case.plan)


@pytest.mark.parametrize(
    "plan",
    [
        *("lasp", "lasp2", "ring/contiguous/chunked@ring=8", "ring", "bidirectional", "dist_flash", "double_ring"),
        *("all_gather@ring=8,parts=4", "ulysses", "usp"),
    ],
)
def test_what_a_compiler_says_beside_tiles_is_charged_once_a_pass(plan: str) -> None:
    found = with_mesh(reference_plan(plan), 8)
    kind = "linear" if kernels[found.kernel].attention == "linear" else "softmax"
    work = Workload(seq_len=2**12, heads=8, kv_heads=8, head_dim=64, attention=kind, passes=BOTH)
    found = with_tile(found, work, "tpu")
    calls = calls_of(work, found, ["forward", "backward"])
    costs = [TileCost(0.0, 0.0, call_s=1 / calls[each], call_grows=True) for each in ("forward", "backward")]
    machine = CostModel(costs[0], costs[1], CostSource(source=CostOrigin.ESTIMATED_CYCLES))
    assert simulate(work, found, machine).seconds == pytest.approx(2.0)


OF_A_CORE = (
    "RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom: Ran out of memory in memory space vmem while allocating on "
    "stack for %splash_mha_dkv_no_residuals.1 = (...). Scoped allocation with size 38.21M and limit 32.00M exceeded "
    "scoped vmem limit by 6.21M.",
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space vmem. Used 43.03M of "
    "16.00M vmem. Exceeded vmem capacity by 27.03M.",
)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (44.00G) "
            "exceeds available HBM (15.75G).",
            (44 * 2**30, int(15.75 * 2**30)),
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 33.5G of 15.75G hbm.",
            (33.5 * 2**30, 15.75 * 2**30),
        ),
        ("INVALID_ARGUMENT: something of (3.0G)", (None, None)),
        (OF_A_CORE[0], (None, None)),
    ],
)
def test_the_compilers_words_on_memory(message: str, expected: tuple) -> None:
    assert refused_memory(message) == expected


@pytest.mark.parametrize("message", OF_A_CORE)
def test_a_kernel_that_does_not_fit_into_a_core_is_refused_with_both_sizes(message: str) -> None:
    size = r"\d\d\.\d+ MiB"
    expected = rf"a kernel takes {size} of a core's memory, and libtpu \S+ gives it {size}\. Try a smaller --tile\."
    assert re.fullmatch(expected, str(refusal(message, TOOLCHAINS["tpu"])))


def bench(*arguments: str, folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """A real `stripectl bench` with a cache of its own."""
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")} | variables
    line = [sys.executable, "-m", "stripectl", "bench", *arguments, "--output", str(folder / "run")]
    return subprocess.run(line, capture_output=True, text=True, env=environment, cwd=folder, timeout=300)


SMALL = ("--seqlen", "16k", "--heads", "4", "--head-dim", "128", "--pass", "forward")


@needs
def test_a_plan_that_does_not_fit_costs_only_itself_and_a_second_run_compiles_nothing(tmp_path: Path) -> None:
    arguments = ("--target", "v5e:2x2", "--seqlen", "512k", "--heads", "32", "--pass", "forward")
    plans = ("--plan", "ring/striped/xla@ring=4,tile=2048", "--plan", "ring/striped/xla@ring=2,tile=2048")
    first = bench(*arguments, *plans, folder=tmp_path)
    assert first.returncode == 2  # a plan that was named is refused
    content = json.loads((tmp_path / "run/run.json").read_text())
    fits, too_large, *_ = content["measurements"]
    assert (fits["status"], too_large["status"]) == ("ok", "refused")
    assert "does not fit" in too_large["reason"] and too_large["peak_bytes"] > too_large["hbm_bytes"]
    assert "Traceback" not in first.stderr
    (tmp_path / "run").rename(tmp_path / "before")
    again = bench(*arguments, *plans, folder=tmp_path, PATH="", PYTHONHASHSEED="1")
    assert again.returncode == 2 and again.stderr.count("compile") <= 1
    repeated = json.loads((tmp_path / "run/run.json").read_text())
    assert [m["median_s"] for m in repeated["measurements"]] == [m["median_s"] for m in content["measurements"]]


@needs
def test_a_compile_that_takes_too_long_is_a_failed_plan(tmp_path: Path) -> None:
    done = bench(*SMALL, "--target", "v5e:2x2", "--layout", "striped", "--compile-timeout", "0.2s", folder=tmp_path)
    assert done.returncode == 1
    reason = json.loads((tmp_path / "run/run.json").read_text())["measurements"][0]["reason"]
    assert reason == "the compiler took longer than its limit of 0.2 s. Try a longer --compile-timeout"


def test_a_compiler_of_the_wrong_version_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    other = tmp_path / "site" / "libtpu-0.0.99.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: libtpu\nVersion: 0.0.99\n")
    path = os.pathsep.join([str(tmp_path / "site"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    done = bench(*SMALL, "--target", "v5e:2x2", "--method", "compiled", folder=tmp_path, PYTHONPATH=path)
    assert done.returncode == 3
    assert len(done.stderr.strip().splitlines()) == 1
    assert "libtpu 0.0.99 is installed" in done.stderr and "pip install 'jax[tpu]" in done.stderr


def test_a_compiler_that_is_not_installed_says_how_it_is() -> None:
    tools = Toolchain("tpu", (("libtpu-of-nobody", "jax"),), "tpu", "v5e:2x2")
    assert tools.missing and "is not installed. Run: pip install 'jax[tpu]" in tools.missing


@needs
def test_one_tile_a_shard_has_no_loop_left_and_still_its_cycles(compilers: CompilerPool) -> None:
    found = compile_case(case("ring/contiguous/xla@tile=16384", "v5e:1x1", FORWARD), parse_target("v5e:1x1"), compilers)
    assert found.cost_source and found.cost_source.source == "estimated_cycles"
    assert found.median_s and found.median_s > 4 * 2**28 * 128 / 197e12


@needs
@pytest.mark.parametrize("kernel", PALLAS)
def test_what_has_no_published_rate_is_still_compiled(compilers: CompilerPool, kernel: str) -> None:
    single = Workload(seq_len=2**12, heads=4, kv_heads=4, head_dim=128, dtype="float32")
    plan = parse_plan(f"ring/striped/{kernel}@ring=4,tile=128")
    wanted = bench_cases(Request(workloads=[single], plans=[plan]), LocalTarget(parse_target("v5e:2x2")))[0]
    found = compile_case(wanted, parse_target("v5e:2x2"), compilers)
    assert found.status == "ok" and found.peak_bytes and found.cost_source
    assert found.cost_source.source == "bundles"


@needs
def test_short_gradients_of_whole_sequences_compile(compilers: CompilerPool) -> None:
    """Nothing but a conversion to bfloat16 reads what the kernel writes in place, and all rows are one stripe."""
    found = compile_case(
        case("ulysses/contiguous/pallas_tpu@ulysses=4,tile=512", "v5e:2x2", BOTH), parse_target("v5e:2x2"), compilers
    )
    assert found.status == "ok" and found.peak_bytes, found.reason


@needs
def test_a_grid_of_live_tiles_leaves_boundary_tiles_their_mask_and_whole_ones_without(compilers: CompilerPool) -> None:
    """Of splash every tile of a pair with a boundary is masked. Heads are shared by the two cores of a v5p's device."""
    costs = {}
    for kernel, target in (("splash", "v5e:2x2"), ("pallas_tpu", "v5e:2x2"), ("pallas_tpu", "v5p:2x2x1")):
        wanted = case(f"ring/striped/{kernel}@ring=4,tile=512", target, FORWARD)
        found = compile_case(wanted, parse_target(target), compilers)
        assert found.cost_source and found.cost_source.source == "bundles"
        costs[kernel, target] = found.cost_source.forward
    ours, theirs = costs["pallas_tpu", "v5e:2x2"], costs["splash", "v5e:2x2"]
    assert ours.whole_s < theirs.whole_s and ours.boundary_s < theirs.boundary_s
    assert ours.dead_s == 0 < theirs.dead_s
    assert costs["pallas_tpu", "v5p:2x2x1"].whole_s < 0.6 * ours.whole_s


@needs
@pytest.mark.parametrize("unroll", [2, 7])
def test_rounds_of_an_unrolled_loop_copy_nothing_and_hide_their_hops(compilers: CompilerPool, unroll: int) -> None:
    plan = RING.replace("xla", "splash") + f",unroll={unroll}"
    found = compile_case(case(plan, "v5e:2x4", FORWARD), parse_target("v5e:2x4"), compilers)
    assert found.compiled_program and found.compiled_program.copies and found.cost_source
    assert found.compiled_program.copies.per_round == 0 and not found.cost_source.exposed


@needs
@pytest.mark.parametrize("target", ["v5e:2x4", "v5p:2x2x2"])  # whose devices have one core, and two
def test_hops_of_kernels_send_what_a_simulation_counts_and_copy_nothing(compilers: CompilerPool, target: str) -> None:
    """Of shards of 16k rows, whose backward pass runs in stripes."""
    plan = RING.replace("xla", "pallas_ring") + ",unroll=2"
    wanted = bench_cases(
        Request(workloads=[workload(BOTH, 2**17)], plans=[parse_plan(plan)]), LocalTarget(parse_target(target))
    )
    found = compile_case(wanted[0], parse_target(target), compilers)
    assert found.compiled_program and found.cost_source
    # Of dK and dV on their hop home.
    assert [each.name for each in found.compiled_program.rewrites] == ["narrowing"]
    *hops, home = sorted(found.compiled_program.collectives, key=lambda each: -each.times)
    told = {(each.opcode, each.axis, each.passes, each.dtype, each.times) for each in hops}
    kinds = (("forward", "bf16"), ("backward", "bf16"), ("backward", "f32"))
    assert told == {("collective-permute", "ring", *kind, 2 * 7) for kind in kinds} and home.times == 2
    assert all(each.asynchronous and each.beside_tiles for each in hops)
    assert found.compiled_program.copies and found.compiled_program.copies.per_round == 0
    assert not schedule_sentence(found)
    assert found.cost_source.source == "bundles"


@needs
def test_what_mosaic_will_not_compile_is_refused_with_another_kernel(compilers: CompilerPool) -> None:
    found = compile_case(
        case("ring/striped/splash@ring=8,tile=512", "v3:2x2", FORWARD), parse_target("v3:2x2"), compilers
    )
    assert found.status == "refused" and "Try --kernel xla" in str(found.reason)
    usual = bench_cases(
        Request(workloads=[workload(FORWARD)], plans=[parse_plan("ring/striped")]),
        LocalTarget(parse_target("v3:2x2")),
    )
    assert usual[0].plan.kernel == "xla"


def test_a_compiler_that_fails_ends_the_search_with_what_fits() -> None:
    plan = parse_plan("ring/striped/xla@ring=4,tile=16")
    template = Case(workload=workload(FORWARD), plan=plan, target=read_target("v5e:2x2"), method="compiled")

    def oracle(work: Workload) -> Measurement:
        steps = work.seq_len // length_step(plan, template.workload)
        status = "ok" if steps <= 2 else "failed"
        return Measurement(
            workload=work,
            plan=plan,
            target=read_target("v5e:2x2"),
            method="compiled",
            status=status,
            reason=because("it crashed"),
        )

    found = search_max_length(template, oracle)
    assert found.status == "ok" and found.workload.seq_len == 2 * length_step(plan, template.workload)
    assert found.compiled_program and found.compiled_program.longest
    assert found.compiled_program.longest.reason == because("it crashed")


@pytest.mark.parametrize(("model", "status"), [("llama3-8b", "ok"), ("llama3.2-1b", "ok"), ("deepseek-v3", "refused")])
def test_parameters_that_a_program_does_not_hold_take_memory(model: str, status: str) -> None:
    """A compiled step has a feed-forward in place of experts; 16 devices hold 18 bytes per parameter of the experts."""
    work = Workload(seq_len=2**17, passes="step", model=model, **load_model(model).step_sizes)
    plan, named = parse_plan("ring/zigzag/splash@ring=16,tile=512"), read_target("v5p:2x2x4")
    asked = Measurement(workload=work, plan=plan, target=named, method="compiled", status="ok", hbm_bytes=95 * 2**30)
    found = with_report(asked, CompilerReport(compile_s=1.0, peak_bytes=2**33), parse_target("v5p:2x2x4"))
    assert found.peak_bytes == 2**33 + max(0, work.other_parameters) * 18 // 16 and found.status == status


@needs
def test_a_kept_report_belongs_to_the_versions_of_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a kernel's library, which changes the program."""
    keys = list[str]()

    def found(key: object) -> None:
        keys.append(str(key))
        raise InterruptedError

    monkeypatch.setattr("stripectl.compile.compiler.disk_cache.load", found)
    packages = ("jax", "libtpu", "tokamax")
    for changed in (None, *packages):
        monkeypatch.setattr(
            "stripectl.compile.compiler.version", lambda package, changed=changed: f"{package}-{package == changed}"
        )
        with CompilerPool(quiet) as pool, pytest.raises(InterruptedError):
            wanted = case("ring/striped/xla@ring=4", "v5e:2x2", FORWARD)
            pool.report(wanted.workload, wanted.plan, parse_target("v5e:2x2"), {})
    assert len(set(keys)) == 1 + len(packages)
