"""Counts that do not flicker: tiles, hops and bytes of the program that runs, of its jaxpr and of its HLO."""

import itertools
import math

import jax
import numpy as np
import pytest

import stripectl.kernels.xla.kernel as xla
from stripectl.arithmetic import COUNTING
from stripectl.execute import Program
from stripectl.hlo import Collective, collectives, parse, sent_bytes
from stripectl.layout import layouts
from stripectl.plan import parse_plan
from stripectl.reference import dense
from stripectl.rewrites import rewrites
from stripectl.scheme import schemes
from stripectl.simulate import simulate
from stripectl.workload import ATTENTION_PASSES, DTYPES, Workload

SHARDS, ROWS = 8, 48
PLANS = [
    f"{scheme}/{layout}/xla@ring={SHARDS},tile=8x6,unroll={unroll}"
    for scheme, layout, unroll in itertools.product(schemes.names(), layouts.names(), (1, 9))
]


def workload(passes: str = "forward", dtype: str = "float32") -> Workload:
    return Workload(seq_len=SHARDS * ROWS, heads=4, kv_heads=2, head_dim=16, dtype=dtype, passes=passes)


def program(plan: str, work: Workload) -> Program:
    return Program(work, parse_plan(plan), jax.devices())


def walk(jaxpr, times: int = 1):
    """(primitive, equation, how often it runs) of a jaxpr, through calls and loops."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name, equation, times
        inner_times = times * equation.params["length"] if equation.primitive.name == "scan" else times
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from walk(inner, inner_times)


SENT = {"ppermute": ("collective-permute", 1), "all_gather": ("all-gather", SHARDS - 1)}


def jaxpr_bytes(traced: Program) -> dict[str, int]:
    """Bytes a device sends, by the collective's HLO name."""
    total: dict[str, int] = {}
    for name, equation, times in walk(jax.make_jaxpr(traced.function)(*traced.shapes).jaxpr):
        operands = sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in equation.invars if hasattr(v, "aval"))
        if name in SENT:
            opcode, factor = SENT[name]
            total[opcode] = total.get(opcode, 0) + times * factor * operands
        elif name == "reduce_scatter":
            total["reduce-scatter"] = total.get("reduce-scatter", 0) + times * operands * (SHARDS - 1) // SHARDS
    return total


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("passes", ATTENTION_PASSES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_simulated_bytes_are_the_programs(plan: str, passes: str, dtype: str) -> None:
    work = workload(passes, dtype)
    sent = simulate(work, parse_plan(plan), COUNTING).sent
    assert sent and sent == jaxpr_bytes(program(plan, work))


@pytest.mark.parametrize("unroll", [1, 9])
def test_forward_makes_one_hop_less_than_there_are_shards(unroll: int) -> None:
    traced = program(f"ring/striped/xla@ring={SHARDS},tile=8x6,unroll={unroll}", workload())
    permutes = [
        times for name, _, times in walk(jax.make_jaxpr(traced.function)(*traced.shapes).jaxpr) if name == "ppermute"
    ]
    assert sum(permutes) == 2 * (SHARDS - 1)  # keys and values


@pytest.mark.parametrize("plan", [plan for plan in PLANS if "striped" in plan])
@pytest.mark.parametrize("passes", ATTENTION_PASSES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_bytes_are_the_programs_after_named_rewrites(plan: str, passes: str, dtype: str) -> None:
    work, parsed = workload(passes, dtype), parse_plan(plan)
    compiled = program(plan, work)
    found = collectives(parse(compiled.function.lower(*compiled.shapes).compile().as_text()))
    simulated = simulate(work, parsed, COUNTING)
    expected = simulated.sent
    rotation = simulate(workload("forward", dtype), parsed, COUNTING).sent.get("collective-permute", 0)
    if parsed.scheme == "ring" and parsed.unroll > 1 and passes == "forward-backward":
        expected["collective-permute"] -= rotation  # merged rotation
    if dtype == "bfloat16":  # widening: K/V double, the ring's float32 dK/dV do not
        for opcode, nbytes in expected.items():
            narrow = (
                nbytes
                if opcode != "collective-permute"
                else rotation * (1 + (passes != "forward" and parsed.unroll == 1))
            )
            expected[opcode] += narrow
    assert sent_bytes(found) == expected
    named = rewrites(work, simulated.transfers, found)
    assert sum(expected.values()) == sum(simulated.sent.values()) + sum(each.bytes for each in named)
    assert {each.name for each in named} <= {"merged rotation", "widening"}


@pytest.mark.parametrize("layout", layouts.names())
@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize("tile", ["8x6", "10x7"])
def test_the_program_computes_the_tiles_that_are_counted(layout: str, mask: str, tile: str, monkeypatch) -> None:
    ran = {"forward": 0, "backward": 0}

    def counted(name: str, function):
        def tick():
            ran[name] += 1

        def wrapped(*arguments):
            jax.debug.callback(tick)
            return function(*arguments)

        return wrapped

    monkeypatch.setattr(xla, "forward_tile", counted("forward", xla.forward_tile))
    monkeypatch.setattr(xla, "backward_tile", counted("backward", xla.backward_tile))
    work = Workload(
        seq_len=SHARDS * ROWS, heads=2, kv_heads=1, head_dim=4, dtype="float32", mask=mask, passes="forward-backward"
    )
    plan = f"ring/{layout}/xla@ring={SHARDS},tile={tile}"
    running = program(plan, work)
    jax.block_until_ready(running.function(*running.random_inputs()))
    jax.effects_barrier()
    rounds = simulate(work, parse_plan(plan), COUNTING).rounds
    for name, count in ran.items():
        assert count == 2 * sum(int(each.tiles.computed.sum()) for each in rounds if each.passes == name)


@pytest.mark.parametrize(
    ("result", "opcode", "sent"),
    [
        ("f32[8,100]{1,0} all-gather(%a), replica_groups={{0,1,2,3,4,5,6,7}}", "all-gather", 2800),
        ("(f32[8,100], f32[8,100]) all-gather(%a, %b), replica_groups=[1,8]<=[8]", "all-gather", 5600),
        (
            "f32[8,100] all-gather(%a), replica_groups=mesh['x'=4,'y'=2], device_ids=([4,2]T(1,0)) {'x'}",
            "all-gather",
            2400,
        ),
        (
            "f32[8,100] all-gather(%a), replica_groups=mesh['x'=4,'y'=2] {'x':(2)2,'y'}, dimensions={0}",
            "all-gather",
            2400,
        ),
        ("f32[100] all-reduce(%a), replica_groups=mesh['x'=4,'y'=2] {'y'}, to_apply=%add", "all-reduce", 400),
        ("(f32[100], f32[8,100]) all-gather-start(%a), replica_groups={{0,1,2,3,4,5,6,7}}", "all-gather", 2800),
        ("(bf16[100], bf16[100], u32[], u32[]) collective-permute-start(%a)", "collective-permute", 200),
        ("((f32[100], f32[100]), (f32[100], f32[100])) collective-permute-start(%a, %b)", "collective-permute", 800),
        ("f32[100] reduce-scatter(%a), replica_groups={{0,1,2,3}}, to_apply=%add", "reduce-scatter", 1200),
    ],
)
def test_bytes_of_collectives_in_every_form(result: str, opcode: str, sent: int) -> None:
    text = "\n".join(
        [
            "%add (x: f32[]) -> f32[] {",
            "  ROOT %x = f32[] parameter(0)",
            "}",
            "ENTRY %main (a: f32[100]) -> f32[] {",
            f"  %c = {result}",
            "}",
        ]
    )
    assert sent_bytes(collectives(parse(text))) == {opcode: sent}


def test_loops_without_a_known_trip_count_say_it_in_their_condition() -> None:
    text = """
%body (p: (s32[], f32[10])) -> (s32[], f32[10]) {
  %c = f32[10] collective-permute(%x), source_target_pairs={{0,1},{1,0}}
}
%condition (p: (s32[], f32[10])) -> pred[] {
  %n = s32[] constant(7)
}
ENTRY %main (a: f32[10]) -> f32[10] {
  %w = (s32[], f32[10]) while(%t), condition=%condition, body=%body
}"""
    assert sent_bytes(collectives(parse(text))) == {"collective-permute": 7 * 40}


def test_a_collective_that_is_printed_where_it_starts_goes_on_and_ends_counts_once() -> None:
    gather = 'f32[8,100] all-gather(%p), channel_id=2, replica_groups={{0,1}}, frontend_attributes={chain_id="0"}'
    text = f"""
%start (p: f32[4,100]) -> f32[8,100] {{
  %g.1 = {gather}
  ROOT %s = (f32[4,100], f32[8,100]) custom-call(%g.1), custom_call_target="AsyncCollectiveStart"
}}
%async_collective_fusion.1 (p: f32[4,100]) -> f32[8,100] {{
  %g.2 = {gather}
}}
%end (p: f32[4,100]) -> f32[8,100] {{
  %g.3 = {gather}
  ROOT %d = f32[8,100] custom-call(%p, %g.3), custom_call_target="AsyncCollectiveDone"
}}
ENTRY %main (a: f32[4,100]) -> f32[8,100] {{
  %async-collective-start = (f32[4,100], f32[8,100]) fusion(%a), kind=kCustom, calls=%start
  %fusion = f32[8,100] fusion(%async-collective-start), kind=kCustom, calls=%async_collective_fusion.1
  ROOT %async-collective-done = f32[8,100] fusion(%fusion), kind=kCustom, calls=%end
}}"""
    assert sent_bytes(collectives(parse(text))) == {"all-gather": 1600}


def test_what_no_rewrite_explains_is_unexplained() -> None:
    sent = [Collective("collective-permute", "f32", 400, 3)]
    named = rewrites(workload(), {("collective-permute", 100, 2): 2}, sent)
    assert {each.name: (each.transfers, each.bytes) for each in named} == {
        "widening": (2, 400),
        "unexplained": (1, 400),
    }


def test_dead_tiles_are_never_read() -> None:
    """NaN in the last quarter of the keys reaches only queries whose tiles hold it."""
    tile, rows = 16, 64
    work = Workload(seq_len=rows, heads=1, kv_heads=1, head_dim=8, dtype="float32", passes="forward-backward")
    running = Program(work, parse_plan(f"ring/contiguous/xla@tile={tile}"), jax.devices())
    rng = np.random.default_rng(0)
    q, k, v, dout = (rng.standard_normal((1, 1, rows, 8), np.float32) for _ in range(4))
    k[:, :, 48:] = v[:, :, 48:] = np.nan
    dout[:, :, 48:] = 0
    out, dq, *_ = running.function(*running.place([q, k, v, dout]))
    clean = [x[:, :, :48] for x in (q, k, v, dout)]
    expected = dense(*clean, work.window)
    assert np.allclose(np.asarray(out)[:, :, :48], expected[0], atol=1e-5)
    assert np.allclose(np.asarray(dq)[:, :, :48], expected[1], atol=1e-5)
    assert np.isnan(np.asarray(out)[:, :, 48:]).all()
