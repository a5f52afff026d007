"""Memory as clocks add it up: arrays that a scheme keeps, steps, and the compilers' word on the same plans."""

from dataclasses import replace
from pathlib import Path

import pytest

from stripectl.analysis.accuracy.memory import NEAR_SHARE, memory_errors, memory_predictions
from stripectl.analysis.recommendation import recommend
from stripectl.cli import main
from stripectl.core.layer_groups import LayerGroup
from stripectl.core.layout import Tile
from stripectl.core.plan import STATES, Plan, parse_plan
from stripectl.core.scheme import schemes
from stripectl.core.workload import STEP, Workload
from stripectl.costs.cost_model import COUNTING
from stripectl.measure.local_target import local_target
from stripectl.measure.local_workers import LocalWorkers
from stripectl.measure.machine_timings import MachineTimings
from stripectl.measure.plan_costs import plan_costs
from stripectl.models.model_files import load_model
from stripectl.results.backend import finals
from stripectl.results.run import Run
from stripectl.runner.backends import EXPLAINED_PLANS, Simulated
from stripectl.runner.cases import make_case
from stripectl.runner.time_plans import time_plans
from stripectl.simulate.memory import Allocation, Ledger
from stripectl.simulate.simulation import simulate, simulate_times
from stripectl.simulate.step_memory import step_memory
from stripectl.simulate.step_program import optimizer_bytes
from stripectl.util.files import profile_names
from tests.support.plans import mask_of

WORK = Workload(seq_len=2**15, heads=16, kv_heads=16, head_dim=128, passes="forward")
ARRAY = 2**15 // 8 * 16 * 128 * 2  # bytes of queries, keys or values of one of eight shards


def step_of(name: str, seq_len: int, batch: int = 1) -> Workload:
    return Workload(seq_len=seq_len, batch=batch, passes=STEP, model=name, **load_model(name).step_sizes)


def test_memory_counts_until_its_last_reference_is_gone() -> None:
    ledger = Ledger()
    first, second = Allocation(ledger, 3), Allocation(ledger, 4)
    del first
    third = Allocation(ledger, 2)
    assert ledger.in_use == 6 and ledger.peak[0] == 7
    del second, third
    assert ledger.in_use == 0 and ledger.peak[0] == 7


@pytest.mark.parametrize(
    ("text", "arrays"),
    [
        # q, k, v; a loop's k and v, and those that arrive; an output in float32; scaled queries, in and behind the loop
        ("ring/striped/pallas_tpu@ring=8,tile=512", 3 + 2 + 2 + 2 + 2),
        # q, k, v; all keys and values, and one shard's of them; an output in float32; scaled queries, twice
        ("all_gather/striped/pallas_tpu@ring=8,tile=512", 3 + 2 * 8 + 2 + 2 + 2),
    ],
)
def test_a_forward_pass_holds_its_arguments_and_what_its_loop_carries(text: str, arrays: int) -> None:
    assert simulate(WORK, parse_plan(text), COUNTING).peak_bytes == arrays * ARRAY


def test_a_gather_holds_keys_and_values_once_in_its_backward_pass() -> None:
    """q, k, v, output and its gradient; all keys and values, then their gradients; dq in float32; a shard's dk; and the
    sum over devices of all dv, before each takes its part."""
    work, plan = replace(WORK, passes="forward-backward"), "all_gather/striped/pallas_tpu@ring=8,tile=512"
    found, in_parts = (simulate(work, parse_plan(text), COUNTING) for text in (plan, f"{plan},parts=4"))
    assert found.peak_bytes == (5 + 2 * 8 + 2 + 1 + 8) * ARRAY > in_parts.peak_bytes
    assert found.held_bytes == in_parts.held_bytes == (4 + 2 * 8) * ARRAY


@pytest.mark.parametrize("scheme", ["ring", "bidirectional", "usp", "all_gather"])
def test_memory_grows_with_the_length_and_not_with_the_machine(scheme: str) -> None:
    mesh = "ring=4,ulysses=2" if scheme == "usp" else "ring=8"
    work, plan = replace(WORK, passes="forward-backward"), parse_plan(f"{scheme}/striped/pallas_tpu@{mesh},tile=512")
    short = simulate(work, plan, COUNTING).peak_bytes
    assert simulate(replace(work, seq_len=2**16), plan, COUNTING).peak_bytes == 2 * short
    assert simulate(work, plan, COUNTING.with_part_sped_up("compute")).peak_bytes == short


def test_the_parts_of_a_step_are_those_of_its_shards() -> None:
    work, plan = step_of("7b", 2**17), parse_plan("ring/striped/splash@ring=16,tile=512")
    parts = step_memory(work, plan, "tpu")
    model = work.sizes
    parameters = model.layers * model.layer_parameters + 2 * model.head_parameters
    assert parts["parameters"] == 4 * parameters // 16 and parts["optimizer"] == 2 * parts["parameters"]
    whole = step_memory(work, replace(plan, zero="0"), "tpu")
    assert whole["parameters"] == 16 * parts["parameters"] and whole["optimizer"] == 16 * parts["optimizer"]
    once = step_memory(work, replace(plan, zero="1"), "tpu")
    assert once["parameters"] == whole["parameters"] and once["optimizer"] == parts["optimizer"]


def test_every_parameter_of_a_model_takes_memory() -> None:
    """A parameter without a matrix: float32 in parameters, gradients and two moments, and a copy in bfloat16."""
    plan = parse_plan("ring/striped/splash@ring=4,tensor=4,tile=512")
    for name in (name for name in profile_names("models") if load_model(name).attention == "softmax"):
        work, others = step_of(name, 2**17), load_model(name).other_parameters
        parts, bare = (step_memory(each, plan, "tpu") for each in (work, replace(work, other_parameters=0)))
        assert parts["parameters"] - bare["parameters"] == pytest.approx(4 * others / 16, abs=1)
        assert parts["optimizer"] - bare["optimizer"] == pytest.approx(8 * others / 16, abs=1)
        if others > 0:  # the peak is where all gradients are
            more = {key: parts[key] - bare.get(key, 0) for key in ("gradients", "gathered parameters")}
            assert more["gradients"] >= 4 * others / 16 - 1 and more["gathered parameters"] >= 2 * others / 16 - 1


def test_a_model_whose_parameters_do_not_fit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """671 billion on 16 devices: 469 GiB each of parameters and moments."""
    words = ["--target", "v5p:2x2x4", "--model", "deepseek-v3", "--seqlen", "128k", "--pass", "step"]
    words += ["--plan", "ring/zigzag/splash@ring=16,tile=512"]
    assert ran(*words, "--output", str(tmp_path / "run")) == 2
    assert "does not fit" in " ".join(capsys.readouterr().out.split())
    (m,) = Run.load(tmp_path / "run").measurements
    assert m.status == "refused" and (m.peak_bytes or 0) >= 469 * 2**30
    assert m.workload.other_parameters == load_model("deepseek-v3").other_parameters
    assert ran(*words, "--layers", "2", "--output", str(tmp_path / "two")) == 0
    (two,) = Run.load(tmp_path / "two").measurements
    assert two.workload.other_parameters == 2 * m.workload.other_parameters // 61


def test_what_a_layer_keeps_grows_with_what_remat_keeps() -> None:
    work, plan = step_of("llama3-8b", 2**17), parse_plan("ring/striped/splash@ring=16,tile=512")
    kept = [
        step_memory(work, replace(plan, remat=each), "tpu")["activations"]
        for each in ("full", "attention", "dots", "none")
    ]
    assert kept == sorted(kept) and len(set(kept)) == len(kept)


def test_a_layer_that_keeps_everything_keeps_what_its_scheme_keeps() -> None:
    """In addition to a ring's values: all keys and values; queries, keys, values and output in the place of attention;
    the weights of all keys in float32."""
    rows, width = 2**17 // 8, 32 * 128 * 2
    array, keys = rows * width, 2 * rows * 8 * 128 * 2

    def kept(text: str) -> float:
        """The bytes that each layer keeps."""
        plan, work = replace(parse_plan(text), remat="none"), step_of("llama3-8b", 2**17)
        few, many = (step_memory(replace(work, layers=each), plan, "tpu")["activations"] for each in (33, 65))
        return (many - few) / 32

    ring = kept("ring/striped/splash@ring=8,tile=512")
    assert kept("all_gather/striped/splash@ring=8,tile=512") - ring == 8 * keys
    assert kept("ulysses/contiguous/splash@ulysses=8,tile=512") - ring == 2 * array + keys
    assert kept("rsa/striped/dense@ring=8,tile=512") - ring >= rows * 2**17 * 32 * 4


def test_steps_are_within_a_tenth_of_what_compilers_say() -> None:
    steps = [row for row in memory_predictions() if row.passes == STEP and row.compiled]
    assert len(steps) >= 20
    assert [row for row in steps if abs(row.ratio - 1) > NEAR_SHARE] == []


def test_attention_on_tpus_is_near_what_the_compiler_says() -> None:
    attention = [row for row in memory_predictions() if row.passes != STEP and not row.target.startswith("h100")]
    assert len(attention) >= 60
    assert sum(abs(row.ratio - 1) <= NEAR_SHARE for row in attention) >= 0.85 * len(attention)
    assert all(abs(row.ratio - 1) <= 2 * NEAR_SHARE for row in attention)


def test_nothing_that_a_compiler_refuses_is_said_to_fit_with_room_to_spare() -> None:
    memory = {"v5p": 95 * 2**30, "v6e": 31.25 * 2**30, "h100": 80e9}
    refused = [row for row in memory_predictions() if row.compiled is None]
    assert refused and all(row.predicted > 0.95 * memory[row.target.partition(":")[0]] for row in refused)


def test_the_error_is_said_by_program_and_device() -> None:
    by = {(each.what, each.hardware): each for each in memory_errors()}
    assert {("training steps", "v5p"), ("attention alone", "v6e"), ("attention alone", "h100")} <= by.keys()
    assert (
        by["training steps", "v5p"].mean < 0.05 and by["training steps", "v5p"].near == by["training steps", "v5p"].rows
    )


TILES = [Tile(256, 512), Tile(512, 512), Tile(1024, 512), Tile(1024, 1024)]


TRAINS = [
    name
    for name in schemes.names()
    if schemes[name].query_sharding == "all" and "softmax" in schemes[name].kernel_families
]


@pytest.mark.parametrize(
    ("scheme", "layout"),
    [
        (scheme, layout)
        for scheme in (*TRAINS, "pass_kv")
        for layout in ("contiguous", "zigzag")
        if layout in (schemes[scheme].layouts or (layout,))
    ],
)
def test_plans_on_an_axis_of_clocks_take_what_each_takes_alone(scheme: str, layout: str) -> None:
    axes = schemes[scheme].axes
    sizes = {1: [8], 2: [4, 2], 3: [2, 2, 2]}.get(len(axes), [])
    mesh = ",".join(f"{axis}={size}" for axis, size in zip(axes, sizes, strict=True))
    passes = "forward" if scheme == "pass_kv" else "forward-backward"
    work = replace(WORK, passes=passes, query_len=2**12 if scheme == "pass_kv" else None, mask=mask_of(scheme))
    bare = parse_plan(f"{scheme}/{layout}/pallas_tpu@{mesh}" if scheme != "pass_kv" else f"pass_kv/{layout}/xla@{mesh}")
    plans = [replace(bare, tile=Tile(min(tile.block_q, 512), min(tile.block_kv, 512))) for tile in TILES]
    plans = list(dict.fromkeys([*plans, replace(bare, tile=Tile(512, 256)), replace(bare, tile=Tile(128, 128))]))
    with LocalWorkers(lambda *_: None) as workers:
        place = local_target("v5p:2x2x2", None, workers)
        machines = [plan_costs(LayerGroup(1, work, plan), place, MachineTimings(workers)) for plan in plans]
    together = simulate_times(work, plans, machines)
    alone = [simulate(work, plan, machine) for plan, machine in zip(plans, machines, strict=True)]
    assert together.seconds.tolist() == [each.seconds for each in alone]
    assert together.peak_bytes.tolist() == [each.peak_bytes for each in alone]
    assert together.sent == alone[0].sent
    forward = simulate(replace(work, passes="forward"), plans[0], machines[0])
    assert together.forward_s[0] == forward.seconds


@pytest.mark.parametrize(
    "work", [replace(WORK, passes="forward-backward"), step_of("1b", 2**15)], ids=["attention", "step"]
)
def test_many_plans_are_timed_as_each_is_and_the_fastest_explained(work: Workload) -> None:
    meshes = ["ring=16", "ring=8,tensor=2", "ring=4,tensor=4"]
    texts = [f"ring/{layout}/pallas_tpu@{mesh}" for mesh in meshes for layout in ("contiguous", "striped", "zigzag")]
    plans = [replace(parse_plan(text), tile=tile) for text in texts for tile in TILES[:3]]
    with LocalWorkers(lambda *_: None) as workers:
        place = local_target("v5p:2x2x4", None, workers)
        cases = [make_case(work, plan, {}, place, "simulated", describe=False) for plan in plans]
        assert len(cases) > EXPLAINED_PLANS
        many = finals(Simulated(place, MachineTimings(workers)).run(cases))
        few = finals(event for case in cases for event in Simulated(place, MachineTimings(workers)).run([case]))
    names = ("plan", "status", "peak_bytes", "memory", "bytes", "bound")
    assert [[getattr(m, name) for name in names] for m in many] == [[getattr(m, name) for name in names] for m in few]
    assert [m.median_s for m in many] == pytest.approx([m.median_s for m in few], rel=1e-12)
    explained = sorted(many, key=lambda m: m.median_s or 0.0)[:EXPLAINED_PLANS]
    assert (
        all(m.bottleneck_shares and m.scaling for m in explained)
        and sum(m.bottleneck_shares is not None for m in many) == EXPLAINED_PLANS
    )


@pytest.mark.parametrize("model", ["mamba-codestral-7b", "qwen3-next-80b-a3b"])
def test_the_memory_of_many_steps_is_that_of_each_with_its_heads_in_lanes(model: str) -> None:
    work = step_of(model, 2**15)
    with LocalWorkers(lambda *_: None) as workers:
        place = local_target("v5p:2x2x4", None, workers)
        plans = [parse_plan(f"lasp2/contiguous/pallas_gated@ring=8,tensor=2,tile={tile}") for tile in (64, 128)]
        cases = [make_case(work, plan, {}, place, "simulated", describe=False) for plan in plans]
        made = list(time_plans(cases, place, MachineTimings(workers)))
    assert {m.status for m in made} <= {"ok", "refused"} and all(m.memory for m in made), made[0].reason
    assert [m.memory for m in made] == [step_memory(work, m.plan, "tpu") for m in made]


def test_many_plans_with_flags_of_a_compiler_are_refused_as_one_is() -> None:
    flags, plans = (
        {"xla_any": "true"},
        [parse_plan(f"ring/striped/pallas_tpu@ring=16,tile={tile}") for tile in (512, 1024)],
    )
    with LocalWorkers(lambda *_: None) as workers:
        place = local_target("v5p:2x2x4", None, workers)
        cases = [make_case(WORK, plan, flags, place, "simulated") for plan in plans] * EXPLAINED_PLANS
        assert {m.status for m in finals(Simulated(place, MachineTimings(workers)).run(cases))} == {"refused"}


def ran(*words: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "--method", "simulated", *words])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def test_a_step_that_does_not_fit_is_refused_with_the_amount_and_the_devices_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--target", "2*h100:8", "--model", "llama3-70b", "--seqlen", "512k", "--pass", "step"]
    assert ran(*words, "--output", str(tmp_path / "run")) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "GiB more than the 79.11 GiB of a device" in said
    assert "Try 32 devices: ring/contiguous/" in said


def test_a_run_of_many_plans_is_read_again(tmp_path: Path) -> None:
    words = [
        "--target",
        "v5p:2x2x4",
        "--seqlen",
        "64k",
        "--pass",
        "forward",
        "--mesh",
        "auto",
        "--scheme",
        "ring",
        "--tile",
        "256,512,1024",
    ]
    assert ran(*words, "--quiet", "--output", str(tmp_path / "run")) == 0
    run = Run.load(tmp_path / "run")
    assert sum(m.status == "ok" for m in run.measurements) > EXPLAINED_PLANS
    assert recommend(run)


def test_the_longest_sequence_is_found_without_a_compiler(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--target",
        "v5p:2x2x4",
        "--model",
        "7b",
        "--pass",
        "step",
        "--seqlen",
        "max",
        "--scheme",
        "ring",
        "--layout",
        "striped",
    ]
    assert ran(*words, "--output", str(tmp_path / "run")) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "longest 3" in said and "it is predicted to need" in said


def test_a_plan_holds_one_tile_per_pass_when_it_is_timed_with_others() -> None:
    plan = Plan("ring", "striped", "pallas_tpu", mesh=(("ring", 8),), tile=Tile(512, 512))
    assert simulate(WORK, plan, COUNTING).peak_bytes == simulate_times(WORK, [plan], [COUNTING]).peak_bytes[0]


def test_a_layer_with_a_recurrence_holds_its_gradients_its_states_and_what_its_convolution_reads() -> None:
    """In arrays of values, of which queries and keys are a half each. Attention: float32 gradients of q, k, v (4) and
    the output's gradient (1). Two gates are numbers per head; a chunk has states. Activations: the layers' inputs (4),
    and q, k, v before and after the convolution (4)."""
    model = replace(
        load_model("mamba-codestral-7b"), recurrence="gdn", hidden=512, layers=4, vocabulary=8192, feed_forward=1408
    )
    model = replace(model, heads=4, kv_heads=4, key_heads=2, head_dim=128, v_head_dim=None, d_conv=4)
    work = Workload(seq_len=2**16, passes=STEP, model=model.name, **model.step_sizes)
    plan = parse_plan("lasp2/contiguous/pallas_gated@ring=4,tile=128")
    rows, state = 2**14, 4 * 128 * 128 * 4
    values, gates = rows * 4 * 128 * 2, rows * 4 * 2 * 4
    parts = step_memory(work, plan, "tpu")
    exchanged = parts["attention"] - (4 + 1) * values - 2 * gates - rows // 128 * state
    assert 0 <= exchanged <= 4 * 2 * state  # at most the maps of four shards
    assert 0 <= parts["activations"] - (model.layers + 4) * values <= 5 * values  # and gates, and hidden states
    kept = [step_memory(work, replace(plan, remat="attention", states=each), "tpu")["activations"] for each in STATES]
    assert kept[0] - kept[1] == model.layers * state


def test_one_matrix_for_embedding_and_logits_is_counted_once() -> None:
    plan, work = parse_plan("ring/striped/splash@ring=8,tile=512"), step_of("llama3.2-1b", 2**17)
    two = replace(work, architecture=replace(work.architecture, tied=False))
    head, (once, twice) = work.sizes.head_parameters, [step_memory(each, plan, "tpu") for each in (work, two)]
    assert two.sizes.parameters - work.sizes.parameters == head
    assert twice["parameters"] - once["parameters"] == head * 4 // 8
    assert twice["optimizer"] - once["optimizer"] == head * 8 // 8
    assert optimizer_bytes(two, plan) - optimizer_bytes(work, plan) == head * 4 * 8 // 8
    assert two.flops == work.flops
