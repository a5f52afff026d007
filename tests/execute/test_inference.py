"""Queries behind a cached prefix: tree, pass-Q and pass-KV against dense attention, their bytes, latency and rule."""

import itertools
import random
from dataclasses import replace

import jax
import numpy as np
import pytest

from stripectl.analysis.notes.pass_kv_or_q import PASS_KV, PASS_Q, PassRule
from stripectl.core.layout import layouts
from stripectl.core.plan import parse_plan
from stripectl.core.scheme import schemes
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import DTYPES, Workload
from stripectl.costs.cost_model import COUNTING, CostModel
from stripectl.execute.program import PlanProgram
from stripectl.execute.reference import dense
from stripectl.hlo.module import collectives, parse_module, sent_bytes_by_opcode
from stripectl.results.tile_cost import TileCost
from stripectl.simulate.simulation import simulate
from tests.support.exact import check_result, cover_in_parts, in_parts
from tests.support.jaxprs import jaxpr_bytes
from tests.support.plans import why_refused, with_tile

SEQ_LEN = 256
NAMES = [name for name in schemes.names() if schemes[name].query_sharding != "all"]
SCHEMES = [f"{name}/{layout}" for name in NAMES for layout in schemes[name].layouts or layouts.names()]
# Nothing but hops takes time.
LATENT = CostModel(TileCost(), TileCost(), hop_latency_s=1.0, link_bytes_per_s_one_way=1e12)


DEVICES, KV_HEADS = (2, 4, 8), (8, 2, 1)
REST = [(1, 8), (64, 2), (SEQ_LEN, 1)], ["causal", "full", "sliding:70"], DTYPES


def devices_of(case: tuple) -> int:
    """A cost for `covering`: rounds of pass-Q are compiled one by one."""
    return case[1]


EVERY = [
    (scheme, devices, *size, *rest, kv_heads)
    for scheme, devices, kv_heads, size, *rest in itertools.product(SCHEMES, DEVICES, KV_HEADS, *REST)
]
COVER = cover_in_parts(EVERY, cost=devices_of)
COVERED = {case for case, _ in COVER}
TURN = random.Random(0)
PRODUCT = [
    (scheme, TURN.choice(DEVICES), *size, *rest, TURN.choice(KV_HEADS))
    for scheme, size, *rest in itertools.product(SCHEMES, *REST)
]
OTHERS = [(case, pytest.mark.full) for case in PRODUCT if case not in COVERED]
CASES = [pytest.param(*case, marks=marks) for case, marks in [*COVER, *OTHERS]]
BESIDE = list(itertools.product(SCHEMES, ["data=2,ring=2,tensor=2", "fsdp=2,ring=4", "ring=3"], [(1, 24), (24, 2)]))


def asked(queries: int | None, batch: int = 1, **change) -> Workload:
    usual = Workload(seq_len=SEQ_LEN, heads=8, kv_heads=2, head_dim=16, dtype="float32", batch=batch)
    return replace(usual, query_len=queries, **change)


def planned(text: str, work: Workload):
    plan = with_tile(parse_plan(text), work, "cpu")
    assert why_unsupported(plan, work, "cpu") is None
    return plan


@pytest.mark.parametrize(("scheme", "devices", "queries", "batch", "mask", "dtype", "kv_heads"), CASES)
def test_equals_dense_attention_of_the_last_queries(scheme, devices, queries, batch, mask, dtype, kv_heads) -> None:
    check(asked(queries, batch, mask=mask, dtype=dtype, kv_heads=kv_heads), f"{scheme}@ring={devices}")


@pytest.mark.parametrize(
    ("scheme", "mesh", "queries", "batch"),
    [pytest.param(scheme, mesh, *size, marks=marks) for (scheme, mesh, size), marks in in_parts(BESIDE)],
)
def test_equals_it_beside_other_axes(scheme: str, mesh: str, queries: int, batch: int) -> None:
    check(asked(queries, batch, seq_len=192), f"{scheme}@{mesh}")


def check(work: Workload, plan: str) -> None:
    program = PlanProgram(work, planned(plan, work), jax.devices())
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(x.shape, np.float32).astype(x.dtype) for x in program.shapes)
    found = np.asarray(program.function(*program.place([q, k, v])), np.float64)
    expected = dense(q, k, v, np.zeros_like(q), work.window)[0][:, :, program.orders[0]]
    check_result(work, program.plan, found, expected)


@pytest.mark.parametrize(
    ("scheme", "queries", "batch"),
    [
        pytest.param(scheme, *size, marks=marks)
        for (scheme, size), marks in in_parts(list(itertools.product(SCHEMES, [(1, 8), (64, 1)])))
    ],
)
def test_simulated_bytes_are_the_programs(scheme: str, queries: int, batch: int) -> None:
    work = asked(queries, batch)
    plan = planned(f"{scheme}@ring=4", work)
    simulated, program = simulate(work, plan, COUNTING).sent, PlanProgram(work, plan, jax.devices())
    assert simulated == jaxpr_bytes(program)
    assert sum(simulated.values()) == sum(
        sent_bytes_by_opcode(collectives(parse_module(program.compile({}).as_text()))).values()
    )


def test_what_is_sent_depends_on_the_queries_or_on_the_cache() -> None:
    def sent(scheme: str, seq_len: int) -> int:
        work = asked(1, 8, seq_len=seq_len)
        return sum(simulate(work, planned(f"{scheme}@ring=8", work), COUNTING).sent.values())

    assert sent("tree", 2**16) == sent("tree", 2**12)
    assert sent("pass_q", 2**16) == sent("pass_q", 2**12)
    assert sent("pass_kv", 2**16) == 16 * sent("pass_kv", 2**12)


def test_a_tree_takes_the_logarithm_of_the_steps_of_a_ring() -> None:
    def hops(scheme: str, devices: int, torus: bool = False) -> float:
        work = asked(1, devices, seq_len=2**14)
        plan = planned(f"{scheme}/contiguous@ring={devices}", work)
        return simulate(work, plan, replace(LATENT, torus=torus)).seconds

    sizes = (2, 4, 8, 16, 32, 64)
    exchanges = [hops("tree", n) for n in sizes]  # three reductions: maxima, outputs and sums
    assert np.allclose(exchanges, [3 * np.log2(n) for n in sizes], rtol=1e-3)
    assert np.allclose([hops("pass_kv", n) for n in sizes], [n - 1 for n in sizes], rtol=1e-3)
    assert np.allclose([hops("pass_q", n) for n in sizes], sizes, rtol=1e-3)  # and an all-to-all home
    assert np.allclose([hops("tree", n, torus=True) for n in sizes], [3 * (n - 1) for n in sizes], rtol=1e-3)


@pytest.mark.parametrize(
    ("queries", "seq_len", "flops_per_s", "chosen"),
    [
        (2**17, 2**17, 8e14, PASS_KV),  # nothing is cached
        (2**14, 2**17, 2e15, PASS_Q),  # an eighth is new, half as much as 2 K / H
        (2**15, 2**17, 8e14, PASS_KV),  # a quarter is
        (2**14, 2**17, 5e13, PASS_KV),  # so slow that K/V hide
        (1, 2**17, 8e14, PASS_Q),
        (1, 2**17, None, PASS_Q),
    ],
)
def test_the_published_rule(queries: int, seq_len: int, flops_per_s: float | None, chosen: str) -> None:
    work = Workload(seq_len=seq_len, heads=64, kv_heads=8, head_dim=128, query_len=queries)
    rule = PassRule(work, 8, flops_per_s, 5e10)
    assert (rule.enough_misses, rule.scheme) == (0.25, chosen)
    if flops_per_s:
        assert rule.enough_queries == pytest.approx(8 * flops_per_s * 8 * 2 / (2 * 64 * 5e10))


@pytest.mark.parametrize(
    ("plan", "change", "why"),
    [
        ("ring@ring=8", {}, "ring needs as many queries as keys. Try --scheme pass_kv,pass_q,tree"),
        ("tree@ring=8", {"queries": None}, "Add --query-len 1"),
        ("pass_q@ring=8", {"batch": 3}, "queries of 3 requests cannot be divided over 8 devices. Try --batch 8"),
        ("pass_q/striped@ring=8", {"queries": 4}, "need keys in order"),
        ("pass_kv@ring=8", {"queries": None, "passes": "forward-backward"}, "is for inference"),
        ("tree/contiguous/splash@ring=8", {}, "splash runs on TPUs"),
    ],
)
def test_refusals_have_reasons(plan: str, change: dict, why: str) -> None:
    reason = why_refused(parse_plan(plan), asked(**{"queries": 1, "batch": 8} | change), "cpu", 8)
    assert why in str(reason)
