"""Layers with masks of their own: patterns, counts, their JSON, and the plans of each kind."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripectl.core.layer_groups import by_layer_group, join_plans, layer_groups
from stripectl.core.layer_kinds import (
    LayerKind,
    MaskRun,
    mask_counts,
    mask_pattern,
    masks_of_layers,
    masks_text,
    read_mask_runs,
)
from stripectl.core.layout import Tile
from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload
from stripectl.costs.defaults import with_defaults
from stripectl.errors import BadInput
from stripectl.hardware.profile import Hardware
from stripectl.models.model_files import load_model
from tests.support.plans import why_refused

MASKS = st.lists(st.sampled_from(["causal", "sliding:9", "sliding:4k"]), min_size=1, max_size=24)
GEMMA = load_model("gemma3-27b")
STEP = Workload(seq_len=2**17, passes="step", model=GEMMA.name, **GEMMA.step_sizes)
ALONE = Workload(
    seq_len=2**17,
    heads=32,
    kv_heads=16,
    head_dim=128,
    layer_masks=(MaskRun("sliding:1k", 52), MaskRun("causal", 10)),
)


@given(MASKS)
def test_a_pattern_gives_the_masks_again_and_is_the_shortest(masks: list[str]) -> None:
    found = mask_pattern(masks)
    assert masks_of_layers(found, len(masks)) == masks
    period = sum(run.layers for run in found)
    assert not any(all(mask == masks[at % shorter] for at, mask in enumerate(masks)) for shorter in range(1, period))
    assert all(one.mask != other.mask for one, other in itertools.pairwise(found))
    assert read_mask_runs([run.to_json() for run in found]) == found


def test_a_pattern_may_end_within_a_repetition() -> None:
    assert GEMMA.layer_masks == (MaskRun("sliding:1k", 5), MaskRun("causal", 1))
    assert mask_counts(masks_of_layers(GEMMA.layer_masks, 62)) == (MaskRun("causal", 10), MaskRun("sliding:1k", 52))
    assert STEP.kinds == {LayerKind("softmax", "sliding:1k"): 52, LayerKind("softmax", "causal"): 10}
    assert STEP.masks_text == "sliding:1k in 52 of 62 layers, causal in the others"
    assert masks_text(["causal", "causal"]) == "causal"


def test_the_json_of_a_workload_has_kind_window_and_count() -> None:
    assert STEP.to_json()["layer_masks"] == [
        {"kind": "sliding", "window": 1024, "count": 5},
        {"kind": "causal", "count": 1},
    ]
    for work in (STEP, ALONE):
        assert Workload.from_json(work.to_json()) == work
    assert "layer_masks" not in replace(STEP, layer_masks=()).to_json()


def test_one_mask_for_all_layers_is_the_mask() -> None:
    one = replace(ALONE, layer_masks=(MaskRun("sliding:4k", 3), MaskRun("sliding:4k", 1)))
    assert (one.mask, one.layer_masks) == ("sliding:4k", ())
    few = replace(STEP, layers=5)
    assert (few.mask, few.layer_masks) == ("sliding:1k", ())


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (5, "layer_masks must be a list"),
        ([5], "has the keys kind and count"),
        ([{"kind": "causal"}], "has the keys kind and count"),
        ([{"kind": "causal", "count": 0}], "an integer from 1"),
        ([{"kind": "causal", "count": True}], "an integer from 1"),
        ([{"kind": "causal", "count": 1, "window": 8}], "only sliding has a window"),
        ([{"kind": "sliding", "count": 1}], "only sliding has a window"),
        ([{"kind": "round", "count": 1}], "Known kinds: causal, full, sliding"),
        ([{"kind": ["causal"], "count": 1}], "Known kinds: causal, full, sliding"),
    ],
)
def test_runs_that_are_none_are_refused(content: Any, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        read_mask_runs(content)


def test_masks_that_contradict_are_refused() -> None:
    with pytest.raises(BadInput, match="for all layers, or layer_masks"):
        replace(ALONE, mask="full")
    with pytest.raises(BadInput, match="linear attention have one mask"):
        replace(ALONE, attention="linear", kv_heads=32)


def test_flops_are_those_of_the_real_layers() -> None:
    windows, causal = (replace(ALONE, layer_masks=(), mask=mask) for mask in ("sliding:1k", "causal"))
    assert ALONE.flops == pytest.approx((52 * windows.flops + 10 * causal.flops) / 62, rel=1e-12)
    steps = [replace(STEP, layer_masks=(), mask=mask).flops for mask in ("sliding:1k", "causal")]
    assert STEP.flops == pytest.approx((52 * steps[0] + 10 * steps[1]) / 62, rel=1e-12)


def test_groups_have_the_plans_of_their_kinds() -> None:
    plan = parse_plan("ring/zigzag/splash@ring=16,tile=2048,sliding=all_gather/pallas_tpu/1024")
    full, windows = layer_groups(STEP, plan)
    assert (full.layers, full.workload.mask, str(full.plan)) == (
        10,
        "causal",
        "ring/zigzag/splash@ring=16,tile=2048x2048",
    )
    assert (windows.layers, windows.workload.mask) == (52, "sliding:1k")
    assert str(windows.plan) == "all_gather/zigzag/pallas_tpu@ring=16,tile=1024x1024"
    assert by_layer_group(STEP, plan, lambda work, own: own) == plan
    alike = join_plans(STEP, [group.plan for group in layer_groups(STEP, replace(plan, sliding=None))])
    assert str(alike) == "ring/zigzag/splash@ring=16,tile=2048x2048,sliding=ring/splash/2048x2048"


def test_softmax_layers_of_a_hybrid_model_may_have_windows() -> None:
    sizes: dict[str, Any] = {"hidden": 64, "feed_forward": 128, "layers": 8, "vocabulary": 256}
    shape: dict[str, Any] = {"seq_len": 2**12, "heads": 4, "kv_heads": 4, "head_dim": 16}
    masks = (MaskRun("causal", 3), MaskRun("sliding:64", 1), MaskRun("causal", 4))
    hybrid = Workload(**shape, **sizes, passes="step", attention="LLLS", layer_masks=masks)
    plan = parse_plan("lasp2/contiguous/chunked@ring=4,softmax=ring/xla,sliding=all_gather/xla")
    found = layer_groups(hybrid, plan)
    assert [(group.layers, group.workload.mask, group.plan.scheme) for group in found] == [
        (6, "causal", "lasp2"),
        (1, "causal", "ring"),
        (1, "sliding:64", "all_gather"),
    ]
    assert by_layer_group(hybrid, plan, lambda work, own: own) == plan


def test_a_kernel_without_windows_leaves_them_to_another() -> None:
    """Splash has no windows on TPUs, so the default for these layers is a kernel that has, with scheme halo."""
    v5p = Hardware.load("v5p")
    for text in ("ring/zigzag@ring=16", "ring/zigzag/splash@ring=16", "ring/zigzag/splash@ring=16,tile=1024"):
        plan = with_defaults(parse_plan(text), STEP, v5p, 16)
        assert plan.kernel == "splash" and plan.sliding
        assert (plan.sliding.scheme, plan.sliding.kernel) == ("halo", "pallas_tpu")
        assert plan.sliding.tile and parse_plan(str(plan)) == plan
    for text, windows in (
        ("ring/zigzag/xla@ring=16,tile=512", "halo/xla/512x512"),
        ("ring/striped/xla@ring=16,tile=512", "ring/xla/512x512"),
        ("ulysses/contiguous/xla@ulysses=16,tile=512", "ulysses/xla/512x512"),
        ("ring/zigzag/xla@ring=16,tile=512,sliding=ring", "ring/pallas_tpu"),
    ):
        assert str(with_defaults(parse_plan(text), STEP, v5p, 16).sliding).startswith(windows)


def test_the_plan_of_windows_is_refused_where_it_has_no_effect_or_cannot_run() -> None:
    causal = replace(STEP, layer_masks=())
    plan = parse_plan("ring/zigzag/xla@ring=16,sliding=ring/xla/512")
    assert "applies only to models where some softmax layers have a shorter window" in str(
        why_refused(plan, causal, "tpu", 16)
    )
    assert why_refused(plan, STEP, "tpu", 16) is None
    striped = replace(plan, sliding=plan.sliding and replace(plan.sliding, layout="striped", tile=Tile(512, 512)))
    assert "not built yet" in str(why_refused(striped, STEP, "tpu", 16))
    splash = replace(plan, sliding=plan.sliding and replace(plan.sliding, kernel="splash"))
    assert "windows" in str(why_refused(splash, STEP, "tpu", 16))
