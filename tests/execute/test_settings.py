"""The library function under the settings and inside the transformations that a program may have around it, each and
any two of them."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from stripectl import positions, sequence_parallel_attention
from stripectl.core.layout import parse_mask
from stripectl.core.plan import parse_plan
from stripectl.core.scheme import schemes
from stripectl.core.workload import Workload
from stripectl.errors import BadInput
from stripectl.execute.program import partition
from stripectl.execute.reference import dense, max_relative_error, recurrent
from stripectl.execute.verification import FLOAT32
from stripectl.models.model_files import load_model
from stripectl.training.attention import with_common_axes
from stripectl.training.step import make_training
from tests.support.exact import on_devices
from tests.support.plans import mask_of

BATCH, LENGTH, HEADS, KV_HEADS, SIZE = 2, 32, 4, 2, 8
CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "x64": lambda: jax.enable_x64(True),
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "rank promotion": lambda: jax.numpy_rank_promotion("raise"),
}
TRANSFORMATIONS = ("mixed axis types", "check_vma", "vmap", "scan", "remat", "donation")
AROUND = (*CONTEXTS, *TRANSFORMATIONS)
SOFTMAX, LINEAR = "ring/zigzag@ring=2,tensor=2,tile=8", "lasp2/contiguous@ring=2,tensor=2,tile=8"
DENSE = "rsa/contiguous@ring=2"


def arrays() -> list[Any]:
    """q, k, v and a cotangent, (batch, positions, heads, elements) in natural order."""
    rng = np.random.default_rng(0)
    heads = (HEADS, KV_HEADS, KV_HEADS, HEADS)
    return [rng.standard_normal((BATCH, LENGTH, n, SIZE), np.float32) for n in heads]


def attention(text: str, around: Sequence[str]) -> Callable[..., jax.Array]:
    """attention(q, k, v) of a plan over a mesh, or inside a shard_map that checks which axes arrays vary over."""
    plan, mask = parse_plan(text), mask_of(parse_plan(text).scheme, 9)
    first = AxisType.Explicit if "mixed axis types" in around else AxisType.Auto
    types = (first, *(AxisType.Auto,) * (len(plan.axes) - 1))
    mesh = jax.make_mesh(tuple(plan.axes.values()), tuple(plan.axes), types)
    if "check_vma" not in around:
        return partial(sequence_parallel_attention, plan=plan, mesh=mesh, mask=mask)
    batch, heads, rows, _ = partition(plan)
    spec = PartitionSpec(batch, rows, heads)
    inner = partial(sequence_parallel_attention, plan=plan, mesh=None, mask=mask)
    mapped = jax.shard_map(inner, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=True)

    def attend(*given: jax.Array) -> jax.Array:
        return mapped(*(jax.device_put(x, jax.NamedSharding(mesh, spec)) for x in given))

    return attend


def over_layers(run: Callable) -> Callable:
    return lambda *given: jax.lax.scan(lambda _, each: (None, run(*each)), None, given)[1]


def computed(text: str, around: Sequence[str]) -> list[np.ndarray]:
    """The output and the gradients, of arrays and, with vmap and scan, of arrays and their negatives: attention and its
    gradients of negative arrays are the negatives."""
    attend = attention(text, around)
    if "remat" in around:
        attend = jax.checkpoint(attend)

    def both(q: Any, k: Any, v: Any, dout: Any) -> tuple[jax.Array, ...]:
        out, backward = jax.vjp(attend, q, k, v)
        return out, *backward(dout)

    run, order = both, positions(text, LENGTH)
    given = [x[:, order] for x in arrays()]
    if "vmap" in around:
        given, run = [np.stack([x, -x]) for x in given], jax.vmap(run)
    if "scan" in around:
        given, run = [np.stack([x, -x]) for x in given], over_layers(run)
    with ExitStack() as stack:
        for each in around:
            if each in CONTEXTS:
                stack.enter_context(CONTEXTS[each]())
        donated = (0, 1, 2, 3) if "donation" in around else ()
        found = [np.asarray(x) for x in jax.jit(run, donate_argnums=donated)(*map(jax.numpy.asarray, given))]
    for _ in {"vmap", "scan"} & {*around}:
        for x in found:
            assert np.array_equal(x[0], -x[1])
        found = [x[0] for x in found]
    return [x[:, np.argsort(order)].swapaxes(1, 2) for x in found]


def check(text: str, around: Sequence[str]) -> None:
    q, k, v, dout = (x.swapaxes(1, 2) for x in arrays())
    if schemes[parse_plan(text).scheme].sends_states:
        expected = recurrent(q, k, v, dout, np.zeros(KV_HEADS))
    else:
        expected = dense(q, k, v, dout, parse_mask(mask_of(parse_plan(text).scheme, 9)))
    found = computed(text, around)
    assert {str(x.dtype) for x in found} == {"float32"}
    assert max(map(max_relative_error, found, expected)) < FLOAT32


@pytest.mark.filterwarnings("ignore:Some donated buffers")
@pytest.mark.parametrize("around", [AROUND[:4], AROUND[4::2], AROUND[5::2]], ids=" and ".join)
def test_values_and_gradients_under_several(around: tuple[str, ...]) -> None:
    check(SOFTMAX, around)


@pytest.mark.exactness
@pytest.mark.filterwarnings("ignore:Some donated buffers")
@pytest.mark.parametrize(
    "around", [*itertools.combinations(AROUND, 1), *itertools.combinations(AROUND, 2)], ids=" and ".join
)
@pytest.mark.parametrize("plan", [SOFTMAX, pytest.param(LINEAR, marks=pytest.mark.full)])
def test_values_and_gradients_under_each_and_any_two(plan: str, around: tuple[str, ...]) -> None:
    check(plan, around)


DERIVED: dict[str, Callable[[Callable, np.ndarray], Any]] = {
    "jvp": lambda loss, q: jax.jvp(loss, (q,), (q,)),
    "linearize": lambda loss, q: jax.linearize(loss, q)[1](q),
    "jacfwd": lambda loss, q: jax.jacfwd(loss)(q),
    "hessian": lambda loss, q: jax.hessian(loss)(q),
    "grad of grad": lambda loss, q: jax.grad(lambda q: jax.grad(loss)(q).sum())(q),
}


@pytest.mark.exactness
def test_dense_scores_have_second_derivatives() -> None:
    """Up to roundings of float32 in both passes, against float64."""
    mesh, given = jax.make_mesh((2,), ("ring",), (AxisType.Auto,)), arrays()[:3]

    def second(attend: Callable, q: Any, k: Any, v: Any) -> np.ndarray:
        first = jax.grad(lambda q: (attend(q, k, v) ** 2).sum())
        return np.asarray(jax.jit(jax.grad(lambda q: (first(q) ** 2).sum()))(q), np.float64)

    found = second(partial(sequence_parallel_attention, plan=DENSE, mesh=mesh), *given)
    with jax.enable_x64(True):
        expected = second(partial(jax.nn.dot_product_attention, is_causal=True), *map(np.float64, given))
    assert max_relative_error(found, expected) < 10 * FLOAT32


REFUSED = [
    each
    for each in itertools.product((SOFTMAX, LINEAR, DENSE), DERIVED, ("inside", "around"))
    if each[:2] != (DENSE, "grad of grad")
]
QUICK = [(SOFTMAX, "jvp", "around"), (LINEAR, "jacfwd", "inside"), (SOFTMAX, "grad of grad", "inside")]


@pytest.mark.parametrize(
    ("plan", "derived", "jitted"),
    [*QUICK, *(pytest.param(*each, marks=pytest.mark.exactness) for each in REFUSED if each not in QUICK)],
)
def test_forward_mode_and_second_derivatives_are_refused(plan: str, derived: str, jitted: str) -> None:
    mesh, (q, k, v, _) = jax.make_mesh((2,), ("ring",), (AxisType.Auto,)), arrays()

    def loss(q: jax.Array) -> jax.Array:
        return sequence_parallel_attention(q, k, v, plan.replace(",tensor=2", ""), mesh).sum()

    take = DERIVED[derived]
    with pytest.raises(BadInput, match=r"cannot differentiate this attention (twice|in forward mode)"):
        if jitted == "inside":
            take(jax.jit(loss), q)
        else:
            jax.jit(partial(take, loss))(q)


TRAINED = [name for name in schemes.names() if schemes[name].query_sharding == "all"]


@pytest.mark.exactness
@pytest.mark.parametrize("scheme", TRAINED)
def test_every_scheme_says_over_which_axes_its_results_vary(scheme: str) -> None:
    on = on_devices(scheme, 2, data=2, tensor=2)
    check(str(replace(on, layout=schemes[scheme].default_layout)), ["check_vma", "strict promotion"])


@pytest.mark.exactness
@pytest.mark.parametrize("kernel", ["chunked", "gated"])
def test_so_does_every_kernel_of_linear_attention(kernel: str) -> None:
    """Gates, and documents that do not vary over the sequence."""
    plan = f"lasp2/contiguous/{kernel}@ring=2,tile=8"
    mesh, (q, k, v, dout) = jax.make_mesh((2,), ("ring",), (AxisType.Auto,)), arrays()
    q, spec, gates = q[:, :, :KV_HEADS], PartitionSpec(None, "ring"), {}
    if kernel == "gated":
        gates = {"log_gate": -np.abs(v[..., 0]), "write": 1 / (1 + np.exp(v[..., 1]))}
    options: dict[str, Any] = {"recurrence": "gdn"} if gates else {}

    def inner(q, k, v, gates):
        return sequence_parallel_attention(q, k, v, plan, None, gates=gates or None, **options)

    mapped = jax.shard_map(inner, mesh=mesh, in_specs=(spec,) * 4, out_specs=spec, check_vma=True)

    def over(q, k, v, gates):
        return sequence_parallel_attention(q, k, v, plan, mesh, gates=gates or None, **options)

    def gradients(attend: Callable) -> Any:
        def loss(*given: Any) -> jax.Array:
            return (attend(*given) * dout[:, :, :KV_HEADS]).sum()

        return jax.jit(jax.grad(loss, (0, 1, 2, 3)))(q, k, v, gates)

    jax.tree.map(np.testing.assert_array_equal, gradients(mapped), gradients(over))


def test_a_kernel_that_cannot_say_so_is_refused() -> None:
    mesh, (q, *_) = jax.make_mesh((2,), ("ring",), (AxisType.Auto,)), arrays()
    plan = parse_plan("ring/zigzag/pallas_tpu@ring=2")

    def inner(x: jax.Array) -> jax.Array:
        return with_common_axes([x], plan, Workload(seq_len=LENGTH, heads=HEADS, kv_heads=HEADS, head_dim=SIZE))[0]

    for checked in (False, True):
        mapped = jax.shard_map(
            inner, mesh=mesh, in_specs=PartitionSpec("ring"), out_specs=PartitionSpec("ring"), check_vma=checked
        )
        with pytest.raises(BadInput, match="Try check_vma=False") if checked else nullcontext():
            jax.eval_shape(mapped, q)


def test_documents_are_known_on_every_device_of_a_sequence() -> None:
    """Starts do not vary over the ring, arrays do."""
    plan, (q, k, v, _) = "ring/zigzag@ring=2,tile=8", arrays()
    mesh, order = jax.make_mesh((2,), ("ring",), (AxisType.Auto,)), positions("ring/zigzag@ring=2", LENGTH)
    starts = np.array([[0, 10], [0, 20]], np.int32)
    spec = PartitionSpec(None, "ring")

    def inner(q, k, v, starts):
        return sequence_parallel_attention(q, k, v, plan, None, documents=starts)

    mapped = jax.shard_map(inner, mesh=mesh, in_specs=(spec, spec, spec, PartitionSpec()), out_specs=spec)
    found = np.asarray(jax.jit(mapped)(*(x[:, order] for x in (q, k, v)), starts))[:, np.argsort(order)]
    for i, own in enumerate(starts):
        one = [x[i : i + 1].swapaxes(1, 2) for x in (q, k, v)]
        expected, *_ = dense(one[0], one[1], one[2], one[0], parse_mask("causal"), own)
        assert max_relative_error(found[i : i + 1].swapaxes(1, 2), expected) < FLOAT32


@pytest.mark.training
def test_a_training_step_has_its_own_settings() -> None:
    """Parameters stay float32."""
    model = replace(
        load_model("1b"), hidden=32, feed_forward=48, layers=1, heads=4, kv_heads=2, head_dim=8, vocabulary=64
    )
    tokens = np.random.default_rng(0).integers(0, 64, (2, LENGTH + 1))

    def trained() -> Any:
        training = make_training(model, "ring/striped@ring=2,tensor=2", seq_len=LENGTH, batch=2, dtype="float32")
        state, loss = training.step(training.init(seed=0), training.place(tokens))
        return jax.tree.map(np.asarray, (state, loss))

    expected = trained()
    with ExitStack() as stack:
        for context in CONTEXTS.values():
            stack.enter_context(context())
        found = trained()
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y, strict=True), found, expected)


@pytest.mark.faults
def test_a_bench_has_its_own_settings(tmp_path: Path) -> None:
    """Of this environment's workers too."""
    own = {"JAX_ENABLE_X64": "1", "JAX_NUMPY_DTYPE_PROMOTION": "strict", "JAX_NUMPY_RANK_PROMOTION": "raise"}
    small = ["--seqlen", "512", "--heads", "1", "--head-dim", "16", "--plan", "ring/striped@ring=2", "--tile", "64"]
    command = [sys.executable, "-m", "stripectl", "bench", "--target", "cpu:2", "--method", "measured", *small]
    done = subprocess.run(
        [*command, "--quiet", "-o", tmp_path / "run"], env=os.environ | own, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and "failed" not in done.stdout, done.stdout + done.stderr
