"""The library function: inside a jit, a shard_map and a gradient of one's own, against dense attention."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from stripectl import Packing, padded_length, positions, rotary, sequence_parallel_attention
from stripectl.core.layout import layouts, parse_mask
from stripectl.core.plan import parse_plan
from stripectl.core.recurrence import recurrences
from stripectl.core.scheme import schemes
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import Workload
from stripectl.errors import BadInput
from stripectl.execute.program import partition
from stripectl.execute.reference import dense, max_relative_error, recurrence_by_token, recurrent
from stripectl.execute.verification import FLOAT32
from tests.support.exact import on_devices
from tests.support.plans import mask_of

BATCH, LENGTH, HEADS, KV_HEADS, HEAD_DIM = 2, 96, 4, 2, 16


def mesh_of(sizes: Mapping[str, int], axis_type: AxisType = AxisType.Auto) -> jax.sharding.Mesh:
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), (axis_type,) * len(sizes))


def arrays(dtype: str = "float32") -> list[jax.Array]:
    """q, k, v and a cotangent in natural order."""
    rng, heads = np.random.default_rng(0), (HEADS, KV_HEADS, KV_HEADS, HEADS)
    return [jnp.asarray(rng.standard_normal((BATCH, LENGTH, n, HEAD_DIM), np.float32), dtype) for n in heads]


def errors(attend, order, mask: str, placed=jnp.asarray, out=jnp.asarray, starts=None, linear=False) -> list[float]:
    """Of the output and the gradients of attend(q, k, v), jitted, that takes the layout's order."""
    given = arrays()

    @jax.jit
    def both(q, k, v, dout):
        out, backward = jax.vjp(attend, q, k, v)
        return out, *backward(dout)

    *inputs, cotangent = (x[:, order] for x in given)
    found = both(*map(placed, inputs), out(cotangent))
    q, k, v, dout = (x.swapaxes(1, 2) for x in given)
    if linear:
        expected = recurrent(q, k, v, dout, np.zeros(KV_HEADS))
    else:
        expected = dense(q, k, v, dout, parse_mask(mask), starts)
    back = np.argsort(order)
    return [max_relative_error(np.asarray(x)[:, back].swapaxes(1, 2), y) for x, y in zip(found, expected, strict=True)]


QUICK = ("ring", "all_gather", "ulysses", "megatron_sp", "lasp2", "usp/contiguous/chunked")


def laid(name: str) -> str:
    """A scheme with its default layout; a whole plan as it is."""
    return name if "/" in name else f"{name}/{schemes[name].default_layout}"


TRAINED = [name for name in schemes.names() if schemes[name].query_sharding == "all"]


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        *(
            pytest.param(
                laid(name), mask_of(parse_plan(name).scheme), marks=() if name in QUICK else pytest.mark.exactness
            )
            for name in [*TRAINED, "usp/contiguous/chunked"]
        ),
        *((f"ring/{layout}", "full") for layout in layouts.names()),
    ],
)
def test_values_and_gradients_inside_a_jit(text: str, mask: str) -> None:
    mesh = mesh_of(on_devices(text.partition("/")[0], 2, data=2, tensor=2).axes)

    def attend(q, k, v):
        return sequence_parallel_attention(q, k, v, text, mesh, mask=mask)

    plan = parse_plan(text)
    linear = plan.kernel == "chunked" or schemes[plan.scheme].sends_states
    assert max(errors(attend, positions(text, LENGTH, mesh), mask, linear=linear)) < FLOAT32


@pytest.mark.parametrize(
    ("axis_type", "lie"),
    [
        pytest.param(kind, lie, marks=() if lie == quick else pytest.mark.exactness)
        for kind, quick in ((AxisType.Auto, ("ring", "tensor")), (AxisType.Explicit, ()))
        for lie in (("ring", "tensor"), ("ring",), ())
    ],
)
def test_arrays_that_lie_on_the_mesh_in_any_way(axis_type: AxisType, lie: tuple[str, ...]) -> None:
    mesh = mesh_of({"ring": 4, "tensor": 2, "data": 1}, axis_type)
    given, natural = (NamedSharding(mesh, PartitionSpec(None, *axes)) for axes in (lie, ("ring", "tensor")))
    plan = parse_plan("ring/zigzag@ring=4,tensor=2,tile=8")

    def attend(q, k, v):
        return sequence_parallel_attention(q, k, v, plan, mesh)

    order = positions(plan, LENGTH)
    inputs, cotangent = (partial(jax.device_put, device=each) for each in (given, natural))
    assert max(errors(attend, order, "causal", inputs, cotangent)) < FLOAT32


PACKED = (
    "ring/zigzag@ring=4,tensor=2",
    "usp/striped@ring=2,ulysses=2",
    "rsa/contiguous@ring=2",
    "double_ring/striped@outer=2,inner=2",
)


@pytest.mark.parametrize("plan", PACKED[:3])
def test_packed_documents_under_a_window(plan: str) -> None:
    mesh, starts = mesh_of(parse_plan(plan).axes), np.array([0, 17, 60])
    filled = jnp.array([[0, 17, 60, LENGTH]] * BATCH, jnp.int32)

    def attend(q, k, v):
        return sequence_parallel_attention(q, k, v, plan, mesh, mask="sliding:21", documents=filled)

    found = errors(attend, positions(plan, LENGTH, mesh), "sliding:21", starts=starts)
    assert max(found) < FLOAT32


@pytest.mark.parametrize(
    "text", ["ring/striped@ring=4,tensor=2", "megatron_sp/contiguous@tensor=2", "double_ring/zigzag@outer=2,inner=2"]
)
def test_inside_a_shard_map_of_ones_own(text: str) -> None:
    plan = parse_plan(text)
    mesh = mesh_of(plan.axes)
    batch, heads, rows, _ = partition(plan)
    spec = PartitionSpec(batch, rows, heads)

    def attend(q, k, v):
        inner = jax.shard_map(
            lambda q, k, v: sequence_parallel_attention(q, k, v, plan, None),
            mesh=mesh,
            in_specs=(spec,) * 3,
            out_specs=spec,
            check_vma=False,
        )
        return inner(q, k, v)

    assert max(errors(attend, positions(plan, LENGTH), "causal")) < FLOAT32


def test_the_output_has_the_dtype_and_the_sharding_of_the_queries() -> None:
    mesh = mesh_of({"ring": 4, "tensor": 2})
    sharding = NamedSharding(mesh, PartitionSpec(None, ("ring",), ("tensor",)))
    q, k, v, _ = (jax.device_put(x, sharding) for x in arrays("bfloat16"))
    out = jax.jit(lambda q, k, v: sequence_parallel_attention(q, k, v, "ring/striped", mesh))(q, k, v)
    assert out.dtype == q.dtype and out.shape == q.shape and out.sharding.is_equivalent_to(sharding, 4)


def test_positions_are_the_layouts() -> None:
    assert list(positions("ring/striped@ring=4", 8)) == [0, 4, 1, 5, 2, 6, 3, 7]
    assert list(positions("ring/zigzag", 8, mesh_of({"ring": 2}))) == [0, 1, 6, 7, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("plan", "sizes", "why"),
    [
        ("ring/striped@ring=2", {"ring": 4}, "ring/striped@ring=2 is not for the mesh ring=4"),
        ("ring/zigzag", {"ring": 4, "model": 2}, "the mesh has an axis model"),
        ("ring/zigzag", {"tensor": 8}, "4 heads cannot be divided over tensor=8"),
        ("ring/striped", None, "names no sizes and there is no mesh"),
        ("ring/striped@ring=4", None, "the surrounding shard_map has no axis ring"),
        ("ring/striped@ring=2,tile=999", {"ring": 2}, "larger than the 48 rows"),
        ("ring", {"ring": 2}, "the plan ring names no layout. Write ring/striped and .* text ring/contiguous"),
        ("rong", {"ring": 2}, "Did you mean ring"),
    ],
)
def test_refusals_have_reasons(plan: str, sizes: dict[str, int] | None, why: str) -> None:
    q, k, v, _ = arrays()
    with pytest.raises(BadInput, match=why):
        sequence_parallel_attention(q, k, v, plan, mesh_of(sizes) if sizes else None)


def documents_by(kind: str, plan: str, lengths: Sequence[Sequence[int]]) -> dict[str, Any]:
    packing = Packing.from_lengths(lengths, LENGTH)
    if kind == "documents":
        return {"documents": packing.starts}
    return {"segment_ids": packing.segment_ids[:, positions(plan, LENGTH)]}


DIFFERENT = [[17, 43], [50, 1, 45]]  # documents of the sequences of a batch


def test_segment_ids_of_sequences_with_different_documents() -> None:
    plan, (q, k, v, _) = PACKED[1], arrays()
    mesh = mesh_of(parse_plan(plan).axes)
    attend = jax.jit(partial(sequence_parallel_attention, plan=plan, mesh=mesh))
    order = positions(plan, LENGTH)
    found = attend(*(x[:, order] for x in (q, k, v)), **documents_by("segment_ids", plan, DIFFERENT))
    q, k, v, found = (np.swapaxes(x, 1, 2) for x in (q, k, v, found[:, np.argsort(order)]))
    for i, starts in enumerate(([0, 17, 60], [0, 50, 51])):
        one = slice(i, i + 1)
        expected, *_ = dense(q[one], k[one], v[one], q[one], parse_mask("causal"), np.array(starts))
        assert max_relative_error(found[one], expected) < FLOAT32


@pytest.mark.exactness
@pytest.mark.parametrize("plan", [*PACKED, "megatron_sp/contiguous@tensor=2"])
def test_documents_and_segment_ids_say_the_same(plan: str) -> None:
    """Under a trace and outside it, with the mesh and inside a shard_map."""
    mesh, (q, k, v, _) = mesh_of(parse_plan(plan).axes), arrays()
    own = {kind: documents_by(kind, plan, DIFFERENT) for kind in ("documents", "segment_ids")}
    known, by_start, by_id = (
        jax.jit(partial(sequence_parallel_attention, plan=plan, mesh=mesh, **fixed))(q, k, v, **traced)
        for fixed, traced in ((own["documents"], {}), ({}, own["documents"]), ({}, own["segment_ids"]))
    )
    batch, heads, rows, _ = partition(parse_plan(plan))
    spec, of_ids = PartitionSpec(batch, rows, heads), PartitionSpec(batch, rows)

    def one_device(q, k, v, ids):
        return sequence_parallel_attention(q, k, v, plan, None, segment_ids=ids)

    inner = jax.shard_map(one_device, mesh=mesh, in_specs=(spec,) * 3 + (of_ids,), out_specs=spec, check_vma=False)
    for found in (by_start, by_id, jax.jit(inner)(q, k, v, own["segment_ids"]["segment_ids"])):
        assert np.array_equal(found, known)


@pytest.mark.parametrize(
    ("kv_heads", "plan"),
    [
        (2, "ulysses/contiguous@ulysses=2,tensor=4"),
        pytest.param(1, "ring/striped@ring=2,tensor=4", marks=pytest.mark.exactness),
    ],
)
def test_heads_of_keys_are_copied_where_tensor_does_not_divide_them(kv_heads: int, plan: str) -> None:
    """Gradients of copies are summed."""
    mesh, (q, k, v, dout) = mesh_of(parse_plan(plan).axes), arrays()
    q, dout, scale = (*(jnp.concatenate([x, -x], 2) for x in (q, dout)), 0.3)
    k, v = (x[:, :, :kv_heads] for x in (k, v))
    order = positions(plan, LENGTH)

    def attend(q, k, v):
        return sequence_parallel_attention(q, k, v, plan, mesh, scale=scale)

    out, backward = jax.vjp(jax.jit(attend), *(x[:, order] for x in (q, k, v)))
    found = [np.swapaxes(x[:, np.argsort(order)], 1, 2) for x in (out, *backward(dout[:, order]))]
    factor = scale * HEAD_DIM**0.5
    q, k, v, dout = (np.swapaxes(x, 1, 2) for x in (q * factor, k, v, dout))
    expected = dense(q, k, v, dout, parse_mask("causal"))
    for value, reference, times in zip(found, expected, (1, factor, 1, 1), strict=True):
        assert max_relative_error(value, times * reference) < FLOAT32


def test_gates_are_taken_by_name() -> None:
    mesh, rng = mesh_of({"ulysses": 2}), np.random.default_rng(0)
    shapes = {"q": (4, 16), "k": (4, 16), "v": (4, 16), "log_gate": (4,), "write": (4,)}
    given = {name: rng.standard_normal((BATCH, LENGTH, *shape), np.float32) for name, shape in shapes.items()}
    given["k"] /= np.linalg.norm(given["k"], axis=-1, keepdims=True)
    given |= {"log_gate": -np.abs(given["log_gate"]), "write": 1 / (1 + np.exp(given["write"]))}
    gates = {name: jnp.asarray(given[name]) for name in ("write", "log_gate")}
    inputs = [jnp.asarray(given[name]) for name in "qkv"]
    attend = partial(sequence_parallel_attention, plan="ulysses/contiguous", mesh=mesh, recurrence="gdn")
    out = jax.jit(attend)(*inputs, gates=gates)
    q, k, v, log_gate, write = (np.swapaxes(x, 1, 2) for x in given.values())
    expected = recurrence_by_token(recurrences["gdn"], q, k, v, (log_gate, write), v)[0]
    assert max_relative_error(np.swapaxes(out, 1, 2), expected) < 5 * FLOAT32


@pytest.mark.parametrize(
    "plan", ["ring/zigzag@ring=4", "usp/striped@ring=2,ulysses=3", "all_gather/zigzag@ring=2,parts=6"]
)
def test_a_padded_length_is_the_next_that_divides(plan: str) -> None:
    parsed = parse_plan(plan)
    for length in range(1, 60):
        found = padded_length(plan, length)
        work = Workload(seq_len=found, heads=6, kv_heads=6, head_dim=8)
        kernel = replace(parsed, kernel="xla", tile=None)
        assert found >= length and why_unsupported(kernel, work, "cpu") is None
        assert all(why_unsupported(kernel, replace(work, seq_len=n), "cpu") for n in range(length, found))


def test_rotary_positions_turn_scores_by_their_distance() -> None:
    """In the layout's order, against complex numbers in float64; scores depend on the distance alone."""
    rng, order = np.random.default_rng(0), positions("ring/zigzag@ring=4", LENGTH)
    x = rng.standard_normal((BATCH, LENGTH, HEADS, HEAD_DIM), np.float32)
    half = HEAD_DIM // 2
    angles = np.arange(LENGTH)[:, None] * 500000.0 ** -(np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)[:, None]
    expected = np.concatenate([turned.real, turned.imag], -1)[:, order]
    for own in (order, np.tile(order, (BATCH, 1))):
        assert max_relative_error(rotary(jnp.asarray(x[:, order]), own, base=500000), expected) < 1e-5
    here, there = (rotary(jnp.asarray(x), np.arange(LENGTH) + shift) for shift in (0, 1000))
    scores = [jnp.einsum("btnh,bsnh->bnts", each, each) for each in (here, there)]
    assert max_relative_error(scores[0], np.asarray(scores[1])) < 1e-4
