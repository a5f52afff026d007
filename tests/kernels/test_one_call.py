"""Where one call of a library's kernel holds all scores, its result is the result of the plan: nothing is merged, in
what runs as in what is simulated."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stripectl.core.attend import PartialResult
from stripectl.core.kernel import kernels
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import COUNTING
from stripectl.execute.one_call import OneCallAttend
from stripectl.execute.program import PlanProgram
from stripectl.hardware.profile import Hardware
from stripectl.kernels.splash import causal
from stripectl.simulate.simulation import simulate
from tests.support.cudnn import attend, differentiate
from tests.support.exact import check
from tests.support.jaxprs import walk
from tests.support.kernels import HEAD_DIM, HEADS, KV_HEADS, differentiated
from tests.support.machines import datasheet_machine

BOTH = "forward-backward"
WORK = Workload(seq_len=512, heads=4, kv_heads=2, head_dim=64, passes=BOTH)
TILE = Tile(128, 128)
BEHIND = {"passes": "forward", "query_len": 1}

ONE = [  # (plan, workload): the kernel is called once on each device, for all scores
    ("memory_efficient/contiguous/cudnn", {}),
    ("ring/contiguous/cudnn@ring=1", {}),
    ("ring/striped/cudnn@ring=1", {"mask": "full"}),
    ("ring/striped/cudnn@tensor=2,ring=1", {}),
    ("double_ring/contiguous/cudnn@ulysses=2", {}),
    ("usp/contiguous/cudnn@ulysses=2", {"mask": "full"}),
    ("ulysses/contiguous/cudnn@ulysses=4", {}),
    ("megatron_sp/contiguous/cudnn@tensor=2", {}),
    ("all_gather/contiguous/cudnn@ring=1", {}),
    ("token_ring/contiguous/cudnn@ring=1", {}),
    ("dist_flash/contiguous/cudnn@ring=1", {}),
    ("pass_kv/contiguous/cudnn@ring=1", BEHIND),
    ("pass_q/contiguous/cudnn@ring=1", BEHIND),
]
SEVERAL = [  # it is called for several rectangles, or for parts of the keys
    ("ring/zigzag/cudnn@ring=1", {}),
    ("ring/striped/cudnn@ring=2", {}),
    ("bidirectional/contiguous/cudnn@ring=1", {"mask": "full"}),
    ("all_gather/contiguous/cudnn@ring=1,parts=2", {}),
    ("usp/contiguous/cudnn@ring=2,ulysses=2", {}),
    ("pass_kv/contiguous/cudnn@ring=1", BEHIND | {"query_len": 64}),
]
EVERY = [*ONE, *SEVERAL, ("tree/contiguous/cudnn@ring=1", BEHIND)]
DELTA = {"mul", "convert_element_type"}  # an output times its gradient, which the compiler drops if nothing reads it


@pytest.fixture
def stand_in(monkeypatch) -> None:
    for name, function in causal.causal_passes("cudnn", attend, differentiate)._asdict().items():
        monkeypatch.setattr(kernels["cudnn"].load(), name, function)


def case_of(plan: str, change: dict) -> tuple[Workload, Plan]:
    found = parse_plan(plan)
    work = replace(WORK, **change)
    assert why_unsupported(found, work, "gpu") is None
    return work, replace(found, tile=TILE)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("plan", "change"), EVERY)
def test_equals_dense_attention(stand_in, plan: str, change: dict, dtype: str) -> None:
    work, found = case_of(plan, change)
    check(replace(work, dtype=dtype), found)


@pytest.mark.parametrize(("rows", "mask"), [(256, "causal"), (256, "full"), (200, "full")])
def test_splash_equals_dense_attention(rows: int, mask: str) -> None:
    """200 rows are padded, so that a full mask is a mask too."""
    work = replace(WORK, seq_len=rows, head_dim=32, mask=mask)
    check(work, parse_plan("ring/contiguous/splash@ring=1,tile=128"))
    check(replace(work, dtype="float32"), parse_plan("ulysses/contiguous/splash@ulysses=2,tile=128"))


def widened(work: Workload, plan: Plan) -> set[str]:
    """The operations of the program that make float32 arrays as large as a device's output, except for delta."""
    program = PlanProgram(work, plan, jax.devices())
    size = work.batch * work.queries * work.heads * work.value_dim // plan.devices
    return {
        name
        for name, equation, _ in walk(jax.make_jaxpr(program.function)(*program.shapes).jaxpr)
        for out in equation.outvars
        if getattr(out.aval, "dtype", None) == jnp.float32 and math.prod(out.aval.shape) == size
    } - DELTA


def moved_bytes(work: Workload, plan: Plan) -> float:
    """Bytes that a device of the simulation reads and writes outside of tiles, for each element of its output."""
    machine = datasheet_machine(Hardware.load("h200"), work, TILE, kernel="cudnn")
    seconds = sum((end - start).max() for start, end in simulate(work, plan, machine).touched)
    return seconds * machine.memory_bytes_per_s / (work.batch * work.queries * work.heads * work.value_dim)


@pytest.mark.parametrize(("plan", "change"), ONE)
def test_one_call_is_final_in_the_program(plan: str, change: dict) -> None:
    work, found = case_of(plan, change)
    assert not widened(work, found)
    assert not widened(replace(work, passes="forward"), found)


@pytest.mark.parametrize(
    ("plan", "change"), [each for each in EVERY if "ring=1" in each[0] and "tensor" not in each[0]]
)
def test_a_simulation_moves_bytes_to_merge_where_the_program_merges(plan: str, change: dict) -> None:
    """A result is merged in 10 bytes for each of its elements."""
    work, found = case_of(plan, change)
    for each in {work, replace(work, passes="forward")}:
        assert (moved_bytes(each, found) >= 10) == bool(widened(each, found))


def test_a_simulated_call_moves_what_the_collectives_around_it_move() -> None:
    """Packing and unpacking read and write q, k, v and the output twice, 8 bytes per element; k and v are repeated."""
    work, plan = case_of("ulysses/contiguous/cudnn@ulysses=4", {"passes": "forward"})
    assert moved_bytes(work, plan) * 4 == pytest.approx(4 * 8)


def test_a_simulated_plan_holds_its_arguments_and_its_results() -> None:
    """q, k, v, dout and the output, dq, dk, dv, in bfloat16: as the compiler of an H200 says, but for 2 MiB of sums and
    without the workspace of the library."""
    work = Workload(seq_len=2**15, heads=16, kv_heads=16, head_dim=128, passes=BOTH)
    assert simulate(work, parse_plan("ring/contiguous/cudnn@ring=1,tile=128"), COUNTING).peak_bytes == 2**30
    forward = replace(work, passes="forward")
    assert simulate(forward, parse_plan("ring/contiguous/cudnn@ring=1,tile=128"), COUNTING).peak_bytes == 2**29


def test_splash_holds_sums_in_all_lanes() -> None:
    """libtpu 0.0.42.1 reports 897.5 MiB: the arrays, the scaled queries, and 256 MiB of log-sum-exps."""
    work = Workload(seq_len=2**15, heads=16, kv_heads=16, head_dim=128)
    peak = simulate(work, parse_plan("ring/contiguous/splash@ring=1,tile=1024"), COUNTING).peak_bytes
    assert peak == (4 * 128 + 128 + 256) * 2**20


def test_results_of_whole_calls_merge_and_their_sums_have_gradients(stand_in) -> None:
    """A scheme of another author may attend twice on one shard. The same keys twice add log(2) to each sum."""
    rows, rng = 256, np.random.default_rng(0)
    work = Workload(seq_len=rows, batch=2, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, dtype="float32")
    plan = parse_plan("ring/contiguous/cudnn@ring=1,tile=128")
    bound = OneCallAttend(kernels["cudnn"].load(), sequence_sharding(work, plan), plan.tiles)
    q, dout = (rng.standard_normal((2, HEADS, rows, HEAD_DIM), np.float32) for _ in range(2))
    k, v = (rng.standard_normal((2, KV_HEADS, rows, HEAD_DIM), np.float32) for _ in range(2))
    dlse = rng.standard_normal((2, HEADS, rows), np.float32)

    def once(q, k, v):
        state = bound(q, (k, v), 0, 0, into=bound.empty(q))
        assert isinstance(state, PartialResult) and bound.merge(None, state) is state
        return tuple(bound.finish(state))

    def merged(q, k, v):
        state = bound(q, (k, v), 0, 0, into=bound.empty(q))
        return bound.finish(bound.merge(state, bound.partial(q, state)))

    def again(q, k, v):
        return bound.finish(bound(q, (k, v), 0, 0, into=bound(q, (k, v), 0, 0, into=bound.empty(q))))

    keep = np.broadcast_to(np.tri(rows, dtype=bool), (2, HEADS, rows, rows))
    expected, references = jax.tree.map(np.asarray, differentiated(q, k, v, keep, dout, dlse))
    for function, more in ((once, 0), (merged, math.log(2)), (again, math.log(2))):
        found, transpose = jax.vjp(jax.jit(function), q, k, v)
        assert np.allclose(found[0], expected[0], atol=2e-6)
        assert np.allclose(found[1], expected[1] + more, atol=2e-6)
        for gradient, reference in zip(transpose((dout, dlse)), references, strict=True):
            assert np.max(np.abs(gradient - reference)) <= 4e-6 * np.max(np.abs(reference))
