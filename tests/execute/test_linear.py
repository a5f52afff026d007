"""Linear attention of every scheme that can, against a float64 recurrence token by token; states, and their bytes."""

import itertools
import random
from dataclasses import replace
from typing import NamedTuple

import jax
import pytest

import stripectl.kernels.chunked.kernel as chunked
from stripectl.core.kernel import kernels
from stripectl.core.layout import layouts
from stripectl.core.plan import STATES as PLANNED_STATES
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.scheme import schemes
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.workload import DTYPES, Workload
from stripectl.costs.cost_model import COUNTING, CostModel
from stripectl.execute.program import PlanProgram
from stripectl.hardware.profile import Hardware
from stripectl.hardware.target import read_target
from stripectl.hlo.module import collectives, parse_module, sent_bytes_by_opcode
from stripectl.results import case as results_case
from stripectl.results.tile_cost import TileCost
from stripectl.runner.plan_options import scheme_names
from stripectl.runner.static_facts import with_static_facts
from stripectl.simulate.simulation import simulate
from tests.support.exact import (
    DEVICES,
    HEAD_DIM,
    HEADS,
    ROWS,
    check,
    cover_in_parts,
    device_cost,
    each_choice,
    in_parts,
    in_turns,
    legal,
    meshes,
    on_devices,
    pairs,
)
from tests.support.jaxprs import jaxpr_bytes, jaxpr_transfers
from tests.support.plans import why_refused, with_tile

STATES = ("lasp", "lasp2")  # schemes that send states
NAMES = [
    name
    for name in schemes.names()
    if "linear" in schemes[name].kernel_families and schemes[name].query_sharding == "all"
]
DECAYS, FEATURES, KV_HEADS = ("1", "0.9", "per-head"), ("none", "elu"), (HEADS, 2, 1)
TILES = ("8x8", "10x7", "24x48")  # a chunk that divides a shard, one that does not, one that is no square
VARIED = "mesh", "batch", "tile", "states"  # take turns in the product


class Case(NamedTuple):
    scheme: str
    layout: str
    mesh: str
    mask: str
    kv_heads: int
    dtype: str
    decay: str
    features: str
    batch: int
    tile: str = TILES[0]
    states: str = "kept"

    def __str__(self) -> str:
        return "-".join(map(str, self))

    @property
    def plan(self) -> Plan:
        options = ",".join(filter(None, (self.mesh, f"tile={self.tile},states={self.states}")))
        return parse_plan(f"{self.scheme}/{self.layout}/chunked@{options}")

    @property
    def workload(self) -> Workload:
        return Workload(
            seq_len=ROWS * max(2, self.plan.devices),
            heads=HEADS,
            kv_heads=self.kv_heads,
            head_dim=HEAD_DIM,
            batch=self.batch,
            dtype=self.dtype,
            mask=self.mask,
            attention="linear",
            decay=self.decay,
            features=self.features,
            passes="forward-backward",
        )


def product(name: str) -> list[Case]:
    """Every legal case of a scheme, beside data parallelism too; tiles take turns."""
    turn, choices = random.Random(0), (("causal", "full"), KV_HEADS, DTYPES, DECAYS, FEATURES)
    beside = ["data=2,ring=2", "data=2,ring=4"] if name in STATES else []
    several = [mesh for mesh in meshes(schemes[name]) if "," not in mesh or "=1" not in mesh.split("ulysses")[0]]
    axes = itertools.product(layouts.names(), [*several, *beside], *choices)
    kept = PLANNED_STATES if name in STATES else PLANNED_STATES[:1]

    def case(layout: str, mesh: str, mask: str, kv_heads: int, dtype: str, decay: str, features: str) -> Case:
        batch, tile, states = turn.choice((2, 2 if "data" in mesh else 1)), turn.choice(TILES), turn.choice(kept)
        return Case(name, layout, mesh, mask, kv_heads, dtype, decay, features, batch, tile, states)

    return [made for each in axes if legal((made := case(*each)).plan, made.workload)]


def pairs_of_case(case: Case) -> set:
    """A mesh belongs to its scheme; what else meets it meets as many devices."""
    return pairs(case._replace(mesh=str(case.plan.devices))) | {(case.scheme, case.mesh)}


EVERY = [case for name in NAMES for case in product(name)]
COVER = cover_in_parts(EVERY, pairs_of_case, lambda case: each_choice(case._replace(mesh=case.scheme)), device_cost)
COVERED = {case for case, _ in COVER}
OF_STATES = in_turns((case for case in EVERY if case.scheme in STATES), random.Random(0), VARIED)
WHOLE = [pytest.param(case, marks=pytest.mark.full) for case in OF_STATES if case not in COVERED]


@pytest.mark.parametrize("case", [*(pytest.param(case, marks=marks) for case, marks in COVER), *WHOLE], ids=str)
def test_equals_the_recurrence(case: Case) -> None:
    check(case.workload, case.plan)


def planned(name: str, devices: int, **change) -> tuple[Workload, Plan]:
    usual = Workload(seq_len=48 * devices, heads=8, kv_heads=8, head_dim=16, dtype="float32", attention="linear")
    work = replace(usual, **{"passes": "forward-backward"} | change)
    plan = on_devices(name, devices)
    plan = Plan(name, "contiguous", "chunked", plan.mesh)
    return work, with_tile(plan, work, "cpu")


COUNTED = list(itertools.product(NAMES, ("forward", "forward-backward"), DTYPES, (8, 4)))


@pytest.mark.parametrize(
    ("name", "passes", "dtype", "kv_heads"),
    [pytest.param(*case, marks=marks) for case, marks in in_parts(COUNTED, pairs)],
)
def test_simulated_bytes_are_the_programs(name: str, passes: str, dtype: str, kv_heads: int) -> None:
    work, plan = planned(name, 4, passes=passes, dtype=dtype, kv_heads=kv_heads, batch=2)
    assert simulate(work, plan, COUNTING).sent == jaxpr_bytes(PlanProgram(work, plan, jax.devices()))


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_as_large_at_any_length(name: str) -> None:
    """B d^2 / h elements a hop (Sun et al. 2024, Table 1): batch x heads x head_dim^2, float32, N-1 times each way."""
    sent = set()
    for seq_len in (2**11, 2**16, 2**22):
        work, plan = planned(name, 8, seq_len=seq_len, batch=2, dtype="bfloat16")
        transfers = simulate(work, plan, COUNTING).transfers
        hops = {"lasp": 14, "lasp2": 2}[name]
        assert sum(transfers.values()) == hops
        assert {size for _, _, size in transfers} == {4}
        sent.add(sum(elements * times for (_, elements, _), times in transfers.items()))
    assert sent == {2 * 7 * 2 * 8 * 16**2}


@pytest.mark.parametrize("name", STATES)
def test_states_that_are_not_kept_travel_once_more(name: str) -> None:
    work, plan = planned(name, 4)
    sent = [
        jaxpr_bytes(PlanProgram(work, replace(plan, states=states), jax.devices()))
        for states in (PLANNED_STATES[0], PLANNED_STATES[1])
    ]
    assert [3 * nbytes for nbytes in sent[0].values()] == [2 * nbytes for nbytes in sent[1].values()]
    assert sent[1] == simulate(work, replace(plan, states=PLANNED_STATES[1]), COUNTING).sent


def test_every_hop_of_a_chain_is_beside_a_share_of_the_heads() -> None:
    """Where hops take as long as all heads together, none is seen: each has its share beside it."""
    work, plan = planned("lasp", 8, passes="forward")
    tiles = kernels["chunked"].count_tiles([sequence_sharding(work, plan).bands(0, 0)[0]], plan.tiles["forward"])
    share = 8 / 7 * float(TileCost(1.0, 1.0).seconds(tiles, 1))
    hop = CostModel(TileCost(1.0, 1.0), TileCost(1.0, 1.0), hop_latency_s=share)
    found = simulate(work, plan, hop)
    shares = [each for each in found.rounds if each.tiles.boundary.any()]
    assert [each.heads for each in shares] == [1, 1, 1, 1, 1, 1, 2]
    assert found.overlap
    assert found.overlap.exposed_s == pytest.approx(0.0, abs=1e-9)
    assert found.overlap.hidden_s == pytest.approx(7 * share)


@pytest.mark.parametrize("ways", [1, 2])
def test_a_chain_is_latency_by_latency_and_a_gather_goes_both_ways_round(ways: int) -> None:
    """N-1 hops that wait for each other; and N/2 on a torus, which a switch has no use for."""
    machine = CostModel(TileCost(), TileCost(), hop_latency_s=1.0, torus=ways == 2)
    taken = {name: simulate(*planned(name, 8, passes="forward"), machine).seconds for name in STATES}
    assert taken == {"lasp": 7.0, "lasp2": {1: 7.0, 2: 4.0}[ways]}


@pytest.mark.parametrize("name", STATES)
def test_compiled_bytes_are_the_simulated(name: str) -> None:
    work, plan = planned(name, 4)
    compiled = PlanProgram(work, plan, jax.devices()).compile({}).as_text()
    assert sum(sent_bytes_by_opcode(collectives(parse_module(compiled))).values()) == sum(
        simulate(work, plan, COUNTING).sent.values()
    )


@pytest.mark.parametrize("mask", ["causal", "full"])
def test_a_chain_has_a_hop_for_every_other_device_each_way(mask: str) -> None:
    work, plan = planned("lasp", 8, mask=mask)
    hops = [times for _, _, _, times in jaxpr_transfers(PlanProgram(work, plan, jax.devices()))]
    assert sum(hops) == 2 * 7


@pytest.mark.parametrize("tile", ["8x8", "10x7"])
@pytest.mark.parametrize("name", ["lasp", "ring"])
def test_the_program_computes_the_tiles_that_are_counted(name: str, tile: str, monkeypatch) -> None:
    """Products of a chunk: of the backward pass three. Each pass is a program of its own: collectives of chains that do
    not wait for each other meet in XLA's CPU runtime where callbacks hold some of them up, and it aborts."""
    ran, own = [0], chunked.chunk_tile

    def counted(*arguments):
        jax.debug.callback(lambda: ran.__setitem__(0, ran[0] + 1))
        return own(*arguments)

    monkeypatch.setattr(chunked, "chunk_tile", counted)
    plan = parse_plan(f"{name}/contiguous/chunked@ring=4,tile={tile}")
    work, _ = planned(name, 4, passes="forward", heads=4, kv_heads=4, head_dim=4)
    running = PlanProgram(work, plan, jax.devices())
    out, back = jax.vjp(running.function, *running.random_inputs())
    jax.block_until_ready(out)
    jax.effects_barrier()
    products = sum(int(each.tiles.boundary.sum()) * each.heads for each in simulate(work, plan, COUNTING).rounds)
    assert ran[0] == products
    jax.block_until_ready(back(out))
    jax.effects_barrier()
    if tile == "8x8":  # reversed, ragged chunks are cut elsewhere
        assert ran[0] == products * 4


@pytest.mark.parametrize(
    ("plan", "change", "why"),
    [
        ("ring/striped/chunked@ring=8", {"decay": "0.9"}, "but striped spreads them"),
        ("lasp@ring=8", {"decay": "0.9", "mask": "full"}, "Try --decay 1"),
        ("lasp@ring=8", {"mask": "sliding:32"}, "a state cannot forget a key"),
        ("lasp@ring=8", {"documents": (7,)}, "of one document"),
        ("lasp/striped@ring=8", {}, "does not run on the striped layout"),
        ("ring/contiguous/xla@ring=8", {}, "Try --kernel chunked"),
        ("rsa@ring=8", {}, "rsa has no linear form"),
        ("ring/contiguous/chunked@ring=8", {"attention": "softmax"}, "Add --attention linear"),
        ("lasp/contiguous/xla@ring=8", {}, "lasp needs a linear kernel"),
    ],
)
def test_refusals_have_reasons(plan: str, change: dict, why: str) -> None:
    work, _ = planned("ring", 8, **change)
    reason = why_refused(parse_plan(plan), work, "cpu", DEVICES)
    assert why in str(reason)


def test_shares_of_the_heads_are_a_round_of_the_report_together() -> None:
    """A chain computes what a gather does, in seven parts: the map of tiles is the same."""
    maps = []
    for name in STATES:
        work, plan = planned(name, 8, passes="forward")
        case = results_case.Case(workload=work, plan=plan, target=read_target("v5e:2x4"), method="simulated")
        facts = with_static_facts(case, Hardware.load("v5e")).facts
        maps.append(facts and facts.tiles.per_round)
    assert maps[0] == maps[1] and len(maps[0]) == 8


def test_chunks_are_counted_once_a_state() -> None:
    """A shard of 6 chunks with its own keys: 5 go into the state, and 6 have scores; with earlier ones, all go in."""
    sharding = parse_plan("ring/contiguous/chunked@ring=2,tile=8")
    work, _ = planned("ring", 2)
    own, *earlier = simulate(replace(work, passes="forward"), sharding, COUNTING).rounds
    assert [int(kind[1]) for kind in own.tiles[:4]] == [5, 6, 0, 6]
    assert [int(kind[1]) for kind in earlier[0].tiles[:4]] == [6, 0, 0, 6]
    assert kernels["chunked"].family == "linear"


@pytest.mark.parametrize(("attention", "can"), [("softmax", False), ("linear", True)])
def test_all_schemes_are_those_of_the_attention(attention: str, can: bool) -> None:
    names = scheme_names("all", False, attention)
    assert [name in names for name in ("lasp", "lasp2", "rsa", "ring")] == [can, can, not can, True]
