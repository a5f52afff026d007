"""What is _entry to frameworks: a snippet or a reason for every scheme, layout, target and mask."""

import ast
import itertools
import re
from typing import Any

import pytest

from stripectl.core.plan import parse_plan
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import STEP, Workload
from stripectl.export.integration import Job, integrations, usage_of
from stripectl.export.integrations.maxtext import per_device
from stripectl.kernels.splash import COMPUTE
from stripectl.models.model_files import load_model
from stripectl.results.measurement import Measurement
from tests.support.exports import TABLE, flags, workload
from tests.support.factories import measurement_of

FRAMEWORKS = ("maxtext", "transformer_engine", "torchtitan", "megatron")


def of(name: str, plan: str, target: str = "v5p:2x2x4", **changes: Any) -> Any:
    return usage_of(measurement_of(plan, workload=workload(**changes), target=target))[name]


def test_the_table_has_every_case() -> None:
    cases = {(m.plan.scheme, m.target) for m in TABLE}
    assert len(TABLE) > 150
    assert {scheme for scheme, _ in cases} >= {"ring", "all_gather", "ulysses", "usp", "double_ring", "lasp"}
    for name in FRAMEWORKS:
        assert any(usage_of(m)[name].text for m in TABLE), name


@pytest.mark.parametrize("m", TABLE, ids=lambda m: f"{m.plan}-{m.target}-{m.workload.mask}-{m.workload.documents}")
def test_a_snippet_or_a_reason(m: Measurement) -> None:
    """A reason is one sentence that names the framework or the device; a nearest plan is one that is accepted."""
    for name in FRAMEWORKS:
        given, each = usage_of(m)[name], integrations[name]
        if given.text:
            assert given.version and given.notes[0].startswith("Timed (")
            continue
        reason, *offers = given.notes
        assert reason.endswith(".") and re.match(f"{each.title}|Each sequence", reason)
        for offer in offers:
            near = parse_plan(offer.rstrip(".").rsplit(" ", 1)[1])
            job = Job(m.workload, near, m.target)
            assert near.devices == m.plan.devices
            assert each.why_unsupported(job) is None and why_unsupported(near, m.workload, job.kind) is None


@pytest.mark.parametrize("m", TABLE, ids=lambda m: f"{m.plan}-{m.target}-{m.workload.mask}-{m.workload.documents}")
def test_maxtext_fills_the_devices_and_names_its_data(m: Measurement) -> None:
    if not (text := usage_of(m)["maxtext"].text):
        return
    found, target, plan = flags(text), m.target.load(), m.plan
    sizes = {"ici": 1, "dcn": 1}
    for name, value in found.items():
        if name.endswith("_parallelism"):
            sizes[name[:3]] *= int(value)
    assert sizes == {"ici": target.slice_devices, "dcn": target.slices}
    assert found["hardware"] == m.target.kind
    striped = found.get("context_parallel_reorder_strategy") == "striped"
    packed = striped or bool(m.workload.documents)
    assert found["packing"] == str(packed).lower()
    assert (found["dataset_type"] == "synthetic") == (not packed)
    assert ("max_segments_per_seq" in found) == packed
    assert int(plan.devices * float(found["per_device_batch_size"])) == m.workload.batch
    if found.get("use_tokamax_splash") == "true":
        assert not found.keys() & {"sa_block_q_dq", "sa_block_kv_dq", "sa_use_fused_bwd_kernel"}


def test_parts_of_a_models_layers_that_a_text_does_not_set_are_named() -> None:
    for model, parts in (("qwen3-8b", "query_key_norm, norm_epsilon, rotary_base"), ("7b", "")):
        work = Workload(seq_len=2**17, passes=STEP, model=model, **load_model(model).step_sizes)
        usage = usage_of(measurement_of("ring/zigzag/splash@ring=16,tile=512", workload=work, target="v5p:2x2x4"))
        assert usage["maxtext"].text
        named = [note for note in usage["maxtext"].notes if "not in the text" in note]
        assert named == (
            [f"These parts of the model are not in the text: {parts}. Set them in MaxText."] if parts else []
        )
        assert not any("not in the text" in note for note in usage["yaml"].notes + usage["python"].notes)


def test_values_that_a_plan_keeps_are_named_where_a_text_does_not_set_them() -> None:
    work = Workload(seq_len=2**17, passes=STEP, model="7b", **load_model("7b").step_sizes)
    plan = "ring/zigzag/splash@ring=16,tile=512,remat=query,offload=inputs"
    usage = usage_of(measurement_of(plan, workload=work, target="v5p:2x2x4"))
    note = "These options of the plan are not in the text: offload=inputs, remat=query. Set them in MaxText."
    assert usage["maxtext"].text and note in usage["maxtext"].notes
    assert all("offload=inputs" in (usage[name].text or "") for name in ("yaml", "python"))


def test_every_batch_survives_maxtexts_division() -> None:
    assert int(49 * (1 / 49)) == 0
    for devices, batch in itertools.product(range(1, 600), (1, 2, 7, 64)):
        assert int(devices * per_device(batch, devices)) == batch


def test_flags_of_maxtext_on_tpus() -> None:
    usage = of("maxtext", "ring/zigzag/splash@ring=8,tensor=2,tile=512x2048,backward=256x1024,unroll=7")
    assert f"sa_block_kv_compute is {COMPUTE}, as timed under a mask; whole tiles were timed with 1024." in usage.notes
    equal = of("maxtext", "ring/zigzag/splash@ring=8,tensor=2,tile=512")
    assert not any("as timed under a mask" in note for note in equal.notes)
    ring = flags(usage.text)
    assert (ring["ring_scan_unroll"], ring["sa_block_kv"], ring["sa_block_kv_compute"]) == (
        "0",
        "2048",
        "512",
    )
    assert (ring["eval_sa_block_q"], ring["sa_block_q_dkv"], ring["sa_block_kv_dkv"]) == ("512", "256", "1024")
    gathered = flags(of("maxtext", "all_gather/contiguous/splash@ring=16,tile=512").text)
    assert (gathered["sa_use_fused_bwd_kernel"], gathered["sa_block_q_dq"]) == ("false", "512")
    fused = flags(of("maxtext", "all_gather/contiguous/pallas_tpu@ring=16,tile=512").text)
    assert fused["sa_use_fused_bwd_kernel"] == "true" and "sa_block_q_dq" not in fused
    head = flags(of("maxtext", "ulysses/contiguous/splash@ulysses=16,tile=512").text)
    assert (head["context_parallel_strategy"], head["ici_context_parallelism"]) == ("ulysses", "16")
    assert head["context_parallel_load_balance"] == "false"
    both = flags(of("maxtext", "usp/zigzag/splash@ring=4,ulysses=4,tile=512").text)
    assert (both["ici_context_parallelism"], both["ici_context_usp_ulysses_parallelism"]) == ("4", "4")
    slices = flags(of("maxtext", "ring/zigzag/splash@ring=16,tile=512", "2*v5p:2x2x2").text)
    assert (slices["ici_context_parallelism"], slices["dcn_context_parallelism"]) == ("8", "2")


@pytest.mark.parametrize(
    ("name", "plan", "target", "changes", "said"),
    [
        ("maxtext", "ring/zigzag/splash@ring=16,tile=512", "v5p:2x2x4", {}, "fuses its backward pass (5 matmuls"),
        ("maxtext", "ring/zigzag/splash@ring=16,tile=512", "v5p:2x2x4", {}, "16 hops; the timed plan has one hop less"),
        ("maxtext", "ring/zigzag/splash@ring=16,tile=512", "v5p:2x2x4", {}, "dq_reduction_steps=3"),
        ("maxtext", "ring/zigzag/xla@ring=8", "h100:8", {}, "2.12 and 2.13 break"),
        (
            "maxtext",
            "ring/zigzag/splash@ring=16",
            "v5p:2x2x4",
            {"kind": "sliding"},
            "gemma2, gemma3 and gpt_oss",
        ),
        ("maxtext", "lasp/contiguous/chunked@ring=16", "v5p:2x2x4", {"kind": "linear"}, "gated delta nets"),
        ("maxtext", "ring/zigzag/splash@ring=16", "v5p:2x2x4", {"seq_len": 65568}, "Try --seqlen 65792"),
        ("maxtext", "ring/contiguous@ring=4", "v5p:2x2x4", {}, "uses all 16 devices"),
        ("maxtext", "ulysses@ulysses=16", "2*v5p:2x2x2", {}, "stays within a slice"),
        ("maxtext", "ring/zigzag/xla@ring=8", "h100:8", {"kind": "packed"}, "runs is ring/striped/xla@ring=8"),
        ("transformer_engine", "ulysses/contiguous/xla@ulysses=8", "h100:8", {}, 'cp_comm_type="a2a")'),
        ("transformer_engine", "all_gather/striped/xla@ring=8", "h100:8", {}, "128 tokens wide"),
        ("transformer_engine", "ring/zigzag/xla@ring=8", "h100:8", {}, "NVTE_FUSED_RING_ATTENTION_USE_SCAN"),
        (
            "transformer_engine",
            "ring/zigzag/xla@ring=8",
            "h100:8",
            {"seq_len": 65544},
            "a length that is a multiple of 16",
        ),
        ("transformer_engine", "ring/zigzag/xla@ring=3", "h100:3", {"seq_len": 3 * 2**14}, "ring=3 is odd"),
        ("transformer_engine", "ring/zigzag/xla@ring=8", "h100:8", {"kind": "sliding"}, "ring/striped/xla"),
        (
            "transformer_engine",
            "ring/zigzag/xla@data=2,fsdp=2,ring=2",
            "h100:8",
            {"batch": 4},
            "folded into fsdp",
        ),
        ("torchtitan", "ring/striped/xla@ring=8", "h100:8", {}, "runs is all_gather/zigzag/xla@ring=8"),
        ("torchtitan", "all_gather/zigzag/xla@ring=8", "h100:8", {"kind": "sliding"}, "gpt_oss"),
        ("megatron", "ring/contiguous/xla@ring=8", "h100:8", {}, "runs is ring/zigzag/xla@ring=8"),
        ("megatron", "ring/zigzag/xla@ring=8", "h100:8", {"kind": "sliding"}, "runs is all_gather/zigzag/xla@ring=8"),
    ],
)
def test_limits_are_said(name: str, plan: str, target: str, changes: dict, said: str) -> None:
    assert said in " ".join(of(name, plan, target, **changes).notes)


def test_arguments_of_transformer_engine() -> None:
    """A whole program, with a descriptor in the order of the tokens."""
    whole = of("transformer_engine", "ring/zigzag/xla@ring=8", "h100:8").text
    striped = of("transformer_engine", "ring/striped/xla@ring=8", "h100:8", kind="packed").text
    for text in (whole, striped):
        call = next(
            x for x in ast.walk(ast.parse(text)) if isinstance(x, ast.Call) and "fused_attn" in ast.dump(x.func)
        )
        assert not any(isinstance(each, ast.Constant) and each.value is ... for each in call.args)
    assert "DualChunkSwap, 8, 1)" in whole and "stripe_size=None" in whole
    assert "Striped, 8, 1, 1)" in striped and "from_segment_ids_and_pos(ids, positions)" in striped
    assert "max_segments_per_seq=25" in striped
    windowed = of("transformer_engine", "all_gather/striped/xla@ring=8", "h100:8", kind="sliding").text
    assert "window_size=(4095, 0)" in windowed and "stripe_size=128" in windowed


def test_arguments_of_megatron() -> None:
    both = of("megatron", "usp/zigzag/xla@ring=4,ulysses=2", "h100:8").text
    assert "--cp-comm-type a2a+p2p" in both and "--hierarchical-context-parallel-sizes 2 4" in both
    sliding = of("megatron", "ulysses/contiguous/xla@ulysses=8", "h100:8", kind="sliding").text
    assert "--window-size 4095,0" in sliding and "--cp-comm-type a2a" in sliding
    assert "--sequence-parallel" in of("megatron", "megatron_sp/contiguous/xla@tensor=8", "h100:8").text


def test_a_target_that_nobody_knows() -> None:
    given = usage_of(measurement_of("ring/zigzag@ring=8", workload=workload(), target="../../etc/passwd:8"))
    assert all(given[name].text is None for name in FRAMEWORKS)
    assert given["yaml"].text and given["python"].text


def test_a_kernel_that_is_table_only_is_named_where_a_framework_has_it() -> None:
    """Megatron has FlashAttention-3; others offer the machine's kernel, and stripectl's own program does not run it."""
    plan, target = "ring/zigzag/fa3@ring=8", "h100:8"
    megatron, python, maxtext, te = (
        of(n, plan, target) for n in ("megatron", "python", "maxtext", "transformer_engine")
    )
    assert flags(megatron.text, "--")["attention-backend"] == "flash"
    assert any("FlashAttention-3 on Hopper where it is installed" in note for note in megatron.notes)
    assert python.text is None and "fa3 is table only" in python.notes[0]
    for each in (maxtext, te):
        assert each.text is None and each.notes[0] == f"{each.title} has no option for fa3 that stripectl knows of."
        assert "ring/zigzag/cudnn@ring=8" in each.notes[1]
    other = of("megatron", "ring/zigzag/trtllm@ring=8", target)
    assert other.text is None and "cudnn" in other.notes[1]
    assert "fa3" in of("yaml", plan, target).text


REFUSED = {
    "maxtext": {
        ("sinks", "ring/zigzag@ring=16", "v5p:2x2x4"): "MaxText's ring has no attention sinks.",
        ("sinks", "all_gather/zigzag@ring=16", "v5p:2x2x4"): "only in the layers of decoder_block=gpt_oss",
        ("sinks", "ring/zigzag@ring=8", "h100:8"): "MaxText's flash attention on GPUs has no attention sinks.",
        ("soft_cap", "ring/zigzag@ring=8", "h100:8"): "has no soft cap of scores",
    },
    "transformer_engine": {
        ("sinks", "ring/zigzag@ring=8", "h100:8"): "its ring and all_gather take VANILLA_SOFTMAX",
        ("soft_cap", "ring/zigzag@ring=8", "h100:8"): "fused_attn has no soft cap",
    },
    "torchtitan": {
        ("sinks", "all_gather/zigzag@ring=8", "h100:8"): "only its gpt_oss models have sinks",
        ("soft_cap", "all_gather/zigzag@ring=8", "h100:8"): "no option for a soft cap",
    },
    "megatron": {
        ("sinks", "ring/zigzag@ring=8", "h100:8"): "no sinks (--softmax-type learnable) with --cp-comm-type p2p",
        ("soft_cap", "ring/zigzag@ring=8", "h100:8"): "no option for a soft cap",
    },
}


@pytest.mark.parametrize(
    ("name", "case", "why"), [(name, *each) for name, cases in REFUSED.items() for each in cases.items()]
)
def test_sinks_and_a_soft_cap_are_refused_where_a_framework_has_none(name: str, case: tuple, why: str) -> None:
    field, plan, target = case
    given = of(name, plan, target, **{field: True if field == "sinks" else 50.0})
    assert given.text is None and why in given.notes[0]


def test_sinks_and_a_soft_cap_are_carried_where_a_framework_has_them() -> None:
    assert "--softmax-type learnable" in of("megatron", "ulysses/contiguous/cudnn@ulysses=8", "h100:8", sinks=True).text
    assert "attn_logits_soft_cap=50.0" in of("maxtext", "ring/zigzag/splash@ring=16,tile=1024", soft_cap=50.0).text
    program = of("python", "ring/zigzag/splash@ring=16,tile=1024", sinks=True, soft_cap=50.0).text
    assert "soft_cap=50.0, sinks=sinks" in program and "def attend(q, k, v, sinks)" in program
    ast.parse(program)
    options = of("yaml", "ring/zigzag/splash@ring=16,tile=1024", model="some/config.json", sinks=True).text
    assert "model: some/config.json" in options and "heads" not in options
