"""Attention with sinks and with a soft cap of scores against float64, values and gradients: every scheme and kernel of
softmax attention takes sinks, and every kernel that can takes a soft cap."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from stripectl import positions, sequence_parallel_attention
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.scheme import schemes
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import Workload
from stripectl.errors import BadInput
from stripectl.execute.attention import join_sinks
from stripectl.execute.program import partition
from stripectl.execute.reference import dense, max_relative_error
from stripectl.execute.verification import FLOAT32
from tests.support.exact import DEVICES, check, in_parts, legal, on_devices

WORK = Workload(
    seq_len=96, batch=2, heads=8, kv_heads=4, head_dim=16, dtype="float32", passes="forward-backward", sinks=True
)
BOTH = replace(WORK, soft_cap=0.7)
SOFTMAX = [name for name in schemes.names() if {"softmax", "scores"} & {*schemes[name].kernel_families}]


def test_the_reference_has_the_derivatives_of_its_values() -> None:
    """By differences, for each of q, k, v and sinks."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in ((1, 2, 6, 4), (1, 1, 6, 4), (1, 1, 6, 4), (1, 2, 1))]
    dout = rng.standard_normal((1, 2, 6, 4))

    def found(q: np.ndarray, k: np.ndarray, v: np.ndarray, sinks: np.ndarray) -> tuple[np.ndarray, ...]:
        return dense(q, k, v, dout, WORK.window, None, sinks, 0.7)

    gradients = found(*arrays)[1:]
    for at, gradient in enumerate(gradients):
        way = rng.standard_normal(arrays[at].shape)
        ends = list[np.ndarray]()
        for step in (1e-6, -1e-6):
            moved = [array + step * way if i == at else array for i, array in enumerate(arrays)]
            ends.append(found(*moved)[0])
        assert ((ends[0] - ends[1]) * dout).sum() / 2e-6 == pytest.approx((gradient * way).sum(), rel=1e-6)
    q, *natural = arrays[:3]
    k, v = (np.concatenate([x, np.zeros_like(x[:, :, :1])], 2) for x in natural)
    whole = replace(WORK, mask="full").window
    as_key = dense(q, k, v, dout, whole, None, None, 0.7)[0]  # a key of zeros has the score 0
    as_sink = dense(q, natural[0], natural[1], dout, whole, None, np.zeros((1, 2, 1)), 0.7)[0]
    assert np.allclose(as_key, as_sink)


def plans() -> list[tuple[Plan, Workload]]:
    """Each scheme alone, over several devices in each layout, and beside other axes."""
    found = list[tuple[Plan, Workload]]()
    for name in SOFTMAX:
        training = schemes[name].query_sharding == "all"
        work = BOTH if training else replace(BOTH, passes="forward", query_len=48)
        each = [
            on_devices(name, size, **others) for size, others in ((1, {}), (DEVICES, {}), (2, {"data": 2, "tensor": 2}))
        ]
        layouts = [replace(each[1], layout=layout) for layout in ("contiguous", "striped", "zigzag")]
        masked = [(plan, replace(work, mask="sliding:20", dtype="bfloat16")) for plan in each]
        found += [case for case in [*((plan, work) for plan in (*each, *layouts)), *masked] if legal(*case)]
    return list(dict.fromkeys(found))


def parts_of(case: tuple[Plan, Workload]) -> set:
    plan, work = case
    return {plan.scheme, plan.layout, plan.product(("data", "tensor")), (work.dtype, work.mask)}


CASES = [
    pytest.param(*case, marks=marks, id=f"{case[0]}-{case[1].dtype}") for case, marks in in_parts(plans(), parts_of)
]


@pytest.mark.parametrize(("plan", "work"), CASES)
def test_equals_dense_attention(plan: Plan, work: Workload) -> None:
    check(work, plan)


@pytest.mark.parametrize("change", [{"soft_cap": None}, {"sinks": False}, {"documents": (40, 9)}, {"v_head_dim": 24}])
def test_each_alone_and_with_documents_and_other_heads(change: dict) -> None:
    check(replace(BOTH, **change), parse_plan("ring/zigzag/xla@ring=2,tile=8x6"))


def test_a_sink_that_is_larger_than_all_scores_takes_the_whole_output() -> None:
    """exp of a sink of 200 is no float32."""
    out, lse = join_sinks(jnp.ones((1, 2, 3, 4)), jnp.zeros((1, 2, 3)), jnp.array([[[200.0], [-200.0]]], jnp.float32))
    assert np.asarray(out)[0, :, 0, 0].tolist() == [0, 1] and np.asarray(lse)[0, :, 0].tolist() == [200, 0]


@pytest.mark.parametrize("kernel", ["splash", "pallas_tpu", "pallas_bounded", "pallas_ring"])
def test_kernels_for_tpus_cap_scores(kernel: str) -> None:
    """Interpreted on a CPU. pallas_bounded's bound holds, because a cap makes no score larger."""
    work = replace(BOTH, seq_len=512, heads=2, kv_heads=1, batch=1)
    check(work, parse_plan(f"ring/striped/{kernel}@ring=2,tile=128"))


def test_one_call_of_a_library_takes_both() -> None:
    check(replace(BOTH, seq_len=256, heads=2, kv_heads=1), parse_plan("ulysses/contiguous/splash@ulysses=1,tile=128"))


@pytest.mark.parametrize(
    ("kernel", "kind", "other"),
    [("cudnn", "gpu", "xla"), ("tokamax_gpu", "gpu", "xla"), ("tokamax", "tpu", "pallas_tpu")],
)
def test_kernels_that_cannot_refuse_a_soft_cap(kernel: str, kind: str, other: str) -> None:
    plan = parse_plan(f"ring/striped/{kernel}@ring=2")
    work = replace(BOTH, seq_len=4096, head_dim=128, dtype="bfloat16")
    assert f"{kernel} computes no soft cap of scores. Try --kernel {other}." in str(why_unsupported(plan, work, kind))
    assert "soft cap" not in str(why_unsupported(plan, replace(work, soft_cap=None), kind))


def test_linear_attention_has_neither() -> None:
    linear = Workload(seq_len=64, heads=2, kv_heads=2, head_dim=8, attention="linear")
    for change in ({"sinks": True}, {"soft_cap": 30.0}):
        with pytest.raises(BadInput, match="linear attention has no softmax"):
            replace(linear, **change)


@pytest.mark.parametrize(
    ("field", "value"), [("sinks", 1), ("sinks", None), ("soft_cap", 0), ("soft_cap", "50"), ("soft_cap", float("nan"))]
)
def test_wrong_values_are_refused(field: str, value: object) -> None:
    with pytest.raises(BadInput, match=field):
        replace(WORK, **{field: value})


LIBRARY = ["ring/zigzag@ring=2,tensor=2", "ulysses/contiguous@ulysses=2,tensor=2", "megatron_sp/contiguous@tensor=4"]


@pytest.mark.parametrize(
    "plan", [*LIBRARY, pytest.param("all_gather/striped@data=2,ring=4", marks=pytest.mark.exactness)]
)
@pytest.mark.parametrize("inside", [False, pytest.param(True, marks=pytest.mark.exactness)])
def test_the_library_takes_sinks_cap_and_scale(plan: str, inside: bool) -> None:
    """With a gradient of sinks; inside a shard_map each device has its part of it."""
    rng, order, axes = np.random.default_rng(0), positions(plan, 96), parse_plan(plan).axes
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), (AxisType.Auto,) * len(axes))
    q, k, v, dout = (rng.standard_normal((2, 96, n, 16), np.float32) for n in (8, 4, 4, 8))
    sinks, scale = rng.standard_normal(8).astype(np.float32), 0.4

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array) -> jax.Array:
        where, own = (plan, None) if inside else (plan.split("@")[0], mesh)
        return sequence_parallel_attention(q, k, v, where, own, sinks=sinks, soft_cap=0.7, scale=scale)

    if inside:
        spec = partition(parse_plan(plan))
        each = PartitionSpec(spec[0], spec[2], spec[1])
        given = each, each, each, PartitionSpec(spec[1])
        attend = jax.shard_map(attend, mesh=mesh, in_specs=given, out_specs=each, check_vma=False)
    out, backward = jax.vjp(jax.jit(attend), *(x[:, order] for x in (q, k, v)), sinks)
    *found, dsinks = out, *backward(jnp.asarray(dout[:, order]))
    factor = scale * 16**0.5
    natural = [np.asarray(q * factor, np.float64), k, v, dout]
    q64, k64, v64, dout64 = (np.swapaxes(x, 1, 2) for x in natural)
    expected = dense(q64, k64, v64, dout64, WORK.window, None, sinks[None, :, None], 0.7)
    for value, reference, times in zip(found, expected, (1, factor, 1, 1), strict=False):
        natural_order = np.swapaxes(np.asarray(value)[:, np.argsort(order)], 1, 2)
        assert max_relative_error(natural_order, times * reference) < FLOAT32
    assert max_relative_error(np.asarray(dsinks), expected[4][0, :, 0]) < FLOAT32
