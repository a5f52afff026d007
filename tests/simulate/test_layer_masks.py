"""Layers with masks of their own: attention alone is the mean of the layers, and a step the sum of them."""

from dataclasses import replace

import pytest

import stripectl
from stripectl.analysis.link_load import traffic
from stripectl.core.layer_kinds import MaskRun
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import Workload
from stripectl.costs.defaults import with_defaults
from stripectl.hardware.target import read_target
from stripectl.models.model_files import load_model
from stripectl.results.case import Case
from stripectl.results.labels import workload_label
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from stripectl.simulate.layers_apart import from_layers_apart, with_layers_apart

MODEL = "gemma3-27b"
PLAN = "ring/zigzag/xla@ring=16,tile=1024,sliding=all_gather/xla/512"


def bench(plan: str, mask: str | None, passes: str) -> Run:
    return stripectl.bench(
        plan=plan,
        model=MODEL,
        mask=mask,
        pass_=passes,
        seqlen="64k",
        target="v5p:2x2x4",
        method="simulated",
        progress=False,
    )


def only(plan: str, mask: str | None, passes: str) -> Measurement:
    return next(m for m in bench(plan, mask, passes).results if m.devices > 1)


CAUSAL, WINDOWS = "ring/zigzag/xla@ring=16,tile=1024", "all_gather/zigzag/xla@ring=16,tile=512"


@pytest.mark.parametrize("passes", ["forward", "forward-backward"])
def test_attention_alone_is_the_mean_of_the_layers(passes: str) -> None:
    mean, causal, windows = (
        only(PLAN, None, passes),
        only(CAUSAL, "causal", passes),
        only(WINDOWS, "sliding:1k", passes),
    )
    assert mean.workload.layer_masks == (MaskRun("causal", 10), MaskRun("sliding:1k", 52))

    def of_layers(name: str) -> float:
        return (10 * getattr(causal, name) + 52 * getattr(windows, name)) / 62

    assert mean.median_s == pytest.approx(of_layers("median_s"))
    assert mean.mfu == pytest.approx(mean.workload.flops / 16 / of_layers("median_s") / (mean.peak_flops_per_s or 0))
    assert mean.peak_bytes == max(causal.peak_bytes or 0, windows.peak_bytes or 0)
    for opcode in {**(causal.bytes or {}), **(windows.bytes or {})}:
        sent = [(m.bytes or {}).get(opcode, 0) for m in (causal, windows)]
        assert (mean.bytes or {})[opcode] == pytest.approx((10 * sent[0] + 52 * sent[1]) / 62, abs=1)
    assert sum(traffic(mean).values()) == pytest.approx(sum((mean.bytes or {}).values()), abs=2)
    assert mean.scaling and {each.seq_len: each.median_s for each in mean.scaling}[2**16] == mean.median_s


def test_a_step_takes_the_time_of_its_layers() -> None:
    """In one step each layer has the mask of its place, and everything else is the same."""
    mixed, causal, windows = (
        only(PLAN, None, "step"),
        only(CAUSAL, "causal", "step"),
        only(WINDOWS, "sliding:1k", "step"),
    )
    mean_s = (10 * (causal.median_s or 0) + 52 * (windows.median_s or 0)) / 62
    assert mixed.median_s == pytest.approx(mean_s, rel=1e-6)
    assert mixed.workload.flops == pytest.approx((10 * causal.workload.flops + 52 * windows.workload.flops) / 62)


def test_layers_with_windows_have_a_scheme_that_shards_hidden_states_alike() -> None:
    """halo divides rows alone, and megatron_sp gives every device of `tensor` its heads of all rows."""
    step = Workload(seq_len=2**16, passes="step", model=MODEL, **load_model(MODEL).step_sizes)
    hardware = read_target("v5p:2x2x4").machine
    assert hardware
    for plan, scheme in (("ring/zigzag@ring=16", "halo"), ("megatron_sp@tensor=16", "megatron_sp")):
        named = with_defaults(parse_plan(plan), step, hardware, 16)
        assert named.sliding and named.sliding.scheme == scheme
        assert why_unsupported(named, step, hardware.kind, 16) is None
    reason = why_unsupported(parse_plan("megatron_sp/contiguous@tensor=16,sliding=halo"), step, hardware.kind, 16)
    assert reason and "shard hidden states differently" in str(reason) and "Try sliding=megatron_sp." in str(reason)


def test_a_window_that_differs_by_layer_is_in_the_run_and_its_texts() -> None:
    run = bench(PLAN, None, "forward")
    first = run.results[0]
    assert Measurement.from_json(first.to_json()).workload == first.workload
    assert "sliding:1k in 52 of 62 layers" in workload_label(first.workload)
    m = next(m for m in run.results if m.devices > 1)
    assert m.cost_source and m.cost_source.sliding and m.cost_source.softmax is None


def test_the_answer_names_the_schemes_of_both_kinds_where_they_differ() -> None:
    for sliding, words in (("halo", " and zigzag halo attention in layers with shorter windows"), ("ring", "")):
        run = bench(f"ring/zigzag/xla@ring=16,tile=1024,sliding={sliding}/xla/512", None, "forward")
        assert run.recommendation and f"with tiles of 1024 x 1024{words}" in run.recommendation.answer


def test_measured_layers_run_apart_and_their_samples_are_joined() -> None:
    masks = (MaskRun("causal", 1), MaskRun("sliding:64", 3))
    work = Workload(seq_len=4096, heads=4, kv_heads=4, head_dim=16, layer_masks=masks)
    plan = Plan("ring", "zigzag", "xla", (("ring", 2),))
    case = Case(workload=work, plan=plan, target=read_target("cpu:2"), method="measured")
    full, windows = with_layers_apart(case)
    assert (full.workload.mask, windows.workload.mask) == ("causal", "sliding:64")
    assert not full.workload.layer_masks and with_layers_apart(full) == [full]
    samples = (8.0, 10.0, 6.0), (4.0, 2.0, 2.0)
    made = [
        replace(Measurement.of(each, "measured"), samples_s=own, bytes={"all-gather": 40 * at}, peak_bytes=7 + at)
        for at, (each, own) in enumerate(zip((full, windows), samples, strict=True))
    ]
    found = from_layers_apart(case, made)
    assert (found.samples_s, found.median_s) == ((5.0, 4.0, 3.0), 4.0)
    assert (found.workload, found.bytes, found.peak_bytes) == (work, {"all-gather": 30}, 8)
    failed = from_layers_apart(case, [made[0], replace(made[1], status="failed")])
    assert (failed.status, failed.workload, failed.plan) == ("failed", work, plan)


def test_a_model_of_few_layers_keeps_its_pattern() -> None:
    model = load_model(MODEL)
    step = Workload(seq_len=2**16, passes="step", model=MODEL, **model.of_layers(8).step_sizes)
    assert [kind.mask for kind in step.layer_kinds] == ["sliding:1k"] * 5 + ["causal"] + ["sliding:1k"] * 2
