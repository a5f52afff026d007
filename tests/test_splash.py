"""The splash kernel: interpreted on a CPU against dense attention. tests/test_bundles.py compiles it for a TPU."""

import itertools
import sys
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from exact import check, covering, on_devices
from test_kernels import check_rectangle

from stripectl import BadInput, Missing
from stripectl.defaults import with_tile
from stripectl.kernels import kernels
from stripectl.layout import UNBOUNDED, Rectangle, Tile, Window, layouts
from stripectl.plan import Plan, parse_plan
from stripectl.refusal import unsupported
from stripectl.scheme import schemes
from stripectl.verify import checkable
from stripectl.workload import ATTENTION_PASSES, DTYPES, Workload

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


def case_of(scheme, layout, mask, passes, dtype, kv_heads, batch, devices) -> tuple[Workload, Plan]:
    workload = Workload(
        seq_len=256 * devices,
        batch=batch,
        heads=4,
        kv_heads=kv_heads,
        head_dim=128,
        dtype=dtype,
        mask=mask,
        passes=passes,
    )
    mesh = on_devices(scheme, devices).mesh
    return workload, replace(parse_plan(f"{scheme}/{layout}/splash@tile=128"), mesh=mesh)


def legal(case: tuple) -> bool:
    workload, plan = case_of(*case)
    return unsupported(plan, workload, "tpu") is None and plan.devices == case[-1]


@pytest.mark.parametrize(tuple(FACTORS), covering(list(filter(legal, itertools.product(*FACTORS.values())))))
def test_equals_dense_attention(scheme, layout, mask, passes, dtype, kv_heads, batch, devices) -> None:
    check(*case_of(scheme, layout, mask, passes, dtype, kv_heads, batch, devices))


def test_the_backward_pass_may_have_a_tile_of_its_own() -> None:
    workload = Workload(seq_len=512, heads=2, kv_heads=1, head_dim=64, dtype="float32", passes="forward-backward")
    check(workload, parse_plan("ring/striped/splash@ring=2,tile=256,backward=128x256"))


@pytest.mark.parametrize("high", [UNBOUNDED, -1, 130, -130, -256], ids=str)
def test_values_and_gradients_of_any_diagonal(high: int) -> None:
    """-1 leaves a row without a key, -130 a row of tiles, -256 all of them."""
    check_rectangle("splash", Rectangle(0, 0, 256, 384, -UNBOUNDED, high), Tile(128, 384 if high == -1 else 128))


def test_a_window_is_refused() -> None:
    module, x = kernels["splash"].load(), jnp.zeros((1, 1, 128, 8))
    state = x, x[..., 0], x[..., 0]
    with pytest.raises(BadInput, match="no windows"):
        module.forward(x, x, x, state, [Rectangle(0, 0, 128, 128, -5, 0)], Tile(128, 128))
    workload = SimpleNamespace(window=Window(5, 0))
    assert "no windows" in kernels["splash"].unsupported(workload, None, "tpu")


@pytest.mark.parametrize(
    ("plan", "kind", "why"),
    [
        ("ring/striped/splash@ring=8", "cpu", "splash runs on TPUs. Try --kernel xla."),
        ("ring/striped/splash@ring=8,tile=100", "tpu", "100x100 is not. Try tile=128x128."),
        ("ring/striped/splash@ring=8,tile=384", "tpu", "divide the 1024 rows of a piece; 384x384 is not. Try tile=256"),
        ("ring/striped/splash@ring=128", "tpu", "divide the 64 rows of a piece; none does."),
        ("ring/striped/splash@ring=8,tile=128,backward=384", "tpu", "splash needs backward tiles of multiples of 128"),
        ("ring/zigzag/splash@ring=8,tile=512x256", "tpu", None),
    ],
)
def test_refusals_have_reasons(plan: str, kind: str, why: str | None) -> None:
    reason = unsupported(parse_plan(plan), Workload(seq_len=8192, heads=2, kv_heads=2, head_dim=64), kind)
    assert reason == why if why is None else why in (reason or "")


@pytest.mark.parametrize(("seq_len", "layout"), [(2**20, "striped"), (2**14, "zigzag"), (3 * 2**14, "striped")])
def test_default_and_checked_tiles_can_run(seq_len: int, layout: str) -> None:
    work = Workload(seq_len=seq_len, heads=2, kv_heads=2, head_dim=64)
    plan = with_tile(parse_plan(f"ring/{layout}/splash@ring=8"), work, "tpu")
    assert unsupported(plan, work, "tpu") is None
    small, checked = checkable(work, plan)
    assert unsupported(checked, small, "tpu") is None


def test_a_jax_without_the_private_functions_gets_one_line(monkeypatch) -> None:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

    monkeypatch.delattr(splash_attention_kernel, "_splash_attention_bwd_dq")
    monkeypatch.delitem(sys.modules, "stripectl.kernels.splash.kernel", raising=False)
    with pytest.raises(Missing, match=rf"JAX {jax.__version__} .* Try --kernel xla."):
        kernels["splash"].load()
