"""Every scheme x layout x mask x packing x mesh x heads x dtype against float64 dense attention, values and gradients,
on 8 virtual devices.

`make test` runs a set in which scheme, layout, dtype and pass meet each other and every other choice stands once; the
part `exactness` completes it to every pair of choices, meshes, heads, tiles and loops among them, and `full` to the
product of scheme, layout, mask, packing and dtype, in which the others take turns.
"""

import math
from dataclasses import replace

import pytest

from stripectl.core.kernel import kernels
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.scheme import schemes
from stripectl.core.workload import Workload
from tests.support.exact import DEVICES, Case, catalogue, check, legal, on_devices
from tests.support.plans import mask_of, reference_plan

QUICK_CASES, COVER, PRODUCT = catalogue(schemes.names())
CASES = [
    *QUICK_CASES,
    *(pytest.param(case, marks=pytest.mark.exactness) for case in COVER),
    *(pytest.param(case, marks=pytest.mark.full) for case in PRODUCT),
]
WORK = Workload(seq_len=192, batch=2, heads=8, kv_heads=4, head_dim=16, dtype="float32", passes="forward-backward")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_dense_attention(case: Case) -> None:
    check(case.workload, case.plan)


QUICK = ("ring", "ulysses")


def work_of(plan: Plan) -> Workload:
    """A workload with a mask that the plan's scheme supports."""
    return replace(WORK, mask=mask_of(plan.scheme))


TWO_TILES = [replace(on_devices(name, 2), tile=Tile(8, 6), backward=Tile(5, 12)) for name in schemes.names()]


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(plan, marks=() if plan.scheme in QUICK else pytest.mark.exactness)
        for plan in TWO_TILES
        if legal(plan, work_of(plan)) and not kernels[plan.kernel].keeps_all_scores
    ],
    ids=str,
)
def test_the_backward_pass_may_have_a_tile_of_its_own(plan: Plan) -> None:
    check(work_of(plan), plan)


def beside(**others: int) -> list[Plan]:
    """Plans of every scheme with other axes beside its own, on 8 devices in all."""
    own = DEVICES // math.prod(others.values())
    plans = (on_devices(name, own, **others) for name in schemes.names())
    return [plan for plan in plans if legal(plan, work_of(plan))]


def full(plans: list[Plan]) -> list:
    return [pytest.param(plan, marks=pytest.mark.full) for plan in plans]


BESIDE = [
    pytest.param(plan, marks=() if plan.scheme in QUICK else pytest.mark.exactness) for plan in beside(data=2, tensor=2)
]


@pytest.mark.parametrize("plan", [*BESIDE, *full([*beside(fsdp=2), *beside(tensor=2), *beside(tensor=4)])], ids=str)
def test_other_axes_divide_batch_and_heads(plan: Plan) -> None:
    check(work_of(plan), plan)


def gathered(layout: str, *parts: int) -> list[Plan]:
    """Plans of every scheme that takes K/V in so many parts."""
    plans = (reference_plan(f"{name}/{layout}@ring=2,tile=10x7,parts={n}") for name in schemes.names() for n in parts)
    return [plan for plan in plans if legal(plan, WORK)]


PARTS = [*gathered("striped", 2), *gathered("contiguous", 3), *gathered("zigzag", 4)]
OTHER_PARTS = [*gathered("striped", 3, 4), *gathered("contiguous", 2, 4), *gathered("zigzag", 2)]


@pytest.mark.exactness
@pytest.mark.parametrize("plan", [*PARTS, *full(OTHER_PARTS)], ids=str)
def test_keys_and_values_may_be_gathered_in_parts(plan: Plan) -> None:
    check(WORK, plan)


def test_parts_cut_the_pieces_of_zigzag_evenly() -> None:
    assert PARTS and [plan.parts for plan in gathered("zigzag", 2, 3, 4)] == [2, 4]


@pytest.mark.parametrize("layout", ["contiguous", "striped"], ids=lambda layout: f"ring-{layout}")
def test_a_causal_ring_equals_dense_attention_in_both_passes(layout: str) -> None:
    """Three shards, so that the shard before and the shard behind differ in every round."""
    workload = Workload(seq_len=48, heads=2, kv_heads=1, head_dim=8, dtype="float32", passes="forward-backward")
    check(workload, parse_plan(f"ring/{layout}/xla@ring=3,tile=8"))
