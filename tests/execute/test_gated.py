"""Recurrences of every scheme that brings states round, against float64 token by token: values, all gradients with
those of the gates, bytes and rounds."""

import itertools
import math
import random
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stripectl.kernels.gated.kernel as gated
from stripectl.core.linear_attention import CONSTANT
from stripectl.core.plan import STATES, Plan, parse_plan
from stripectl.core.recurrence import recurrences
from stripectl.core.scheme import schemes
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import DTYPES, Workload
from stripectl.costs.cost_model import COUNTING, CostModel
from stripectl.errors import BadInput
from stripectl.execute.program import PlanProgram
from stripectl.execute.reference import max_relative_error, recurrence_by_token
from stripectl.execute.verification import FLOAT32, random_arrays, tolerance
from stripectl.hlo.module import collectives, parse_module, sent_bytes_by_opcode
from stripectl.results.tile_cost import TileCost
from stripectl.simulate.simulation import simulate
from tests.support.exact import DEVICES, cover_in_parts, device_cost, in_turns, relative_errors
from tests.support.jaxprs import jaxpr_bytes, jaxpr_transfers
from tests.support.recurrences import HEADS, KEYS, NAMES, VALUES, drawn, workload

SEND_STATES = [name for name in schemes.names() if schemes[name].sends_states]


class Case(NamedTuple):
    recurrence: str
    scheme: str
    mesh: str
    dtype: str
    key_heads: int
    tile: str
    states: str
    inputs: str
    seq_len: int | None  # None: 48 rows per device

    def __str__(self) -> str:
        return "-".join(map(str, self))

    @property
    def plan(self) -> Plan:
        states = f",states={self.states}" if schemes[self.scheme].sends_states else ""
        options = ",".join(filter(None, (self.mesh, f"tile={self.tile}")))
        return parse_plan(f"{self.scheme}/contiguous/gated@{options}{states}")

    @property
    def workload(self) -> Workload:
        usual = workload(self.recurrence, self.plan, self.dtype, key_heads=self.key_heads, batch=2)
        return replace(usual, seq_len=self.seq_len or usual.seq_len)


MESHES = [
    "ring=1",
    "ring=2",
    "ring=4",
    "ring=8",
    "ring=3",
    "ring=2,data=2",
    "ring=4,tensor=2",
    "ring=2,data=2,tensor=2",
]
TILES = ("8", "20", "48")  # divides a shard, does not, is it
INPUTS = ("usual", "gates near 0", "gates near 1", "correlated keys")
LENGTHS = (None, 516)  # of which the second divides over 1, 2, 3 and 4 shards, and no chunk divides a shard
OWN_MESHES = {"ulysses": ["ulysses=2", "ulysses=4,data=2"], "memory_efficient": [""]}
PRODUCT = [
    (name, scheme, mesh, inputs)
    for name, scheme, inputs in itertools.product(NAMES, [*SEND_STATES, *OWN_MESHES], INPUTS)
    for mesh in OWN_MESHES.get(scheme, MESHES)
]


def varied(turn: random.Random, name: str, scheme: str, mesh: str, inputs: str) -> Case:
    """A case of the product, in which the other choices take turns."""
    states = turn.choice(STATES) if scheme in SEND_STATES else STATES[0]
    fitting = [
        length for length in LENGTHS if not length or length % parse_plan(f"lasp@{mesh or 'ring=1'}").shards == 0
    ]
    others = turn.choice(DTYPES), turn.choice((HEADS, 4)), turn.choice(TILES), states
    return Case(name, scheme, mesh, *others, inputs, turn.choice(fitting))


TURN = random.Random(0)
EVERY = [varied(TURN, *each) for each in PRODUCT]


def held(case: Case) -> set:
    """The recurrence with the scheme, the tile and the inputs; the scheme with its meshes."""
    of_recurrence = {(case.recurrence, each) for each in (case.scheme, case.tile, case.inputs)}
    return of_recurrence | {(case.scheme, case.mesh), case.dtype, case.key_heads, case.states, case.seq_len}


def cost_of_case(case: Case) -> int:
    """A cost for `covering`: the number of devices, and as much again for the longer sequence as for most devices."""
    return device_cost(case) + (DEVICES * bool(case.seq_len))


COVER = cover_in_parts(EVERY, held, lambda case: {*case[:2], case.dtype}, cost_of_case)
COVERED = {case for case, _ in COVER}
VARIED = "mesh", "dtype", "key_heads", "tile", "states", "seq_len"  # take turns in the product
CASES = [
    *(pytest.param(case, marks=marks) for case, marks in COVER),
    *(
        pytest.param(case, marks=pytest.mark.full)
        for case in in_turns(EVERY, random.Random(0), VARIED)
        if case not in COVERED
    ),
]


def inputs_of(case: Case, program: PlanProgram) -> list[np.ndarray]:
    """Random arguments; gates of about e^-30 or 1 - 5e-7 per token, or keys of norm 1 whose cosines are about 0.8."""
    q, k, v, *rest = random_arrays(program)
    recurrence = recurrences[case.recurrence]
    change = {"gates near 0": 600.0, "gates near 1": 1e-5}.get(case.inputs, 1.0)
    if recurrence.gate != "none":
        rest[0] = rest[0] * np.float32(change)
    if case.inputs == "correlated keys":
        wide = k.astype(np.float32) * KEYS ** (0.5 if recurrence.delta else 0.0) + 2 * np.sign(np.arange(KEYS) - 7.5)
        k = (wide / np.linalg.norm(wide, axis=-1, keepdims=True)).astype(k.dtype)
    return [q, k, v, *rest]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_recurrence(case: Case) -> None:
    """Relative to the largest value at most 2e-6, or four times the error of float32 token by token where that is
    larger; in bfloat16 four roundings."""
    assert why_unsupported(case.plan, case.workload, "cpu", DEVICES) is None
    program = PlanProgram(case.workload, case.plan, jax.devices())
    arrays = inputs_of(case, program)
    *given, dout = arrays
    q, k, v, *gates = given
    exact, single = (
        recurrence_by_token(recurrences[case.recurrence], q, k, v, gates, dout, dtype)
        for dtype in (np.float64, np.float32)
    )
    found = program.function(*program.place(arrays))
    for value, order, reference, by_token in zip(found, program.result_orders, exact, single, strict=True):
        error = max_relative_error(np.asarray(value, np.float64)[:, :, np.argsort(order)], reference)
        usual = max_relative_error(by_token, reference)
        print(f"{case}: {error:.1e}, token by token {usual:.1e}")
        assert error <= max(tolerance(case.workload, case.plan), 4 * usual)


BALANCED = [(name, mesh) for name in NAMES for mesh in ("ring=2,data=2", "ring=3", "ring=4,tensor=2")]
MOST_KINDS = [("gdn", "ring=3"), ("gla", "ring=2,data=2")]


@pytest.mark.parametrize(
    ("name", "mesh"),
    [pytest.param(*case, marks=() if case in MOST_KINDS else pytest.mark.exactness) for case in BALANCED],
)
def test_zigzag_shards_are_two_runs_of_tokens(name: str, mesh: str) -> None:
    """Values and gradients, and twice the bytes of contiguous shards, in the program and on clocks."""
    plans = [parse_plan(f"lasp2/{layout}/gated@{mesh},tile=20") for layout in ("zigzag", "contiguous")]
    work = workload(name, plans[0], batch=2, key_heads=4)
    assert why_unsupported(plans[0], work, "cpu", DEVICES) is None
    assert max(relative_errors(work, plans[0])) <= FLOAT32
    sent = [sum(simulate(work, plan, COUNTING).sent.values()) for plan in plans]
    assert sent[0] == 2 * sent[1] == sum(jaxpr_bytes(PlanProgram(work, plans[0], jax.devices())).values())


def computed(name: str, arrays: list[np.ndarray], chunk: int) -> list[np.ndarray]:
    q, k, v, *gates, dout = arrays
    none = jnp.zeros((1, 4, KEYS, VALUES))

    @jax.jit
    def both(q, k, v, gates, dout):
        given = recurrences[name], q, k, v, gates
        return gated.outputs(*given, none, chunk), *gated.gradients(*given, dout, none, none, chunk)

    return list(both(q, k, v, gates, dout))


def check_accuracy(name: str, arrays: list[np.ndarray], chunk: int) -> None:
    """At most 2e-6 of the largest value, or four times what float32 token by token is off where that is more."""
    q, k, v, *gates, dout = arrays
    exact, single = (
        recurrence_by_token(recurrences[name], q, k, v, gates, dout, dtype) for dtype in (np.float64, np.float32)
    )
    for found, reference, by_token in zip(computed(name, arrays, chunk), exact, single, strict=True):
        error, usual = max_relative_error(found, reference), max_relative_error(by_token, reference)
        print(f"{name}: {error:.1e}, token by token {usual:.1e}")
        assert error <= max(FLOAT32, 4 * usual)


@pytest.mark.parametrize("gates", [1e3, 30.0, 1e-6], ids=["0", "near 0", "near 1"])
@pytest.mark.parametrize("name", [name for name in NAMES if recurrences[name].gate != "none"])
def test_gates_at_their_ends_lose_nothing(name: str, gates: float) -> None:
    """Of e^-1000 and less: nothing is left of a state, and nothing is infinite or no number."""
    check_accuracy(name, drawn(name, 40, gates=gates), 24)


@pytest.mark.exactness
def test_a_gate_of_0_costs_the_tokens_behind_it_no_digit() -> None:
    arrays = drawn("gdn", 64, gates=1e-3)
    arrays[3][:, :, 20] = -1e4
    check_accuracy("gdn", arrays, 64)


@pytest.mark.exactness
@pytest.mark.parametrize("chunk", [16, 64, 256])
@pytest.mark.parametrize("name", ["deltanet", "gdn", "kda"])
def test_correlated_keys_are_as_exact_as_token_by_token(name: str, chunk: int) -> None:
    check_accuracy(name, drawn(name, 512, gates=1e-3, correlated=2.0), chunk)


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_long_sequences(name: str) -> None:
    check_accuracy(name, drawn(name, 4096, gates=1e-2, correlated=0.5), 64)


@pytest.mark.parametrize("name", ["mamba2", "gla", "kda"])  # a number, a diagonal, a matrix
def test_maps_compose(name: str) -> None:
    """A shard's map is that of its halves, and the transposed one the transpose."""
    recurrence, (q, k, v, *gates, dout) = recurrences[name], map(jnp.asarray, drawn(name, 40))
    halves = [[x[:, :, part] for x in (k, v, *gates)] for part in (slice(0, 20), slice(20, 40))]
    first, second = (gated.map_of(recurrence, k, v, gates, 8) for k, v, *gates in halves)
    whole = gated.map_of(recurrence, k, v, gates, 16)
    assert max_relative_error(gated.compose_maps(recurrence, second, first, KEYS), np.asarray(whole)) < 1e-6
    assert whole.shape == (1, 4, recurrence.map_elements(KEYS, VALUES))
    a, _ = gated.split_map(recurrence, whole, KEYS)
    transposed, _ = gated.split_map(recurrence, gated.transposed_map_of(recurrence, q, k, dout, gates, 16), KEYS)
    expected = np.swapaxes(a, -1, -2) if recurrence.map_kind == "matrix" else a
    assert max_relative_error(transposed, np.asarray(expected)) < 1e-6


SENT = {  # of a forward pass over N = 8, in arrays of H E elements of every head: what each shard says of itself is 1
    "lasp": lambda extra: 7,
    "lasp2": lambda extra: 7 * (1 + extra),
    "linear_scan": lambda extra: 2 * (1 + extra) + 1,
}


@pytest.mark.parametrize("scheme", SEND_STATES)
@pytest.mark.parametrize("name", NAMES)
def test_bytes_and_rounds_are_constant(name: str, scheme: str) -> None:
    """A chain sends states alone in N - 1 hops, a gather N - 1 maps at once, a scan ceil(log2 N) rounds, of which the
    last is a state; as much again backward, at any length."""
    state = KEYS * VALUES
    extra = {"number": 1, "diagonal": KEYS, "matrix": KEYS**2}[recurrences[name].map_kind] / state
    for seq_len in (2**11, 2**16, 2**22):
        plan = parse_plan(f"{scheme}/contiguous/gated@ring=8,tile=64")
        found = simulate(workload(name, plan, seq_len=seq_len, dtype="bfloat16"), plan, COUNTING)
        assert {size for _, _, size in found.transfers} == {4}
        assert sum(found.transfers.values()) == 2 * {"lasp": 7, "lasp2": 1, "linear_scan": 3}[scheme]
        assert sum(found.sent.values()) == 2 * SENT[scheme](extra) * state * HEADS * 4


@pytest.mark.parametrize("shards", [2, 3, 5, 8])
def test_a_scan_has_logarithmic_depth(shards: int) -> None:
    plan = parse_plan(f"linear_scan/contiguous/gated@ring={shards},tile=64")
    work = workload("gdn", plan, passes="forward")
    traced = PlanProgram(work, plan, jax.devices())
    rounds = [nbytes for _, _, nbytes, _ in jaxpr_transfers(traced)]
    whole, state = (4 * HEADS * size for size in (recurrences["gdn"].map_elements(KEYS, VALUES), KEYS * VALUES))
    assert rounds == [whole] * (math.ceil(math.log2(shards)) - 1) + [state]


@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize("scheme", [*SEND_STATES, "ulysses"])
@pytest.mark.parametrize("name", ["mamba2", "gla", "kda"])
def test_simulated_bytes_are_the_programs(name: str, scheme: str, states: str) -> None:
    axis = schemes[scheme].axes[0]
    plan = parse_plan(f"{scheme}/contiguous/gated@{axis}=4,tensor=2,tile=16")
    plan = replace(plan, states=states if schemes[scheme].sends_states else STATES[0])
    work = workload(name, plan, dtype="bfloat16", key_heads=8)
    assert simulate(work, plan, COUNTING).sent == jaxpr_bytes(PlanProgram(work, plan, jax.devices()))


@pytest.mark.parametrize("scheme", SEND_STATES)
def test_compiled_bytes_are_the_simulated(scheme: str) -> None:
    plan = parse_plan(f"{scheme}/contiguous/gated@ring=4,tile=48")
    work = workload("gdn", plan)
    compiled = PlanProgram(work, plan, jax.devices()).compile({}).as_text()
    sent = sent_bytes_by_opcode(collectives(parse_module(compiled)))
    assert sum(sent.values()) == sum(simulate(work, plan, COUNTING).sent.values())


@pytest.mark.parametrize("scheme", ["lasp", "lasp2", "linear_scan"])
def test_kept_states_cost_memory_and_save_a_way_round(scheme: str) -> None:
    plan = parse_plan(f"{scheme}/contiguous/gated@ring=8,tile=64")
    work = workload("kda", plan, seq_len=2**14)
    kept, again = (simulate(work, replace(plan, states=states), COUNTING) for states in STATES)
    assert 3 * sum(kept.sent.values()) == 2 * sum(again.sent.values())


@pytest.mark.parametrize(("torus", "seconds"), [(False, 3.0), (True, 1.0 + 2.0 + 4.0)])
def test_a_scan_crosses_the_links_between_on_a_torus(torus: bool, seconds: float) -> None:
    """Latency alone: three rounds on a switch; on a ring of links they cross 1, 2 and 4 of them, as many as 7 hops."""
    machine = CostModel(TileCost(), TileCost(), hop_latency_s=1.0, torus=torus)
    plan = parse_plan("linear_scan/contiguous/gated@ring=8,tile=64")
    assert simulate(workload("gdn", plan, passes="forward"), plan, machine).seconds == seconds


@pytest.mark.parametrize(
    ("plan", "change", "why"),
    [
        ("ring/striped/gated@ring=8", {}, "in an order that depends on the device"),
        ("lasp/contiguous/chunked@ring=8", {}, "Try --kernel gated"),
        ("lasp/contiguous/gated@ring=8", {"recurrence": CONSTANT, "v_head_dim": None}, "Try --kernel chunked"),
        ("lasp/contiguous/gated@ring=8", {"mask": "full"}, "Try --mask causal"),
        ("lasp/contiguous/gated@ring=8,tile=16x8", {}, "Try tile=8"),
        ("lasp2/zigzag/chunked@ring=8", {"recurrence": CONSTANT, "v_head_dim": None}, "Try --layout contiguous"),
        ("linear_scan/contiguous/chunked@ring=8", {"recurrence": CONSTANT, "v_head_dim": None, "mask": "full"}, "lasp"),
        ("ulysses/contiguous/gated@ulysses=8", {"key_heads": 4}, "4 heads of keys cannot be divided"),
        ("lasp/contiguous/gated@ring=2,tensor=4", {"key_heads": 2}, "key_heads cannot be divided over tensor=4"),
    ],
)
def test_refusals_have_reasons(plan: str, change: dict, why: str) -> None:
    asked = parse_plan(plan)
    reason = why_unsupported(asked, workload("gdn", asked, **change), "cpu", DEVICES)
    assert why in str(reason)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"recurrence": "gdm"}, "Did you mean gdn"),
        ({"decay": "0.9"}, "computes its gates from the input"),
        ({"key_heads": 3}, "must divide the 8 heads"),
        ({"kv_heads": 2}, "Try --kv-heads 8"),
        ({"recurrence": CONSTANT, "key_heads": 4, "v_head_dim": None}, "Add --recurrence gdn"),
        ({"attention": "softmax", "v_head_dim": None}, "Add --attention linear"),
    ],
)
def test_workloads_that_make_no_sense_are_refused(change: dict, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        workload("gdn", parse_plan("lasp@ring=2"), **change)


def test_inputs_are_such_as_a_recurrence_has() -> None:
    plan = parse_plan("lasp/contiguous/gated@ring=2,tile=16")
    program = PlanProgram(workload("kda", plan), plan, jax.devices())
    for arrays in (random_arrays(program), program.random_inputs()):
        _, k, _, log_gate, write, _ = map(np.asarray, arrays)
        assert np.allclose(np.linalg.norm(k, axis=-1), 1, atol=1e-5)
        assert (log_gate < 0).all() and (write > 0).all() and (write < 1).all()
