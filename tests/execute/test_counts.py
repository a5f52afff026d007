"""Counts that do not flicker: tiles, hops and bytes of the program that runs, of its jaxpr and of its HLO."""

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import stripectl.compat as compat
import stripectl.kernels.xla.kernel as xla
from stripectl.core.kernel import kernels
from stripectl.core.layout import MASKS, Tile, layouts, parse_tile
from stripectl.core.mesh import RING_AXES, factorisations, make_mesh
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.scheme import schemes
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import ATTENTION_PASSES, DTYPE_BYTES, DTYPES, Workload
from stripectl.costs.cost_model import COUNTING
from stripectl.execute.program import PlanProgram, compiled_peak_bytes
from stripectl.execute.reference import dense
from stripectl.hlo.module import collectives, parse_module, sent_bytes_by_opcode
from stripectl.hlo.rewrites import rewrites
from stripectl.simulate.simulation import simulate
from tests.support.exact import in_parts, legal, on_devices
from tests.support.jaxprs import jaxpr_bytes, jaxpr_transfers
from tests.support.plans import mask_of, with_tile

SHARDS, ROWS = 8, 48
LINEAR = {name for name in schemes.names() if schemes[name].sends_states}  # counted in test_linear
SOFTMAX = [name for name in schemes.names() if "softmax" in schemes[name].kernel_families]
PACKED = (50, 7, 20)


def workload(passes: str = "forward", dtype: str = "float32", **fields) -> Workload:
    sizes = {"seq_len": SHARDS * ROWS, "heads": 8, "kv_heads": 8, "head_dim": 16}
    return Workload(**{**sizes, "dtype": dtype, "passes": passes, **fields})


def program(plan: Plan, work: Workload) -> PlanProgram:
    return PlanProgram(work, plan, jax.devices())


def planned(text: str, work: Workload) -> Plan:
    return with_tile(parse_plan(text), work, "cpu")


def loops(plan: Plan) -> bool:
    """Whether a loop of the plan has more than one round, so that unrolling it makes another program."""
    return max(map(plan.size, RING_AXES)) > 2


def cases(devices: int) -> list[tuple[Plan, Workload]]:
    """Every scheme on each factorisation of so many devices over its axes, with each pass, and in both dtypes; one that
    loops, unrolled in the second."""
    found = []
    for name, passes, (dtype, unroll) in itertools.product(
        schemes.names(), ATTENTION_PASSES, zip(DTYPES, (1, 9), strict=True)
    ):
        work, axes = workload(passes, dtype, mask=mask_of(name)), schemes[name].axes
        for sizes in factorisations(devices if axes else 1, len(axes)):
            plan = replace(parse_plan(name), mesh=make_mesh(dict(zip(axes, sizes, strict=True))))
            plan = with_tile(replace(plan, unroll=unroll if loops(plan) else 1), work, "cpu")
            if why_unsupported(plan, work, "cpu", devices) is None:
                found.append((plan, work))
    return found


def name_of(plan: Plan, work: Workload) -> str:
    return f"{plan}-{work.passes}-{work.dtype}"


def meshes_and_methods(case: tuple[Plan, Workload]) -> set:
    """A scheme's meshes and its passes and dtypes, each of them once with each mesh."""
    plan, work = case
    return {(plan.scheme, plan.mesh, work.passes), (plan.scheme, plan.mesh, work.dtype)}


COUNTED = [
    pytest.param(*case, id=name_of(*case), marks=marks) for case, marks in in_parts(cases(SHARDS), meshes_and_methods)
]


@pytest.mark.parametrize(("plan", "work"), COUNTED)
def test_simulated_bytes_are_the_programs(plan: Plan, work: Workload) -> None:
    sent = simulate(work, plan, COUNTING).sent
    assert bool(sent) == (plan.devices > 1) and sent == jaxpr_bytes(program(plan, work))


def with_layout(name: str, layout: str, devices: int, **fields: Any) -> tuple[Plan, Workload]:
    """A scheme with this layout, and a workload with the most of a pass that it can."""
    work = workload("forward-backward" if schemes[name].query_sharding == "all" else "forward", **fields)
    return with_tile(replace(on_devices(name, devices), layout=layout), work, "cpu"), work


GROUPED = [
    with_layout(name, "contiguous", 4, mask=mask, kv_heads=kv_heads, documents=PACKED)
    for name in schemes.names()
    for mask, kv_heads in (("causal", 2), ("sliding:37", 1), ("sliding:50", 2), ("sliding:200", 1))
]


@pytest.mark.parametrize(
    ("plan", "work"),
    [
        pytest.param(plan, work, id=f"{plan}-{work.mask}-{work.kv_heads}", marks=marks)
        for (plan, work), marks in in_parts(
            [each for each in GROUPED if legal(*each)], lambda case: {case[0].scheme, case[1].mask}
        )
    ],
)
def test_simulated_bytes_are_the_programs_where_a_window_ends_rings_and_heads_are_grouped(
    plan: Plan, work: Workload
) -> None:
    assert simulate(work, plan, COUNTING).sent == jaxpr_bytes(program(plan, work))


RING, INNER, OUTER = (("collective-permute", axis) for axis in ("ring", "inner", "outer"))
HEADS = "all-to-all", "ulysses"
LSE = 1 / 16  # of a block: one number for a head's 16
HOPS = {  # forward: (collective, axis) -> (how many, how many blocks of K, V or queries of a shard in all)
    "all_gather@ring=8": {("all-gather", "ring"): (2, 14)},
    "all_gather@ring=8,parts=2": {("all-gather", "ring"): (4, 14)},
    "all_gather@ring=8,parts=3": {("all-gather", "ring"): (6, 14)},
    "all_gather/zigzag@ring=8,parts=4": {("all-gather", "ring"): (8, 14)},
    "bidirectional@ring=8": {RING: (28, 14)},
    "blockwise": {},
    "dist_flash@ring=3": {RING: (2 + 1 + 2, 2 + 1 + 1 + LSE)},
    "dist_flash@ring=8": {RING: (8 + 3 + 6, 8 + 3 + 3 * (1 + LSE))},
    "double_ring@outer=4,inner=2": {INNER: (8, 8), OUTER: (6, 6)},
    "double_ring@outer=2,inner=2,ulysses=2": {INNER: (4, 4), OUTER: (2, 2), HEADS: (4, 4 * 1 / 2)},
    "megatron_sp@tensor=8": {("all-gather", "tensor"): (1, 7), ("reduce-scatter", "tensor"): (1, 7)},
    "memory_efficient": {},
    "pass_kv@ring=8": {RING: (14, 14)},
    "pass_q@ring=8": {RING: (7, 7), ("all-to-all", "ring"): (2, 7 * (1 + LSE))},
    "ring@ring=8": {RING: (14, 14)},
    "ring@ring=8,unroll=9": {RING: (14, 14)},
    "rsa@ring=8": {RING: (14, 14)},
    "token_ring@ring=8": {RING: (21, 7 + 7 * (1 + LSE))},
    "ulysses@ulysses=8": {HEADS: (4, 4 * 7 / 8)},
    "usp@ring=4,ulysses=2": {RING: (6, 6), HEADS: (4, 4 * 1 / 2)},
    "vanilla": {},
}
WINDOWED = {  # on the contiguous layout, under a window that reaches into one shard before a query's, or into two
    ("ring@ring=8", "sliding:37"): {RING: (2, 2)},
    ("ring@ring=8", "sliding:49"): {RING: (2, 2)},
    ("ring@ring=8", "sliding:50"): {RING: (4, 4)},
    ("rsa@ring=8", "sliding:50"): {RING: (4, 4)},
    ("pass_kv@ring=8", "sliding:50"): {RING: (4, 4)},
    ("usp@ring=4,ulysses=2", "sliding:37"): {RING: (2, 2), HEADS: (4, 4 * 1 / 2)},
    ("bidirectional@ring=8", "sliding:50"): {RING: (4, 4)},
    ("dist_flash@ring=8", "sliding:50"): {RING: (4, 4)},
    ("double_ring@outer=4,inner=2", "sliding:37"): {INNER: (4, 4), OUTER: (2, 2)},
    ("double_ring@outer=4,inner=2", "sliding:50"): {INNER: (4, 4), OUTER: (2, 2)},
    ("double_ring@outer=4,inner=2", "sliding:98"): {INNER: (6, 6), OUTER: (4, 4)},
    ("double_ring@outer=2,inner=4", "sliding:37"): {INNER: (4, 4), OUTER: (2, 2)},
    ("double_ring@outer=2,inner=4", "sliding:50"): {INNER: (8, 8), OUTER: (2, 2)},
    ("pass_q@ring=8", "sliding:50"): {RING: (2 + 4, 2 + 2 * (1 + LSE))},
    ("token_ring@ring=8", "sliding:50"): {RING: (6, 2 + 2 * (1 + LSE))},
}


HALOS = {  # layout, mask: (how many shifts of keys or values, how many rows of keys or values in all)
    ("contiguous", "sliding:2"): (2, 2),
    ("contiguous", "sliding:37"): (2, 2 * 36),
    ("contiguous", "sliding:49"): (2, 2 * 48),
    ("contiguous", "sliding:50"): (4, 2 * 49),
    ("contiguous", "sliding:146"): (8, 2 * 145),
    ("zigzag", "sliding:2"): (4, 4),
    ("zigzag", "sliding:25"): (4, 4 * 24),
    ("zigzag", "sliding:26"): (8, 4 * 25),
    ("zigzag", "sliding:74"): (16, 4 * 73),
}


def check_hops(text: str, mask: str, expected: dict[tuple[str, str], tuple[int, float]]) -> None:
    plan = parse_plan(text)
    work = workload(seq_len=ROWS * plan.devices, mask=mask)
    hops, sent = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for opcode, axis, nbytes, times in jaxpr_transfers(program(with_tile(plan, work, "cpu"), work)):
        hops[opcode, axis] += times
        sent[opcode, axis] += times * nbytes
    block_bytes = ROWS * work.heads * work.head_dim * 4
    assert {key: (hops[key], sent[key] / block_bytes) for key in hops} == expected


@pytest.mark.parametrize("text", HOPS)
def test_hops_are_the_published_count(text: str) -> None:
    check_hops(text, "causal", HOPS[text])


@pytest.mark.parametrize(("text", "mask"), WINDOWED)
def test_a_ring_ends_with_the_last_hop_that_a_window_reads(text: str, mask: str) -> None:
    scheme, _, options = text.partition("@")
    check_hops(f"{scheme}/contiguous@{options}", mask, WINDOWED[text, mask])


@pytest.mark.parametrize(("layout", "mask"), HALOS)
def test_halos_are_the_rows_that_a_window_reaches(layout: str, mask: str) -> None:
    shifts, rows = HALOS[layout, mask]
    check_hops(f"halo/{layout}@ring=8", mask, {RING: (shifts, rows / ROWS)})


def test_every_scheme_that_trains_has_a_published_count() -> None:
    alone = {name for name in schemes.names() if schemes[name].query_sharding == "whole"} | LINEAR | {"halo"}
    assert {text.partition("@")[0].partition("/")[0] for text in HOPS} == set(schemes.names()) - alone


EVERY_LAYOUT = [
    with_layout(name, layout, SHARDS, mask=mask)
    for name, layout, mask in itertools.product(schemes.names(), layouts.names(), MASKS)
]


@pytest.mark.parametrize(
    ("plan", "work"),
    [pytest.param(*each, id=f"{each[0]}-{each[1].mask}") for each in EVERY_LAYOUT if legal(*each)],
)
def test_every_round_has_a_tile_on_some_device(plan: Plan, work: Workload) -> None:
    assert all(each.tiles.computed.any() for each in simulate(work, plan, COUNTING).rounds)


MERGED = {"bidirectional": 12, "dist_flash": 5, "double_ring": 6, "ring": 6, "token_ring": 3, "usp": 2}
QUICK = ("ring", "all_gather", "ulysses", "megatron_sp")  # a scheme of each kind of transfer
ROLLED = ("bidirectional", "ring")  # their loop over 4 devices stays one where it is not unrolled
BEFORE_BARRIER = {"bidirectional": 4, "ring": 2}  # of their first round, which no barrier precedes


def compiled_cases() -> list:
    """Of every scheme on 4 devices; among those outside of `full`, each has both passes and dtypes."""

    def part(plan: Plan, work: Workload) -> Any:
        merges = plan.unroll == 1 or plan.scheme in ROLLED
        if not merges or work.dtype != ("float32" if work.passes == "forward" else "bfloat16"):
            return pytest.mark.full
        return () if plan.scheme in QUICK else pytest.mark.exactness

    even = [each for each in cases(4) if each[0].mesh == on_devices(each[0].scheme, 4).mesh]
    return [pytest.param(plan, work, id=name_of(plan, work), marks=part(plan, work)) for plan, work in even]


@pytest.mark.parametrize(("plan", "work"), compiled_cases())
def test_compiled_bytes_are_the_programs_after_named_rewrites(plan: Plan, work: Workload) -> None:
    """A backward pass that rotates again what the forward pass did, in rounds that are no loop, finds it there; of an
    unrolled loop, whose rounds end in barriers, in the first round alone where XLA keeps barriers until it orders a
    program. And a CPU sends bfloat16 as float32."""
    found = collectives(parse_module(program(plan, work).compile({}).as_text()))
    simulated = simulate(work, plan, COUNTING)
    merges = work.passes != "forward" and (plan.scheme not in ROLLED or plan.unroll > 1)
    first = plan.scheme in ROLLED and not compat.keep_barriers_on_cpu()
    merged = (BEFORE_BARRIER if first else MERGED).get(plan.scheme, 0) if merges else 0
    blocks = [
        key for key in simulated.transfers if key[0] == "collective-permute" and key[2] == DTYPE_BYTES[work.dtype]
    ]
    block_bytes = max((elements * size for _, elements, size in blocks), default=0)
    narrow = {key: times for key, times in simulated.transfers.items() if key[2] == 2}
    expected = {}
    if merged:
        expected["merged rotation"] = merged, -merged * block_bytes
    if narrow:
        sent = sum(elements * size * times for (_, elements, size), times in narrow.items())
        expected["widening"] = sum(narrow.values()) - merged, sent - merged * block_bytes
    named = {each.name: (each.transfers, each.bytes) for each in rewrites(work, simulated.transfers, found)}
    assert named == expected
    assert sum(sent_bytes_by_opcode(found).values()) == sum(simulated.sent.values()) + sum(
        each for _, each in expected.values()
    )


def part_of(name: str, often: bool) -> Any:
    return () if name in QUICK and often else pytest.mark.exactness if often else pytest.mark.full


PACKINGS = [("causal", None), ("full", PACKED), ("sliding:37", PACKED)]
TICKED = [
    pytest.param(
        *(
            name,
            layout,
            *PACKINGS[2 if schemes[name].sends_halos else (at + turn) % 3],
            ("8x6", "10x7")[(at + turn) % 2],
        ),
        marks=part_of(name, layout == schemes[name].default_layout or name == "ring"),
    )
    for at, name in enumerate(SOFTMAX)
    for turn, layout in enumerate(schemes[name].layouts or layouts.names())
]


def test_rounds_unrolled_by_two_on_a_cpu_hold_no_more_than_one() -> None:
    work = workload()

    def peak(unroll: int, flags: dict[str, str]) -> int:
        return compiled_peak_bytes(program(planned(f"ring@ring=8,unroll={unroll}", work), work).compile(flags)) or 0

    keys = work.seq_len // 8 * work.kv_heads * work.head_dim * DTYPE_BYTES[work.dtype]  # of a device
    assert peak(2, {}) - peak(1, {}) < keys
    if compat.keep_barriers_on_cpu():  # without which rounds mix
        assert keys < peak(2, {"xla_disable_hlo_passes": "none"}) - peak(1, {})  # the user's flag holds


@pytest.mark.parametrize(("name", "layout", "mask", "documents", "tile"), TICKED)
def test_the_program_computes_the_tiles_that_are_counted(name, layout, mask, documents, tile, monkeypatch) -> None:
    ran = {"forward": 0, "backward": 0}

    def counted(which: str, function):
        def tick():
            ran[which] += 1

        def wrapped(*arguments):
            jax.debug.callback(tick)
            return function(*arguments)

        return wrapped

    monkeypatch.setattr(xla, "forward_tile", counted("forward", xla.forward_tile))
    monkeypatch.setattr(xla, "backward_tile", counted("backward", xla.backward_tile))
    passes = "forward-backward" if schemes[name].query_sharding == "all" else "forward"
    work = workload(passes, seq_len=4 * ROWS, heads=4, kv_heads=4, head_dim=4, mask=mask, documents=documents)
    plan = replace(on_devices(name, 4), layout=layout, tile=parse_tile(tile))
    if schemes[name].query_sharding == "whole":
        work = replace(work, query_len=8, documents=None)
    if not legal(plan, work):
        pytest.skip("refused")
    running = program(plan, work)
    jax.block_until_ready(running.function(*running.random_inputs(), *running.own_inputs()))
    jax.effects_barrier()
    heads = work.heads // plan.size("ulysses") // plan.size("tensor")
    rounds = simulate(work, plan, COUNTING).rounds
    for which, count in ran.items():
        assert count == heads * sum(int(each.tiles.computed.sum()) for each in rounds if each.passes == which)
    assert ran["forward"] and bool(ran["backward"]) == (passes != "forward")


UNREAD = {  # NaN in these keys -> queries that a tile with them holds none of, by mask and packing; 4 shards of 64
    ("causal", None): (slice(192, 256), slice(0, 192)),
    ("sliding:33", None): (slice(0, 64), slice(128, 256)),
    ("full", (64,)): (slice(192, 256), slice(0, 192)),
    ("sliding:33", (64,)): (slice(64, 128), slice(128, 256)),
}


@pytest.mark.parametrize(
    ("name", "mask", "documents"),
    [
        pytest.param(name, *unread, marks=part_of(name, name == "ring" or unread[0] == "full"))
        for name in schemes.names()
        for unread in UNREAD
    ],
)
def test_dead_tiles_are_never_read(name: str, mask: str, documents: tuple[int, ...] | None) -> None:
    """NaN in keys and values reaches only queries whose tiles hold them, and their gradients."""
    passes = "forward-backward" if schemes[name].query_sharding == "all" else "forward"
    work = workload(passes, seq_len=256, heads=4, kv_heads=4, head_dim=8, mask=mask, documents=documents)
    plan = replace(on_devices(name, 4), layout="contiguous", tile=Tile(16, 16))
    plan = replace(plan, tile=Tile(64, 64)) if kernels[plan.kernel].keeps_all_scores else plan
    if not legal(plan, work) or (kernels[plan.kernel].keeps_all_scores and plan.shards == 1):
        pytest.skip("refused, or all keys are one tile")
    running, rng = program(plan, work), np.random.default_rng(0)
    arrays = [rng.standard_normal((1, 4, 256, 8), np.float32) for _ in range(4)]
    q, k, v, dout = (x.copy() for x in arrays)
    unread, queries = UNREAD[mask, documents]
    k[:, :, unread] = v[:, :, unread] = np.nan
    others = np.delete(np.arange(256), np.r_[queries])
    dout[:, :, others] = arrays[3][:, :, others] = 0
    found = running.function(*running.place([q, k, v, dout][: len(running.shapes)]))
    out, *gradients = found if isinstance(found, tuple) else (found,)
    expected = dense(*arrays, window=work.window, starts=work.starts)
    for value, reference in zip((out, *gradients[:1]), expected, strict=False):
        assert np.allclose(np.asarray(value)[:, :, queries], reference[:, :, queries], atol=1e-5)
    assert np.isnan(np.asarray(out)[:, :, unread]).all()
