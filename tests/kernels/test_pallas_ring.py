"""Hops inside Pallas kernels, by the rules of TPU interpret mode: devices, memories, remote copies and semaphores."""

import itertools

import pytest
from jax.experimental.pallas import tpu as pltpu

import stripectl.compat as compat
from stripectl.core.kernel import kernels
from stripectl.core.layout import layouts
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import ATTENTION_PASSES, Workload
from stripectl.kernels.pallas_tpu import grid, lines
from tests.support.exact import check, covering, each_choice, in_parts

FACTORS = {
    "layout": layouts.names(),
    "mask": ["causal", "full", "sliding:100"],
    "passes": list(ATTENTION_PASSES),
    "dtype": ["float32", "bfloat16"],
    "kv_heads": [2, 1],
    "mesh": ["ring=2", "ring=4", "ring=2,tensor=2"],
    "unroll": [1, 2],
    "odd_rows": [0, 22],  # of a shard, beyond a multiple of the tile
}
BOTH = "forward-backward"


def case_of(layout, mask, passes, dtype, kv_heads, mesh, unroll, odd_rows) -> tuple[Workload, Plan]:
    sizes = {"batch": 1, "heads": 2, "kv_heads": kv_heads, "head_dim": 64}
    plan = parse_plan(f"ring/{layout}/pallas_ring@{mesh},tile=128,unroll={unroll}")
    rows = (256 if layout == "zigzag" else 128) + odd_rows  # of a device
    return Workload(seq_len=rows * plan.shards, dtype=dtype, mask=mask, passes=passes, **sizes), plan


def legal(case: tuple) -> bool:
    workload, plan = case_of(*case)
    return why_unsupported(plan, workload, "tpu") is None


def work_of(case: tuple) -> int:
    """How much is interpreted: shards that a device meets, in each pass."""
    workload, plan = case_of(*case)
    return plan.devices * plan.shards * (1 + 2 * (workload.passes == BOTH))


def choices_of_case(case: tuple) -> set:
    """Every choice of a case; none of a ring of four, whose programs are interpreted for ten seconds."""
    return set() if "ring=4" in case else each_choice(case)


LEGAL = list(filter(legal, itertools.product(*FACTORS.values())))
COVER = in_parts(covering(LEGAL, cost=work_of), choices_of_case, work_of)


@pytest.mark.parametrize("case", [pytest.param(case, marks=marks) for case, marks in COVER], ids=str)
def test_equals_dense_attention(case: tuple) -> None:
    check(*case_of(*case))


@pytest.mark.exactness
@pytest.mark.parametrize("layout", ["contiguous", "striped", "zigzag"])
def test_tiles_on_the_diagonal_leave_out_dead_parts(layout: str) -> None:
    """A tile of two parts, whose first 128 queries see none of the second 128 keys."""
    rows = 512 if layout == "zigzag" else 256
    workload = Workload(seq_len=2 * rows, heads=2, kv_heads=1, head_dim=64, dtype="float32", passes=BOTH)
    check(workload, parse_plan(f"ring/{layout}/pallas_ring@ring=2,tile=256x256x128"))


@pytest.mark.exactness
def test_what_travels_goes_with_stripes_of_a_pair_a_share_with_each(monkeypatch) -> None:
    monkeypatch.setattr(lines, "LISTED", 2)
    monkeypatch.setattr(kernels["pallas_tpu"].load(), "DQ_BYTES", 128 * 128 * 4)
    check(*case_of("zigzag", "causal", BOTH, "float32", 2, "ring=2", 1, 0))


@pytest.mark.exactness
def test_rows_that_are_not_padded_travel_with_the_first_stripe_of_a_pair(monkeypatch) -> None:
    monkeypatch.setattr(kernels["pallas_tpu"].load(), "DQ_BYTES", 128 * 128 * 4)
    check(*case_of("zigzag", "causal", BOTH, "float32", 2, "ring=2", 1, 22))


@pytest.mark.exactness
@pytest.mark.parametrize(
    ("layout", "mesh", "cores"),
    [("striped", "ring=6", 1), ("contiguous", "ring=2", 2)],
)
def test_no_hop_overtakes_what_it_brings(monkeypatch, layout: str, mesh: str, cores: int) -> None:
    """Each read or write beside an earlier one of another order is found; on all devices, where pairs of shards have no
    tile to compute, and where a device has two cores."""

    rules = pltpu.InterpretParams(detect_races=True, num_cores_or_threads=cores)
    monkeypatch.setattr(grid, "INTERPRET_HOPS", rules)
    check(*case_of(layout, "causal", BOTH, "float32", 2, mesh, 1, 0))
    assert not compat.pallas_interpreter().races.races_found
