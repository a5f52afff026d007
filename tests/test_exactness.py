"""Every scheme x layout x mask x pass x dtype x heads x loop against float64 dense attention, on 8 virtual devices.

`make test` runs a set that covers every pair of choices; `make test-all` the whole product.
"""

import itertools
import random

import jax
import numpy as np
import pytest

from stripectl.execute import Program
from stripectl.layout import MASKS, layouts
from stripectl.plan import parse_plan
from stripectl.reference import dense, max_relative_error
from stripectl.scheme import schemes
from stripectl.verify import TOLERANCES
from stripectl.workload import ATTENTION_PASSES, DTYPES, Workload

ROWS, HEAD_DIM = 48, 16
FACTORS = {
    "scheme": schemes.names(),
    "layout": layouts.names(),
    "mask": list(MASKS),
    "passes": list(ATTENTION_PASSES),
    "dtype": list(DTYPES),
    "kv_heads": [4, 2],
    "unroll": [1, 9],
    "shards": [1, 2, 3, 4, 8],
    "tile": ["8x6", "10x7", "whole"],  # divides the block, does not, is the block
}
Case = tuple[object, ...]


def different(case: Case) -> bool:
    """Whether the case is a program of its own: a loop of at most one round is the same rolled and unrolled."""
    named = dict(zip(FACTORS, case, strict=True))
    return named["unroll"] == 1 or int(named["shards"]) > 2  # type: ignore[call-overload]


EVERY = [case for case in itertools.product(*FACTORS.values()) if different(case)]


def covering(cases: list[Case], seed: int = 0) -> list[Case]:
    """Few cases that hold every pair of choices that any case holds: greedy, from a fixed shuffle."""

    def pairs(case: Case) -> set:
        return set(itertools.combinations(enumerate(case), 2))

    order = random.Random(seed).sample(cases, len(cases))
    missing, chosen = set().union(*map(pairs, cases)), []
    while missing:
        best = max(order[:400], key=lambda case: len(pairs(case) & missing))
        if not pairs(best) & missing:
            best = next(case for case in order if pairs(case) & missing)
        missing -= pairs(best)
        chosen.append(best)
        order.remove(best)
    return chosen


COVER = covering(EVERY)
# The whole product of what a user chooses; the three kinds of tile, which no choice depends on, take turns in it.
TURNS = len(FACTORS["tile"])
PRODUCT = [case for turn, case in enumerate(EVERY) if turn % TURNS == turn // TURNS % TURNS]
CASES = [
    pytest.param(*case, marks=() if case in COVER else pytest.mark.full) for case in dict.fromkeys(COVER + PRODUCT)
]


def relative_errors(workload: Workload, plan: str, seed: int) -> list[float]:
    """The largest relative error of the output, and of the gradients under random cotangents."""
    program = Program(workload, parse_plan(plan), jax.devices())
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(x.shape, np.float32).astype(x.dtype) for x in program.shapes]
    q, k, v, dout = arrays if len(arrays) == 4 else [*arrays, np.zeros_like(arrays[0])]
    expected = dense(q, k, v, dout, workload.window, workload.starts)
    found = program.function(*program.place(arrays))
    inverse = layouts[program.plan.layout].inverse(program.plan.shards, workload.seq_len)
    values = found if isinstance(found, tuple) else (found,)
    assert len(values) == (4 if workload.passes == "forward-backward" else 1)
    return [
        max_relative_error(np.asarray(value, np.float64)[:, :, inverse], reference)
        for value, reference in zip(values, expected, strict=False)
    ]


@pytest.mark.parametrize(tuple(FACTORS), CASES)
def test_equals_dense_attention(scheme, layout, mask, passes, dtype, kv_heads, unroll, shards, tile) -> None:
    piece = ROWS // layouts[layout].pieces
    workload = Workload(
        seq_len=ROWS * shards,
        batch=2 if shards == 2 else 1,
        heads=4,
        kv_heads=kv_heads,
        head_dim=HEAD_DIM,
        dtype=dtype,
        mask=mask,
        passes=passes,
    )
    plan = f"{scheme}/{layout}/xla@ring={shards},tile={piece if tile == 'whole' else tile},unroll={unroll}"
    for error in relative_errors(workload, plan, seed=shards):
        assert error <= TOLERANCES[dtype]


@pytest.mark.parametrize("scheme", schemes.names())
def test_the_backward_pass_may_have_a_tile_of_its_own(scheme: str) -> None:
    workload = Workload(seq_len=192, heads=2, kv_heads=1, head_dim=16, dtype="float32", passes="forward-backward")
    for error in relative_errors(workload, f"{scheme}/zigzag/xla@ring=4,tile=8x6,backward=5x12", seed=1):
        assert error <= TOLERANCES["float32"]


@pytest.mark.parametrize("mesh", ["data=2,ring=4", "ring=2,tensor=4", "data=2,ring=2,tensor=2", "fsdp=2,ring=4"])
@pytest.mark.parametrize("scheme", schemes.names())
def test_other_axes_divide_batch_and_heads(scheme: str, mesh: str) -> None:
    workload = Workload(
        seq_len=192, batch=2, heads=8, kv_heads=4, head_dim=HEAD_DIM, dtype="float32", passes="forward-backward"
    )
    for error in relative_errors(workload, f"{scheme}/striped/xla@{mesh},tile=8", seed=1):
        assert error <= TOLERANCES["float32"]
