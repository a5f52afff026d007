"""The library function: inside a jit, a shard_map and a gradient of one's own, against dense attention."""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from stripectl import positions, sequence_parallel_attention
from stripectl.core.layout import layouts
from stripectl.core.plan import parse_plan
from stripectl.core.scheme import schemes
from stripectl.core.workload import parse_mask
from stripectl.errors import BadInput
from stripectl.execute.program import partition
from stripectl.execute.reference import dense, max_relative_error, recurrent
from stripectl.execute.verification import TOLERANCES
from tests.support.exact import on_devices

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
            pytest.param(laid(name), "causal", marks=() if name in QUICK else pytest.mark.exactness)
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
    assert max(errors(attend, positions(text, LENGTH, mesh), mask, linear=linear)) < TOLERANCES["float32"]


@pytest.mark.parametrize("lie", [("ring", "tensor"), pytest.param(("ring",), marks=pytest.mark.exactness), ()])
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_arrays_that_lie_on_the_mesh_in_any_way(axis_type: AxisType, lie: tuple[str, ...]) -> None:
    mesh = mesh_of({"ring": 4, "tensor": 2, "data": 1}, axis_type)
    given, natural = (NamedSharding(mesh, PartitionSpec(None, *axes)) for axes in (lie, ("ring", "tensor")))
    plan = parse_plan("ring/zigzag@ring=4,tensor=2,tile=8")

    def attend(q, k, v):
        return sequence_parallel_attention(q, k, v, plan, mesh)

    order = positions(plan, LENGTH)
    inputs, cotangent = (partial(jax.device_put, device=each) for each in (given, natural))
    assert max(errors(attend, order, "causal", inputs, cotangent)) < TOLERANCES["float32"]


PACKED = ("ring/zigzag@ring=4,tensor=2", "usp/striped@ring=2,ulysses=2", "rsa/contiguous@ring=2")


@pytest.mark.parametrize("plan", PACKED)
def test_packed_documents_under_a_window(plan: str) -> None:
    mesh, starts = mesh_of(parse_plan(plan).axes), np.array([0, 17, 60])
    filled = jnp.array([[0, 17, 60, LENGTH]] * BATCH, jnp.int32)

    def attend(q, k, v):
        return sequence_parallel_attention(q, k, v, plan, mesh, mask="sliding:21", documents=filled)

    found = errors(attend, positions(plan, LENGTH, mesh), "sliding:21", starts=starts)
    assert max(found) < TOLERANCES["float32"]


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

    assert max(errors(attend, positions(plan, LENGTH), "causal")) < TOLERANCES["float32"]


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


def test_shapes_that_do_not_go_together_are_refused() -> None:
    (q, k, v, _), mesh = arrays(), mesh_of({"ring": 2})
    for queries, keys, values in ((q, k, v[:, :48]), (q[:, :48], k, v), (q[0], k, v), (q, k.astype("bfloat16"), v)):
        with pytest.raises(BadInput, match="queries may have more heads"):
            sequence_parallel_attention(queries, keys, values, "ring/zigzag", mesh)
    three_k, three_v = (jnp.concatenate([x, x[:, :, :1]], 2) for x in (k, v))
    with pytest.raises(BadInput, match="4 heads cannot share 3"):
        sequence_parallel_attention(q, three_k, three_v, "ring/zigzag", mesh)
    with pytest.raises(BadInput, match="cannot be divided over fsdp=8"):
        sequence_parallel_attention(q, k, v, "ring/zigzag", mesh_of({"fsdp": 8}))
