"""Recurrences in Pallas kernels for TPUs, interpreted on a CPU: against float64 token by token, and their maps against
those of `gated`. tests/compile/test_bundles.py compiles them for TPUs."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stripectl.core.layout import Tile
from stripectl.core.plan import parse_plan
from stripectl.core.recurrence import recurrences
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import DTYPES
from stripectl.execute.reference import max_relative_error, recurrence_by_token
from stripectl.execute.verification import FLOAT32
from stripectl.kernels.gated import kernel as gated
from stripectl.kernels.pallas_gated import chunks, kernel
from tests.support.exact import check_result, relative_errors
from tests.support.plans import with_tile
from tests.support.recurrences import KEYS, NAMES, VALUES, drawn, workload

FAST = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}  # the heads of a step are unrolled
# A chunk of 48 rows has three sub-chunks, which the inverse treats apart; that of vector gates compiles for a minute.
CHUNKS = {name: (16, 32 if recurrences[name].gate == "vector" else 48) for name in NAMES}
CASES = [(name, dtype, chunk) for name in NAMES for dtype in DTYPES for chunk in CHUNKS[name]]
QUICK = ("mamba2", "bfloat16", 16)


def part_of(name: str, dtype: str, chunk: int) -> Any:
    """The part `exactness` has each chunk with one dtype: a program compiles for up to half a minute."""
    if (name, dtype, chunk) == QUICK:
        return ()
    return pytest.mark.exactness if (dtype == "bfloat16") == (chunk == 16) else pytest.mark.full


@pytest.fixture
def short_programs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of 2 heads compile twice as fast as one step that unrolls 4. `mamba2` compiles fastest, and keeps 4."""
    if name != "mamba2":
        monkeypatch.setattr(kernel, "STEP_HEADS", 2)


@pytest.mark.usefixtures("short_programs")
@pytest.mark.parametrize(("name", "dtype", "chunk"), [pytest.param(*case, marks=part_of(*case)) for case in CASES])
def test_values_and_gradients_are_the_recurrences(name: str, dtype: str, chunk: int) -> None:
    """With chunks that do not divide the rows, two heads of values per head of keys, and states before and after."""
    q, k, v, *gates, dout = (jnp.asarray(x) for x in drawn(name, 40))
    q, k, v, dout = (x.astype(dtype) for x in (q, k, v, dout))
    rng = np.random.default_rng(1)
    before, behind = (rng.standard_normal((1, 4, KEYS, VALUES)).astype(np.float32) for _ in range(2))

    @partial(jax.jit, compiler_options=FAST)
    def computed(q, k, v, gates, dout, before, behind):
        given = recurrences[name], q, k, v, gates
        return (
            kernel.outputs(*given, before, chunk),
            *kernel.gradients(*given, dout, before, behind, chunk),
            kernel.map_of(recurrences[name], k, v, gates, chunk),
            kernel.transposed_map_of(recurrences[name], q, k, dout, gates, chunk),
        )

    found = computed(q, k, v, gates, dout, before, behind)
    q, k, v, dout = (x.astype(jnp.float32) for x in (q, k, v, dout))

    @jax.jit
    def in_chunks(q, k, v, gates, dout, before, behind):
        given = recurrences[name], q, k, v, gates
        return (
            gated.outputs(*given, before, 8),
            *gated.gradients(*given, dout, before, behind, 8),
            gated.map_of(recurrences[name], k, v, gates, 8),
            gated.transposed_map_of(recurrences[name], q, k, dout, gates, 8),
        )

    expected = in_chunks(q, k, v, gates, dout, before, behind)
    plan = parse_plan("lasp/contiguous/pallas_gated@ring=1")
    work = workload(name, plan, dtype)
    for value, reference in zip(found, expected, strict=True):
        check_result(work, plan, *(np.asarray(x, np.float64) for x in (value, reference)))


HARD = [(name, gates, correlated) for name in NAMES for gates, correlated in ((1e3, 0.0), (1e-6, 0.0), (1e-3, 2.0))]


@cache
def outputs_and_gradients(name: str) -> Callable[..., tuple[jax.Array, ...]]:
    """A program of the arrays of `drawn` and a state of zeros, compiled once for all gates."""

    @partial(jax.jit, compiler_options=FAST)
    def computed(q, k, v, own, dout, zeros):
        given = recurrences[name], q, k, v, own
        return kernel.outputs(*given, zeros, 32), *kernel.gradients(*given, dout, zeros, zeros, 32)

    return computed


@pytest.mark.usefixtures("short_programs")
@pytest.mark.exactness
@pytest.mark.parametrize(("name", "gates", "correlated"), HARD)
def test_gates_at_their_ends_and_correlated_keys_lose_nothing(name: str, gates: float, correlated: float) -> None:
    """At most 2e-6 of the largest value, or four times the error of float32 token by token where that is larger."""
    arrays = drawn(name, 64, gates=gates, correlated=correlated)
    q, k, v, *own, dout = arrays
    zeros = jnp.zeros((1, 4, KEYS, VALUES))
    computed = outputs_and_gradients(name)(*map(jnp.asarray, (q, k, v)), own, dout, zeros)
    exact, single = (recurrence_by_token(recurrences[name], q, k, v, own, dout, each) for each in (float, np.float32))
    for found, reference, by_token in zip(computed, exact, single, strict=True):
        usual = max_relative_error(by_token, reference)
        assert max_relative_error(found, reference) <= max(FLOAT32, 4 * usual)


@pytest.mark.exactness
@pytest.mark.parametrize("scheme", ["lasp", "linear_scan"])
def test_shards_meet_as_with_gated(scheme: str) -> None:
    plan = parse_plan(f"{scheme}/contiguous/pallas_gated@ring=2,data=2,tile=32")
    assert max(relative_errors(workload("gdn", plan, batch=2, key_heads=4), plan)) <= FLOAT32


@pytest.mark.parametrize("rows", [16, 48, 64])
def test_an_inverse_is_exact_where_all_keys_are_equal(rows: int) -> None:
    """Every score is 1, so a power series would sum binomial coefficients."""
    lower = np.tril(np.ones((rows, rows), np.float32), -1)
    found = chunks.inverse(jnp.asarray(lower), jnp.float32)
    assert max_relative_error(found, np.linalg.inv(np.eye(rows) + lower)) < 1e-6


@pytest.mark.parametrize(
    ("kind", "tile", "why"),
    [
        ("cpu", "32", "Try --kernel gated"),
        ("tpu", "24", "multiples of 16"),
        ("tpu", "256", "at most 128 rows"),
        ("tpu", "32", None),
    ],
)
def test_refusals_have_reasons(kind: str, tile: str, why: str | None) -> None:
    plan = parse_plan(f"lasp/contiguous/pallas_gated@ring=2,tile={tile}")
    reason = why_unsupported(plan, workload("gdn", plan, seq_len=1024), kind)
    assert (reason is None) if why is None else (why in str(reason))


@pytest.mark.parametrize(("rows", "chunk"), [(4096, 128), (40, 48), (8, 16)])
def test_a_default_chunk_is_one_that_runs(rows: int, chunk: int) -> None:
    plan = parse_plan("lasp/contiguous/pallas_gated@ring=2")
    work = workload("gdn", plan, seq_len=2 * rows)
    made = with_tile(plan, work, "tpu")
    assert made.tile == Tile(chunk, chunk) and why_unsupported(made, work, "tpu") is None
