"""The kernel of cuDNN's attention. Its calls run on GPUs alone: on a CPU a stand-in with the same contract takes their
place, so that what is made of them is compared with dense attention; and the real compiler compiles them for GPUs."""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stripectl.compile.compiler import CompilerPool, compile_case
from stripectl.core.kernel import kernels
from stripectl.core.layout import UNBOUNDED, MaskBlock, Tile, layouts
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.reason import Reason
from stripectl.core.scheme import schemes
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import ATTENTION_PASSES, DTYPES, Workload
from stripectl.costs.cost_model import COUNTING
from stripectl.costs.defaults import with_names
from stripectl.errors import BadInput, Missing
from stripectl.execute.reference import max_relative_error
from stripectl.execute.verification import cut_to_checkable
from stripectl.hardware.profile import Hardware
from stripectl.hardware.target import parse_target
from stripectl.kernels.splash import causal
from stripectl.measure.local_target import LocalTarget
from stripectl.runner.cases import bench_cases, why_refused
from stripectl.runner.request import Request
from stripectl.simulate.simulation import simulate
from stripectl.util.progress import quiet
from tests.support.compilers import needs_gpu
from tests.support.cudnn import attend, differentiate
from tests.support.exact import check, cover_in_parts, on_devices
from tests.support.kernels import check_rectangles
from tests.support.machines import datasheet_machine
from tests.support.plans import tiles_for, with_tile

TILE = Tile(128, 128)
FACTORS = {
    "scheme": schemes.names(),
    "layout": layouts.names(),
    "mask": ["causal", "full"],
    "passes": list(ATTENTION_PASSES),
    "dtype": list(DTYPES),
    "kv_heads": [4, 2],
    "batch": [1, 2],
    "devices": [1, 2, 4],
}
BOTH = "forward-backward"
WORK = Workload(seq_len=2**13, heads=4, kv_heads=2, head_dim=128)


@pytest.fixture
def stand_in(monkeypatch) -> None:
    for name, function in causal.causal_passes("cudnn", attend, differentiate)._asdict().items():
        monkeypatch.setattr(kernels["cudnn"].load(), name, function)


def case_of(scheme, layout, mask, passes, dtype, kv_heads, batch, devices) -> tuple[Workload, Plan]:
    sizes = {"batch": batch, "heads": 4, "kv_heads": kv_heads, "head_dim": 64}
    workload = Workload(seq_len=256 * devices, dtype=dtype, mask=mask, passes=passes, **sizes)
    return workload, replace(parse_plan(f"{scheme}/{layout}/cudnn"), mesh=on_devices(scheme, devices).mesh)


def legal(case: tuple) -> bool:
    """float32 is not, and tells best what is exact."""
    workload, plan = case_of(*case)
    return why_unsupported(plan, replace(workload, dtype="bfloat16"), "gpu") is None and plan.devices == case[-1]


COVER = cover_in_parts(list(filter(legal, itertools.product(*FACTORS.values()))))


@pytest.mark.parametrize(tuple(FACTORS), [pytest.param(*case, marks=marks) for case, marks in COVER])
def test_equals_dense_attention(stand_in, scheme, layout, mask, passes, dtype, kv_heads, batch, devices) -> None:
    check(*case_of(scheme, layout, mask, passes, dtype, kv_heads, batch, devices))


def test_parts_of_keys_lie_below_the_diagonal(stand_in) -> None:
    check(
        replace(WORK, seq_len=512, dtype="float32", passes=BOTH), parse_plan("all_gather/striped/cudnn@ring=2,parts=2")
    )


@pytest.mark.parametrize("high", [UNBOUNDED, 0, -1, -130, -255, -256], ids=str)
def test_values_and_gradients_of_any_diagonal(stand_in, high: int) -> None:
    """-1 leaves a row without a key, -255 all but one, -256 all of them."""
    check_rectangles("cudnn", [MaskBlock(0, 0, 256, 384, -UNBOUNDED, high)], TILE)
    check_rectangles("cudnn", [MaskBlock(0, 0, 384, 256, -UNBOUNDED, high)], TILE)


def output_misses(dout: np.ndarray, parts: int, monkeypatch) -> float:
    """By how much of delta rowsum(dout * out) misses it, in float64, at the worst."""
    rng = np.random.default_rng(1)
    monkeypatch.setattr(causal, "PARTS", parts)
    narrow = jnp.asarray(dout, jnp.bfloat16)
    delta = np.sum(np.asarray(narrow, np.float64) * rng.standard_normal(dout.shape), -1).astype(np.float32)
    out = jax.jit(lambda *x: causal.output_for(*x))(narrow, delta)
    assert out.dtype == narrow.dtype
    found = np.sum(np.asarray(out, np.float64) * np.asarray(narrow, np.float64), -1)
    return float(np.max(np.abs(found - delta) / np.abs(delta)))


@pytest.mark.parametrize("scale", [1e-32, 1.0, 1e20])
def test_an_output_has_the_delta_that_it_was_made_for(monkeypatch, scale: float) -> None:
    """Rounding to bfloat16 loses 2^-9, and of that as much again once the second part mends it."""
    dout = scale * np.random.default_rng(0).standard_normal((3, 500, 64))
    assert 1e-4 < output_misses(dout, 1, monkeypatch) < 2**-8
    assert output_misses(dout, 2, monkeypatch) < 2**-16
    lone = np.where(np.arange(64) == 3, dout, 0)
    assert output_misses(lone, 2, monkeypatch) <= 2**-8
    assert output_misses(np.where(np.arange(64) % 2, dout * 1e-6, dout), 2, monkeypatch) < 2**-8


def test_gradients_are_exact_where_keys_and_values_lie_far_from_zero(stand_in, monkeypatch) -> None:
    """What delta misses comes times the mean of the keys: with one part more than a gradient may be wrong by."""
    module, rng, shape = kernels["cudnn"].load(), np.random.default_rng(0), (1, 1, 512, 64)
    narrow = [jnp.asarray(rng.standard_normal(shape) + mean, jnp.bfloat16) for mean in (0, 3, 3, 0)]
    q, k, v, dout = (np.asarray(x, np.float64)[0, 0] for x in narrow)
    s = np.where(np.tri(512) > 0, q @ k.T / 8, -np.inf)
    lse = np.log(np.exp(s).sum(-1))
    p, dp = np.exp(s - lse[:, None]), dout @ v.T
    delta = (p * dp).sum(-1)
    ds = p * (dp - delta[:, None]) / 8
    given = *narrow, *(jnp.asarray(x, jnp.float32)[None, None] for x in (lse, delta)), jnp.zeros(shape)
    errors = {}
    for parts in (1, 2):
        monkeypatch.setattr(causal, "PARTS", parts)
        found = jax.jit(lambda *x: module.backward(*x, [MaskBlock(0, 0, 512, 512, -UNBOUNDED, 0)], TILE))(*given)
        grads = zip(found, (ds @ k, ds.T @ q, p.T @ dout), strict=True)
        errors[parts] = max(max_relative_error(np.asarray(one, np.float64)[0, 0], other) for one, other in grads)
    # As the library multiplies it; the results are rounded too.
    rounded = np.asarray(jnp.asarray(ds, jnp.bfloat16), np.float64)
    own = max(max_relative_error(rounded @ k, ds @ k), max_relative_error(rounded.T @ q, ds.T @ q))
    assert errors[2] <= own + 2**-9 < 0.6 * errors[1]


def test_a_row_without_a_cotangent_gets_an_output_of_zeros() -> None:
    found = causal.output_for(jnp.zeros((1, 4, 8), jnp.bfloat16), jnp.ones((1, 4)))
    assert not np.any(np.asarray(found, np.float32))


def test_what_the_library_has_no_mask_for_is_refused() -> None:
    module, x = kernels["cudnn"].load(), jnp.zeros((1, 1, 128, 8))
    with pytest.raises(BadInput, match="but no windows"):
        module.forward(x, x, x, (x, x[..., 0], x[..., 0]), [MaskBlock(0, 0, 128, 128, -5, 0)], TILE)
    with pytest.raises(BadInput, match="no mask with a diagonal above"):
        above = [MaskBlock(0, 0, 128, 128, -UNBOUNDED, 3)]
        module.backward(x, x, x, x, x[..., 0], x[..., 0], x, above, TILE)


@pytest.mark.parametrize(
    ("plan", "queries", "mask"),
    [
        ("pass_kv/contiguous/cudnn@ring=1", 64, "causal"),
        ("pass_kv/zigzag/cudnn@ring=1", 64, "causal"),
        ("pass_q/contiguous/cudnn@ring=1", 200, "causal"),
        ("pass_kv/striped/cudnn@ring=4", 64, "full"),
        ("tree/contiguous/cudnn@ring=4", 1, "causal"),
    ],
)
def test_queries_behind_a_cached_prefix(stand_in, plan: str, queries: int, mask: str) -> None:
    """A call without a mask for the prefix, and a causal one."""
    work = replace(WORK, seq_len=512, query_len=queries, mask=mask)
    assert why_unsupported(parse_plan(plan), work, "gpu") is None
    check(replace(work, dtype="float32"), parse_plan(plan))


@pytest.mark.parametrize(
    ("plan", "change", "kind", "why"),
    [
        ("ring/striped/cudnn@ring=8", {}, "tpu", "cudnn runs on GPUs. Try --kernel xla."),
        ("ring/striped/cudnn@ring=8", {}, "gpu", None),
        ("ring/striped/cudnn@ring=8", {"dtype": "float32"}, "gpu", "cudnn does not compute float32. Try"),
        ("ring/striped/cudnn@ring=8", {"head_dim": 100}, "gpu", "multiples of 8, up to 256, not heads of size 100"),
        ("ring/striped/cudnn@ring=8", {"head_dim": 512}, "gpu", "multiples of 8, up to 256, not heads of size 512"),
        ("ring/striped/cudnn@ring=8", {"mask": "sliding:64"}, "gpu", "but no windows. Try --kernel xla."),
        ("all_gather/striped/cudnn@ring=8", {"documents": (64,)}, "gpu", "but not for documents. Try --kernel xla."),
        ("tree/contiguous/cudnn@ring=8", {"query_len": 1}, "gpu", None),
        ("pass_kv/contiguous/cudnn@ring=8", {"query_len": 64}, "gpu", "64 queries behind a cached prefix only where"),
        ("ring/striped/cudnn@ring=8,tile=512", {}, "gpu", "chooses its tiles itself. Omit tile=512x512."),
        ("ring/striped/cudnn@ring=8,backward=64", {}, "gpu", "chooses its tiles itself. Omit backward=64x64."),
    ],
)
def test_refusals_have_reasons(plan: str, change: dict, kind: str, why: str | None) -> None:
    reason = why_unsupported(parse_plan(plan), replace(WORK, **change), kind)
    assert reason is None if why is None else why in str(reason)


@pytest.mark.parametrize(
    ("heads", "passes", "able"),
    [
        ((128, 128), BOTH, {"a100", "h100", "h200", "b200", "gb300"}),
        ((256, 256), BOTH, {"h100", "h200", "b200", "gb300"}),
        ((192, 192), BOTH, {"h100", "h200"}),
        ((192, 192), "forward", {"h100", "h200", "b200", "gb300"}),
        ((192, 128), BOTH, {"h100", "h200", "b200", "gb300"}),
        ((128, 64), "forward", set()),
        ((260, 260), "forward", set()),
    ],
)
def test_a_gpu_takes_the_heads_that_its_library_has(heads: tuple[int, int], passes: str, able: set[str]) -> None:
    work = replace(WORK, head_dim=heads[0], v_head_dim=heads[1], passes=passes)
    gpus = [Hardware.load(name) for name in ("a100", "h100", "h200", "b200", "gb300")]
    plan, reasons = parse_plan("ring/striped/cudnn@ring=8"), dict[str, Reason | None]()
    for each in gpus:
        reasons[each.name] = why_refused(plan, work, each, 8)
    assert {name for name, reason in reasons.items() if reason is None} == able
    for each in gpus:
        if each.name not in able and each.capability:
            assert "on a GPU of compute capability {}.{}, not".format(*each.capability) in str(reasons[each.name])


@pytest.mark.parametrize(
    ("change", "kernel"), [({}, "cudnn"), ({"dtype": "float32"}, "xla"), ({"head_dim": 256}, "xla")]
)
def test_it_is_the_kernel_of_a_gpu_where_it_can_compute(change: dict, kernel: str) -> None:
    named = with_names(parse_plan("ring/striped@ring=8"), replace(WORK, **change), Hardware.load("a100"))
    assert named.kernel == kernel


@pytest.mark.parametrize("seq_len", [2**20, 2**13, 2**9])
def test_there_is_one_tile_to_try_and_to_check(seq_len: int) -> None:
    work, plan = replace(WORK, seq_len=seq_len), parse_plan("ring/zigzag/cudnn@ring=8")
    full = with_tile(plan, work, "gpu")
    assert why_unsupported(full, work, "gpu") is None
    assert tiles_for(plan, work, "gpu") == [full.tile]
    small, checked = cut_to_checkable(work, full)
    assert why_unsupported(checked, small, "gpu") is None


def test_a_jax_with_other_primitives_gets_one_line(monkeypatch) -> None:
    from jax._src.cudnn import fused_attention_stablehlo

    monkeypatch.setattr(
        fused_attention_stablehlo, "_dot_product_attention_bwd_cuda_lowering", lambda ctx, *, scale: None
    )
    monkeypatch.delitem(sys.modules, "stripectl.kernels.cudnn.kernel", raising=False)
    with pytest.raises(Missing, match=rf"JAX {jax.__version__} has others: .* takes no bias, .* Try --kernel xla."):
        kernels["cudnn"].load()


def test_the_datasheets_tiles_find_their_keys_in_the_cache() -> None:
    """Were keys fetched for every row of tiles, tiles so small would wait for memory, and the library's do not."""
    hardware = parse_target("h100:8").hardware
    rate = hardware.figures["achievable_flops_per_s_bfloat16"]
    machine = datasheet_machine(hardware, WORK, TILE, kernel="cudnn")
    assert machine.forward.whole_s == pytest.approx(4 * 128**3 / rate)
    assert machine.backward.whole_s == pytest.approx(10 * 128**3 / rate)
    assert datasheet_machine(hardware, WORK, TILE).forward.whole_s > 1.5 * machine.forward.whole_s


@pytest.fixture(scope="module")
def compilers(without_toolkit) -> Iterator[CompilerPool]:
    with CompilerPool(quiet, cached=False) as found:
        yield found


def often(target: str, layout: str) -> bool:
    return target == "h100:8" and layout != "contiguous"


@pytest.mark.compilers
@needs_gpu
@pytest.mark.parametrize(
    ("target", "layout"),
    [
        pytest.param(target, layout, marks=[] if often(target, layout) else pytest.mark.full)
        for target in ("a100:8", "h100:8", "b200:8")
        for layout in layouts.names()
    ],
)
def test_a_gpu_compiler_compiles_it_and_its_tiles_are_the_tables(
    compilers: CompilerPool, target: str, layout: str
) -> None:
    """Every matmul is in calls that the compiler does not look into: none may be missing from the time."""
    plan, place = parse_plan(f"ring/{layout}/cudnn@ring=8"), LocalTarget(parse_target(target))
    work = replace(WORK, seq_len=2**17, passes=BOTH)
    found = compile_case(bench_cases(Request(workloads=[work], plans=[plan]), place)[0], place.target, compilers)
    assert found.status == "ok" and found.compiled_program and found.peak_bytes and found.bytes, found.reason
    rewritten = sum(each.bytes for each in found.compiled_program.rewrites)
    simulated = simulate(work, found.plan, COUNTING).sent
    assert sum(found.bytes.values()) == sum(simulated.values()) + rewritten
    assert any(each.beside_tiles for each in found.compiled_program.collectives)
    known = found.cost_source
    assert known and known.source == "published"
    assert known.entry.table == f"profiles/kernels/{target.partition(':')[0]}.yaml"
    assert known.memory_left_out == "the workspace of cudnn's library"
    rate = place.target.hardware.figures["matmul_flops_per_s_bfloat16"]
    assert found.median_s and found.median_s > work.flops / 8 / rate
