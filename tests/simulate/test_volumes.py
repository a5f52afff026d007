"""The papers' tables of what a device sends, reproduced from simulated bytes of a forward pass.

Letters are LASP's: B batch, N tokens, d the hidden size, T devices; g is the part of heads that keys and values have.
"""

import itertools
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import COUNTING
from stripectl.simulate.simulation import simulate
from tests.support.plans import with_tile

B, N, HEADS, HEAD_DIM = 2, 2**13, 32, 64
BND = B * N * HEADS * HEAD_DIM  # elements of a whole sequence of hidden states
SIZES = [2, 4, 8, 16]
GROUPS = [Fraction(1), Fraction(1, 2), Fraction(1, 8)]


def sent(plan: str, g: Fraction = Fraction(1), **fields: Any) -> Fraction:
    """Elements that a device sends, in units of B N d."""
    work = Workload(seq_len=N, batch=B, heads=HEADS, kv_heads=int(HEADS * g), head_dim=HEAD_DIM)
    work = replace(work, **fields)
    found = simulate(work, with_tile(parse_plan(plan), work, "tpu"), COUNTING).sent
    return Fraction(sum(found.values()), 2 * BND)


def ring(parts: int, g: Fraction) -> Fraction:
    """Of K and V, every other shard once, in units of a device's share of a sequence."""
    return 2 * g * (parts - 1)


def exchange(parts: int, g: Fraction) -> Fraction:
    """Of all-to-alls of Q, K, V and the output, in those units: a device keeps one part of each. Key/value heads fewer
    than the devices are sent once for every device that needs them."""
    return (2 + 2 * max(g, Fraction(parts, HEADS))) * Fraction(parts - 1, parts)


@pytest.mark.parametrize("g", GROUPS)
@pytest.mark.parametrize("size", SIZES)
def test_a_ring_sends_all_keys_and_values_and_a_gather_as_much(size: int, g: Fraction) -> None:
    for plan in ("ring", "all_gather", "bidirectional", "rsa", "pass_kv"):
        assert sent(f"{plan}@ring={size}", g) == ring(size, g) / size
    assert sent(f"all_gather@ring={size},parts=4", g) == ring(size, g) / size


@pytest.mark.parametrize("g", GROUPS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("layout", "runs"), [("contiguous", 1), ("zigzag", 2)])
def test_a_halo_sends_the_rows_of_a_window_whatever_the_length(layout: str, runs: int, size: int, g: Fraction) -> None:
    """W-1 rows of K and of V per run; in the backward pass as many of dK and dV, in float32."""
    for window, length in itertools.product((2, 100, 1024), (N, 8 * N)):
        if length // size // runs * (size - 1) < window:
            continue
        plan, fields = f"halo/{layout}@ring={size}", {"seq_len": length, "mask": f"sliding:{window}"}
        rows = runs * Fraction(window - 1, N)
        assert sent(plan, g, **fields) == 2 * g * rows
        assert sent(plan, g, passes="forward-backward", **fields) == 2 * g * rows * 3


@pytest.mark.parametrize("g", GROUPS)
@pytest.mark.parametrize("size", SIZES)
def test_lasps_row_of_ulysses(size: int, g: Fraction) -> None:
    """Published 4BNd/T: of all four arrays, as if a device kept no part of them."""
    assert sent(f"ulysses@ulysses={size}", g) == exchange(size, g) / size
    published = Fraction(4, size)
    assert sent(f"ulysses@ulysses={size}") == published * (size - 1) / size


@pytest.mark.parametrize("size", SIZES)
def test_lasps_row_of_megatron_sp(size: int) -> None:
    """Published 2BNd + 4BNd/T of a layer, of which attention is half. By rings a gather and a reduce-scatter both send
    BNd (T-1)/T, so ours is larger by BNd and smaller by 4BNd/T."""
    published = 2 + Fraction(4, size)
    assert sent(f"megatron_sp@tensor={size}") == 2 * Fraction(size - 1, size)
    assert sent(f"megatron_sp@tensor={size}") == published / 2 + 1 - Fraction(4, size)


@pytest.mark.parametrize("g", GROUPS)
@pytest.mark.parametrize(("rings", "exchanges"), [(1, 8), (2, 4), (4, 2), (8, 1), (4, 4)])
def test_usp_is_between_a_ring_and_ulysses(rings: int, exchanges: int, g: Fraction) -> None:
    """A ring over `rings` of what all-to-alls over `exchanges` have changed: rows as many times more as heads fewer."""
    expected = ring(rings, max(g, Fraction(exchanges, HEADS))) + exchange(exchanges, g)
    assert sent(f"usp@ring={rings},ulysses={exchanges}", g) == expected / (rings * exchanges)
    assert sent(f"double_ring@outer={rings},ulysses={exchanges}", g) == expected / (rings * exchanges)
    if g == 1 and 1 not in (rings, exchanges):
        all_exchange, all_ring = sent(f"ulysses@ulysses={rings * exchanges}"), sent(f"ring@ring={rings * exchanges}")
        assert all_exchange < sent(f"usp@ring={rings},ulysses={exchanges}") < all_ring


@pytest.mark.parametrize("g", GROUPS)
def test_a_double_ring_sends_what_a_ring_does_less_of_it_between_circles(g: Fraction) -> None:
    assert sent("double_ring@outer=4,inner=4", g) == sent("ring@ring=16", g)


@pytest.mark.parametrize("size", SIZES)
def test_queries_that_travel_are_larger_than_grouped_keys(size: int) -> None:
    """Queries, outputs, and a float32 log-sum-exp for every row and head: whatever keys and values there are."""
    log_sum_exps = Fraction(2, HEAD_DIM)
    for g in GROUPS:
        assert sent(f"token_ring@ring={size}", g) == (2 + log_sum_exps) * Fraction(size - 1, size)
