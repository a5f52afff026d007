"""Products of matrices take the times of their shapes on a machine."""

import itertools
import math
from dataclasses import replace

import pytest

from stripectl.core.workload import DTYPES
from stripectl.costs.core_memory import VMEM_FLAG
from stripectl.costs.matrices import (
    COMPILED,
    MEASURED,
    PUBLISHED,
    TIMED_SIDE,
    MatrixProduct,
    matrix_rate,
    matrix_seconds,
)
from stripectl.hardware.profile import MEASURED_ON, Hardware, hardware_names
from stripectl.util.files import table_rows

SHAPES = [(1024, 4096, 14336), (16384, 4096, 1024), (300, 5000, 700), (2**17, 8192, 28672), (1, 128, 2**17)]


def seconds(
    name: str, rows: float, inner: float, cols: float, dtype: str = "bfloat16", kib: int | None = None
) -> float:
    flags = {VMEM_FLAG: str(kib)} if kib else {}
    found = matrix_seconds(Hardware.load(name), rows, inner, cols, dtype, flags)
    assert found
    return found


def at_peak(name: str, rows: float, inner: float, cols: float, dtype: str = "bfloat16") -> float:
    return 2 * rows * inner * cols / Hardware.load(name).figures[f"matmul_flops_per_s_{dtype}"]


def test_measured_products_come_back() -> None:
    known = [row for row in table_rows(MEASURED) if row["target"] == "h100" and row["dtype"] == "bfloat16"]
    assert len(known) == 64
    for row, rows in itertools.product(known, (1024, 8192, 32768)):
        inner, cols = int(row["k"]), int(row["n"])
        at_rate = 2 * rows * inner * cols / (float(row[f"tflops_{rows}"]) * 1e12)
        assert seconds("h100", rows, inner, cols) == pytest.approx(at_rate)


def test_published_squares_come_back_and_other_shapes_are_squares_with_as_many_flops() -> None:
    for row in table_rows(PUBLISHED):
        side, rate = int(row["side"]), float(row["tflops_per_device"]) * 1e12
        if side >= 256:  # a smaller square does not fill a unit
            assert seconds(row["hardware"], side, side, side) == pytest.approx(2 * side**3 / rate)
    assert seconds("tpu7x", 8192, 4096, 2048) == pytest.approx(seconds("tpu7x", 4096, 4096, 4096))


def test_compiled_products_come_back_under_the_limit_of_a_cores_memory() -> None:
    rows = table_rows(COMPILED)
    for row in rows[:: len(rows) // 20]:
        inner, cols, kib = int(row["inner"]), int(row["cols"]), int(row["vmem_kib"])
        at_share = at_peak(row["target"], 4096, inner, cols) / float(row["share_4096"])
        # The compiler may keep a small matrix in a core's memory, which the matrices of a step are not in.
        moved = (
            2 * (4096 * inner + inner * cols + 4096 * cols) / Hardware.load(row["target"]).figures["hbm_bytes_per_s"]
        )
        assert seconds(row["target"], 4096, inner, cols, kib=kib) == pytest.approx(max(at_share, moved))
    own = Hardware.load("v6e")
    assert own.figures["vmem_limit_bytes"] == 32 * 2**20
    usual, raised = (seconds("v6e", 24576, 4096, 14336, kib=kib) for kib in (None, 96 * 2**10))
    assert usual == seconds("v6e", 24576, 4096, 14336, kib=32 * 2**10) > 1.2 * raised


def test_sizes_between_nodes_lie_between_and_more_work_takes_longer() -> None:
    starts = itertools.product(((1024, 4096, 4096), (64, 2048, 8192), (4096, 512, 1024)), range(3))
    for (start, axis), name in itertools.product(starts, ("h100", "tpu7x", "v5p", "v6e", "h20", "tpu8t")):
        times = list[float]()
        for step in range(8):
            rows, inner, cols = (size * 2 ** (step / 2 * (at == axis)) for at, size in enumerate(start))
            times.append(seconds(name, rows, inner, cols))
        assert all(more >= 0.97 * less for less, more in itertools.pairwise(times)), (name, start, axis, times)


def test_a_product_fills_whole_matrix_units() -> None:
    for name, unit in (("v5p", 128), ("v6e", 256), ("tpu7x", 256), ("h100", 16)):
        whole = seconds(name, 4096, 16 * unit, 8 * unit)
        assert seconds(name, 4096, 15 * unit + 1, 7 * unit + 1) == whole
        assert seconds(name, 4096, 16 * unit + 1, 8 * unit) > whole
        assert seconds(name, 1, 16 * unit, 8 * unit) == seconds(name, unit, 16 * unit, 8 * unit), "loading a unit"


def test_large_products_of_few_flops_take_their_bytes_at_the_rate_of_memory() -> None:
    for name in ("h100", "v6e", "h20"):
        machine = Hardware.load(name)
        moved = 2 * (16 * 2**15 + 2**15 * 2**17 + 16 * 2**17)
        assert seconds(name, 16, 2**15, 2**17) >= moved / machine.figures["hbm_bytes_per_s"]


@pytest.mark.parametrize("name", [name for name in hardware_names() if name != "cpu"])
def test_no_machine_multiplies_at_its_bare_peak(name: str) -> None:
    machine = Hardware.load(name)
    for dtype, shape in itertools.product(DTYPES, SHAPES):
        if machine.flops_per_s(dtype) is None:
            assert matrix_seconds(machine, *shape, dtype) is None
        else:
            assert seconds(name, *shape, dtype) > 1.005 * at_peak(name, *shape, dtype)


def test_a_rate_that_scales_attention_does_not_change_matrices_with_a_table() -> None:
    reached = "achievable_flops_per_s_bfloat16"
    for name in ("v6e", "h100", "tpu7x"):
        machine = Hardware.load(name)
        other = replace(machine, figures={**machine.figures, reached: machine.figures[reached] / 2})
        assert matrix_rate(other, "bfloat16") == matrix_rate(machine, "bfloat16")


def test_a_machine_without_a_table_takes_its_stated_rate_or_the_median_of_its_kind() -> None:
    machine, reached = Hardware.load("h20"), "achievable_flops_per_s_bfloat16"
    rate = matrix_rate(machine, "bfloat16")
    assert rate and not rate.own and len(rate.shares) == 7 and "h100" in rate.source
    v3, tpu8 = (matrix_rate(Hardware.load(name), "bfloat16") for name in ("v3", "tpu8t"))
    assert v3 and v3.source == "the shares of v4, v5e, v5p" and tpu8 and tpu8.source == "the shares of tpu7x, v6e"
    shape = 4096, 4096, 4096
    shares = [at_peak(name, *shape) / seconds(name, *shape) for name in ("v4", "v5e", "v5p")]
    assert at_peak("v3", *shape) / seconds("v3", *shape) == pytest.approx(sorted(shares)[1])
    stated = replace(machine, figures={**machine.figures, reached: 1.3e14}, sources={**machine.sources, reached: "P"})
    found = matrix_rate(stated, "bfloat16")
    assert found and found.own and found.source == "P"
    assert found.seconds(MatrixProduct(8192, 8192, 8192, 3)) == pytest.approx(3 * 2 * 8192**3 / 1.3e14)
    assert matrix_rate(Hardware.load("cpu"), "bfloat16") is None


def test_a_timed_product_scales_the_table() -> None:
    machine, side = Hardware.load("h100"), TIMED_SIDE["gpu"]
    for name in ("achievable_flops_per_s_bfloat16", "matmul_flops_per_s_bfloat16"):
        figures, sources = {**machine.figures, name: 6e14}, {**machine.sources, name: f"{MEASURED_ON}a node"}
        here = replace(machine, figures=figures, sources=sources)
        assert matrix_seconds(here, side, side, side, "bfloat16") == pytest.approx(2 * side**3 / 6e14)
        times = [matrix_seconds(here, *shape, "bfloat16") for shape in SHAPES[:2]]
        slower = seconds("h100", side, side, side) * 6e14 / (2 * side**3)
        assert times == pytest.approx([seconds("h100", *shape) / slower for shape in SHAPES[:2]])


def test_another_dtype_has_the_shares_of_bfloat16_and_a_machine_with_a_base_those_of_its_base() -> None:
    shape = 8192, 4096, 4096
    assert seconds("h100", *shape, "float32") == pytest.approx(2 * seconds("h100", *shape))
    assert seconds("h800", *shape) == seconds("h100", *shape)
    assert math.isclose(seconds("tpu7x", *shape), at_peak("tpu7x", *shape) / 0.77, rel_tol=0.05)
