"""tokamax's attention for Hopper GPUs. It runs there alone: on a CPU a stand-in with the library's contract takes its
place, and where the library is installed, the real compiler compiles it for GPUs."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from stripectl import compat
from stripectl.compile.compiler import CompilerPool, compile_case
from stripectl.core.kernel import kernels
from stripectl.core.layout import UNBOUNDED, MaskBlock, Tile, layouts
from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload
from stripectl.errors import Missing
from stripectl.hardware.target import parse_target
from stripectl.kernels import tokamax_gpu
from stripectl.measure.local_target import LocalTarget
from stripectl.runner.cases import bench_cases
from stripectl.runner.request import Request
from stripectl.util.progress import quiet
from tests.support.compilers import needs_gpu
from tests.support.cudnn import attend, differentiate
from tests.support.exact import check
from tests.support.kernels import check_rectangles

NAME = "stripectl.kernels.tokamax_gpu.kernel"
WORK = Workload(seq_len=2**13, heads=4, kv_heads=2, head_dim=128)
TILE = Tile(128, 128)


def heads_first(*arrays):
    return [x.swapaxes(0, 1) for x in arrays]


def keys_of(k_end):
    return UNBOUNDED if k_end is None else k_end[0, 0]


def library_forward(q, k, v, bias, mask, k_start, k_end, *, is_causal, logits_scale, config, **rest):
    """The library's sum of exponentials need not be 1: here it is 2."""
    assert (bias, mask, k_start) == (None, None, None) and logits_scale == q.shape[2] ** -0.5
    assert k.shape[0] % config.block_kv == 0 and not config.persistent
    assert rest["normalize_output"] and rest["return_residuals"]
    out, lse = attend(is_causal, *heads_first(q, k, v), keys=keys_of(k_end))
    total = jnp.where(jnp.isfinite(lse), 2.0, 0.0)
    return out.swapaxes(0, 1), (jnp.where(total > 0, lse - jnp.log(2.0), -jnp.inf), total)


def library_backward(q, k, v, residuals, out, dout, bias, mask, k_start, k_end, *, is_causal, ds_dtype, **rest):
    assert (bias, mask, k_start, ds_dtype) == (None, None, None, None)
    most, total = residuals
    q, k, v, out, dout = heads_first(q, k, v, out, dout)
    found = differentiate(is_causal, q, k, v, most + jnp.log(total), out, dout, keys_of(k_end))
    return (*heads_first(*found), None)


@dataclass
class Blocks:
    block_kv: int = 128
    persistent: bool = True


def forward_blocks(ba, fold_q_sequence_heads: bool) -> Blocks:
    assert len(ba.args) == 3 and not fold_q_sequence_heads
    return Blocks()


def backward_blocks(ba) -> SimpleNamespace:
    assert [x.ndim for x in ba.args[1:]] == [3] * 5
    return SimpleNamespace(block_kv_dq=64)


@pytest.fixture
def stand_in(monkeypatch) -> None:
    forward = SimpleNamespace(flash_attention_kernel=library_forward, get_heuristics_config=forward_blocks)
    backward = SimpleNamespace(flash_attention_vjp_kernel=library_backward, get_heuristics_config=backward_blocks)
    monkeypatch.setattr(compat, "tokamax_gpu", lambda: compat.TokamaxGpu(forward, backward, SimpleNamespace))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    kernels["tokamax_gpu"].load()


@pytest.fixture(autouse=True)
def loaded_anew() -> Iterator[None]:
    yield
    sys.modules.pop(NAME, None)


@pytest.mark.parametrize(
    ("layout", "mask", "rows"),
    [("contiguous", "causal", 256), ("striped", "causal", 256), ("zigzag", "causal", 256), ("contiguous", "full", 200)],
)
def test_equals_dense_attention(stand_in, layout: str, mask: str, rows: int) -> None:
    sizes = {"heads": 4, "kv_heads": 2, "head_dim": 64, "dtype": "float32", "mask": mask}
    work = Workload(seq_len=2 * rows, batch=2, passes="forward-backward", **sizes)
    check(work, parse_plan(f"ring/{layout}/tokamax_gpu@ring=2"))
    check(work, parse_plan(f"ring/{layout}/tokamax_gpu@ring=1"))


@pytest.mark.parametrize("high", [UNBOUNDED, 0, -1, -130, -256], ids=str)
def test_values_and_gradients_of_any_diagonal(stand_in, high: int) -> None:
    check_rectangles("tokamax_gpu", [MaskBlock(0, 0, 256, 384, -UNBOUNDED, high)], TILE)
    check_rectangles("tokamax_gpu", [MaskBlock(0, 0, 300, 200, -UNBOUNDED, high)], TILE)


@pytest.mark.parametrize(
    ("change", "kind", "capability", "why"),
    [
        ({}, "tpu", None, "tokamax_gpu runs on GPUs. Try --kernel tokamax on TPUs, or --kernel xla."),
        ({}, "gpu", (10, 0), "runs on Hopper GPUs (compute capability 9.0), not on 10.0. Try --kernel cudnn."),
        ({}, "gpu", (9, 0), None),
        ({"dtype": "float32"}, "gpu", (9, 0), "does not compute float32. Try --dtype bfloat16"),
        ({"head_dim": 100}, "gpu", None, "multiples of 16, up to 256, not heads of size 100. Try"),
        ({"head_dim": 128, "v_head_dim": 512}, "gpu", None, "up to 256, not heads of size 128 and 512. Try"),
        ({"mask": "sliding:64"}, "gpu", None, "but no windows. Try --kernel xla."),
        ({"documents": (64,)}, "gpu", None, "but not for documents. Try --kernel xla."),
        ({"query_len": 64}, "gpu", None, "needs as many queries as keys. Try --kernel xla."),
    ],
)
def test_refusals_have_reasons(change: dict, kind: str, capability, why: str | None) -> None:
    plan = parse_plan("ring/striped/tokamax_gpu@ring=8")
    reason = tokamax_gpu.why_unsupported(replace(WORK, **change), plan, kind, capability)
    assert reason is None if why is None else why in str(reason)


@pytest.mark.parametrize(("lookup", "other"), [(compat.tokamax, "pallas_tpu"), (compat.tokamax_gpu, "cudnn")])
def test_a_version_with_other_functions_names_a_version_that_works(monkeypatch, lookup, other: str) -> None:
    def fails(name: str) -> None:
        raise ImportError(f"no {name}")

    monkeypatch.setattr(compat, "why_no_tokamax", lambda other: None)
    monkeypatch.setattr(compat.metadata, "version", lambda package: "9.9.9")
    monkeypatch.setattr(compat.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(compat.importlib, "import_module", fails)
    said = (
        f"kernel {lookup.__name__} uses private names of tokamax, and tokamax 9.9.9 has others: no tokamax._src."
        rf".*\. Try pip install 'tokamax==0.0.17', or --kernel {other}\.$"
    )
    with pytest.raises(Missing, match=said):
        lookup()


@pytest.mark.compilers
@needs_gpu
@pytest.mark.skipif(bool(kernels["tokamax_gpu"].why_missing()), reason=str(kernels["tokamax_gpu"].why_missing()))
@pytest.mark.parametrize("layout", layouts.names())
def test_a_gpu_compiler_compiles_it(without_toolkit, layout: str) -> None:
    plan, place = parse_plan(f"ring/{layout}/tokamax_gpu@ring=8"), LocalTarget(parse_target("h200:8"))
    work = replace(WORK, seq_len=2**17, passes="forward-backward")
    with CompilerPool(quiet, cached=False) as compilers:
        found = compile_case(bench_cases(Request(workloads=[work], plans=[plan]), place)[0], place.target, compilers)
    assert found.status == "ok" and found.peak_bytes and found.bytes, found.reason
    known = found.cost_source
    assert known and (known.source, known.memory_left_out) == ("measured_before", None)
