"""Value heads of another size than key heads: values, gradients, bytes, and arithmetic."""

from dataclasses import replace

import jax
import pytest

from stripectl.core.kernel import kernels
from stripectl.core.layout import Tile, layouts
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.scheme import schemes
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import COUNTING
from stripectl.errors import BadInput
from stripectl.execute.program import PlanProgram
from stripectl.simulate.simulation import simulate
from tests.support.exact import check, on_devices
from tests.support.jaxprs import jaxpr_bytes
from tests.support.plans import mask_of, reference_plan, with_tile

SOFTMAX = [name for name in schemes.names() if {"softmax", "scores"} & {*schemes[name].kernel_families}]
QUICK = ("ring", "ulysses")
SIZES = {"larger": (24, 16), "smaller": (16, 40)}  # head_dim, v_head_dim


def case_of(scheme: str, sizes: tuple[int, int], kernel: str | None = None, kind: str = "cpu") -> tuple[Workload, Plan]:
    """A small workload with its strongest pass and a plan that can compute it."""
    plan = on_devices(scheme, 4) if schemes[scheme].axes else reference_plan(scheme)
    able = schemes[scheme].layouts or layouts.names()
    plan = replace(plan, layout=able[-1], kernel=kernel or plan.kernel)
    passes = "forward-backward" if schemes[scheme].query_sharding == "all" else "forward"
    query_len = None if schemes[scheme].query_sharding == "all" else 8
    plan = replace(plan, layout="contiguous") if query_len else plan
    work = Workload(
        seq_len=256 if kind == "cpu" else 1024,
        heads=4,
        kv_heads=4,
        head_dim=sizes[0],
        v_head_dim=sizes[1],
        dtype="float32",
        mask=mask_of(scheme),
        passes=passes,
        query_len=query_len,
    )
    reason = why_unsupported(plan, work, kind)
    assert reason is None, reason
    return work, with_tile(plan, work, kind)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(
    "scheme", [pytest.param(name, marks=() if name in QUICK else pytest.mark.exactness) for name in SOFTMAX]
)
def test_every_scheme_equals_dense_attention_and_sends_what_is_simulated(scheme: str, sizes: tuple[int, int]) -> None:
    work, plan = case_of(scheme, sizes)
    check(work, plan)
    assert jaxpr_bytes(PlanProgram(work, plan, jax.devices())) == dict(simulate(work, plan, COUNTING).sent)


@pytest.mark.exactness
@pytest.mark.parametrize("kernel", ["splash", "pallas_tpu", "pallas_bounded", "pallas_ring"])
def test_pallas_kernels_equal_dense_attention(kernel: str) -> None:
    work, plan = case_of("ring", (24, 16), kernel, "tpu")
    check(work, replace(plan, tile=Tile(128, 128)))


def test_arithmetic_counts_both_sizes() -> None:
    alike = Workload(seq_len=4096, heads=4, kv_heads=2, head_dim=128, passes="forward-backward")
    mixed = replace(alike, head_dim=192, v_head_dim=128)
    assert mixed.flops == pytest.approx(alike.flops * 320 / 256)
    assert replace(alike, v_head_dim=128) == alike and "v_head_dim" not in alike.to_json()
    assert Workload.from_json(mixed.to_json()) == mixed


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"v_head_dim": 0}, "v_head_dim must be"),
        ({"v_head_dim": 16, "attention": "linear"}, "Omit --v-head-dim"),
    ],
)
def test_bad_value_heads(given: dict, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        Workload(seq_len=4096, heads=4, kv_heads=4, head_dim=64, **given)


def test_cudnn_says_what_it_lacks() -> None:
    work = Workload(seq_len=4096, heads=4, kv_heads=4, head_dim=96, v_head_dim=64)
    reason = kernels["cudnn"].why_unsupported(work, parse_plan("ring/striped/cudnn@ring=4"), "gpu", (9, 0))
    assert str(reason) == (
        "cudnn takes value heads as large as key heads, or value heads of 128 and keys of 192 on a GPU of compute "
        "capability 9.0, not heads of size 96 with values of size 64. Try --kernel xla."
    )
