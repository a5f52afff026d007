"""tokamax's splash attention: interpreted on a CPU against dense attention, where the library is installed."""

import itertools
from dataclasses import replace
from importlib import metadata
from typing import Any

import pytest

from stripectl import compat
from stripectl.core.kernel import kernels
from stripectl.core.layer_groups import layer_groups
from stripectl.core.layout import UNBOUNDED, MaskBlock, Tile
from stripectl.core.plan import parse_plan
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.validation import why_missing, why_unsupported
from stripectl.core.workload import Workload
from stripectl.costs.core_memory import VMEM_FLAG, why_tile_exceeds_core
from stripectl.hardware.profile import Hardware
from stripectl.hardware.target import parse_target
from stripectl.kernels.tokamax.tile_memory import vmem_bytes
from stripectl.measure.local_target import LocalTarget
from stripectl.runner.cases import make_case
from tests.support.exact import check, in_parts
from tests.support.kernels import check_rectangles

MISSING = kernels["tokamax"].why_missing()
installed = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
WORK = Workload(seq_len=8192, heads=2, kv_heads=2, head_dim=64)
CASES = [
    case
    for case in itertools.product(
        ("contiguous", "striped", "zigzag"),
        ("causal", "full"),
        ("float32", "bfloat16"),
        (2, 1),
        ("128", "128x256x128"),
        (0, 22),
    )
    if case[4] == "128" or case[0] != "zigzag"
]


@installed
@pytest.mark.parametrize("case", [pytest.param(case, marks=marks) for case, marks in in_parts(CASES)], ids=str)
def test_equals_dense_attention(case: tuple) -> None:
    layout, mask, dtype, kv_heads, tile, odd_rows = case
    sizes = {"heads": 2, "kv_heads": kv_heads, "head_dim": 64, "dtype": dtype, "mask": mask}
    # Tiles of 128 form four columns or more, whose live tiles are listed backward, and tiles of 256 one or two.
    rows = (512 if tile == "128" else 256) + odd_rows
    workload = Workload(seq_len=2 * rows, passes="forward-backward", **sizes)
    check(workload, parse_plan(f"ring/{layout}/tokamax@ring=2,tile={tile}"))


@installed
@pytest.mark.parametrize("layout", ["contiguous", "striped", "zigzag"])
def test_dead_parts_of_tiles_on_the_diagonal_are_left_out(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from stripectl.kernels.tokamax.kernel import skips_dead_parts

    monkeypatch.setattr("stripectl.kernels.tokamax.kernel.MIN_SQUARE", 512)
    rows = 2048 if layout == "zigzag" else 1024  # two tiles of 512 along each piece
    workload = Workload(seq_len=2 * rows, heads=2, kv_heads=1, head_dim=64, passes="forward")
    plan = parse_plan(f"ring/{layout}/tokamax@ring=2,tile=512")
    bands = sequence_sharding(workload, plan).bands(1, 0)
    assert all(skips_dead_parts(band, Tile(512, 512)) for band in bands)
    assert not any(skips_dead_parts(band, Tile(512, 512, 256)) for band in bands)
    check(workload, plan)


@installed
@pytest.mark.parametrize("high", [-1, 130, -130])
@pytest.mark.parametrize("columns", [384, 512])
def test_values_and_gradients_of_any_diagonal(high: int, columns: int) -> None:
    """-1 leaves a row without a key, -130 a row of tiles. Three columns of tiles are all visited backward, and live
    tiles of four are listed."""
    check_rectangles("tokamax", [MaskBlock(0, 0, 256, columns, -UNBOUNDED, high)], Tile(128, 128))


@pytest.mark.parametrize(
    ("python", "versions", "why"),
    [
        ((3, 11), {}, "tokamax needs Python 3.12 or newer. Try Python 3.12 and there"),
        ((3, 13), {"jax": "0.12.0"}, "tokamax is not installed here, and the kernel needs it. Try"),
        ((3, 13), {"jax": "0.12.0", "tokamax": "0.0.16"}, "tokamax needs tokamax 0.0.17 or newer, and 0.0.16 is"),
        ((3, 13), {"jax": "0.10.2", "tokamax": "0.0.17"}, "tokamax needs jax 0.11.1 or newer, and 0.10.2 is"),
        ((3, 13), {"jax": "0.12.0", "tokamax": "0.0.17"}, None),
        ((3, 13), {"jax": "0.12.0", "tokamax": "0.0.18.dev20261026"}, None),
    ],
)
@pytest.mark.parametrize(
    ("kernel", "kind", "other"), [("tokamax", "tpu", "pallas_tpu"), ("tokamax_gpu", "gpu", "cudnn")]
)
def test_a_library_that_cannot_run_has_a_reason_and_a_command(
    monkeypatch: pytest.MonkeyPatch, kernel: str, kind: str, other: str, python: Any, versions: Any, why: str | None
) -> None:
    """The plan is supported all the same."""

    def version(package: str) -> str:
        if package not in versions:
            raise metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(compat.sys, "version_info", python)
    monkeypatch.setattr(compat.metadata, "version", version)
    plan, reason = parse_plan(f"ring/striped/{kernel}@ring=8"), kernels[kernel].why_missing()
    assert why_unsupported(plan, WORK, kind) is None and why_missing(layer_groups(WORK, plan)) == reason
    if why is None:
        assert reason is None
    else:
        assert str(reason).startswith(why)
        assert str(reason).endswith(f" pip install 'stripectl[tokamax]', or --kernel {other}.")


def test_other_hardware_and_long_lists_are_refused() -> None:
    assert "runs on TPUs" in str(why_unsupported(parse_plan("ring/striped/tokamax@ring=8"), WORK, "gpu"))
    long = Workload(seq_len=2**20, heads=2, kv_heads=2, head_dim=64)
    small, large = (parse_plan(f"ring/striped/tokamax@ring=2,tile={side}") for side in (512, 4096))
    assert "more than the 1 MiB of scalar memory" in str(why_unsupported(small, long, "tpu"))
    assert why_unsupported(large, long, "tpu") is None


@pytest.mark.parametrize(("tile", "mib"), [("2048x2048x512", 38.21), ("1024x2048x1024", 33.27)])
def test_the_memory_of_a_core_is_as_the_compiler_says(tile: str, mib: float) -> None:
    """For v6e and TPU7x, libtpu 0.0.50.1: 'with size 38.21M and limit 32.00M', 'exceeded scoped vmem limit by
    1.27M'."""
    work = Workload(seq_len=2**14, heads=8, kv_heads=2, head_dim=256, passes="forward-backward")
    plan = parse_plan(f"memory_efficient/contiguous/tokamax@tile=512x512,backward={tile}")
    assert vmem_bytes(work, plan, "backward", cores=1) / 2**20 == pytest.approx(mib, rel=0.01)


def test_a_tile_that_does_not_fit_into_a_core_is_refused_with_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """tokamax's own winner for 4k keys with heads of 256 fits there, where two columns of tiles need no sums of dQ and
    dK outside of the core, and in none of its longer winners."""
    tpu7x = Hardware.load("tpu7x")
    plan = parse_plan("memory_efficient/contiguous/tokamax@tile=512x512,backward=2048x2048x512")
    long = Workload(seq_len=2**13, heads=32, kv_heads=8, head_dim=256, passes="forward-backward")
    reason = str(why_tile_exceeds_core(plan, long, tpu7x, {}))
    assert "backward tile 2048x2048x512 of tokamax takes 38.4 MiB of a core's memory" in reason and "32.0 MiB" in reason
    assert f"Try backward=2048x1024x512 or --xla-flag {VMEM_FLAG}=39936 or --kernel pallas_tpu." in reason
    assert why_tile_exceeds_core(plan, replace(long, seq_len=2**12), tpu7x, {}) is None
    assert why_tile_exceeds_core(plan, replace(long, passes="forward"), tpu7x, {}) is None
    assert why_tile_exceeds_core(plan, long, tpu7x, {VMEM_FLAG: "65536"}) is None
    monkeypatch.setenv("LIBTPU_INIT_ARGS", f"--a=b --{VMEM_FLAG}=65536")
    assert why_tile_exceeds_core(plan, long, tpu7x, {}) is None
    assert "16.0 MiB" in str(why_tile_exceeds_core(plan, long, tpu7x, {VMEM_FLAG: "16384"}))


def test_a_default_tile_that_does_not_fit_into_a_core_is_refused() -> None:
    work = Workload(seq_len=2**16, heads=8, kv_heads=2, head_dim=256, passes="forward-backward")
    place, plan = LocalTarget(parse_target("v5e:2x2")), parse_plan("ring/contiguous/tokamax@ring=4")
    case = make_case(work, plan, {}, place, "simulated")
    assert case.status == "refused" and "the backward tile 1024x1024 of tokamax takes" in str(case.reason)


@pytest.mark.parametrize(("rows", "sides"), [(16384, {1024, 2048}), (18900, {1024, 1920, 2048})])
def test_a_search_tries_the_sides_of_its_own_sweep(rows: int, sides: set[int]) -> None:
    assert {side for tile in kernels["tokamax"].candidate_tiles(rows) for side in tile.sides} == sides
