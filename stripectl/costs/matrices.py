"""The time of one product of matrices on a device, rows x inner by inner x cols, by its shape.

A product takes its FLOPs at a share of the peak rate, or its arrays at the rate of memory if they take longer. A matrix
unit holds `unit` x `unit` elements of the second matrix while rows pass through it. So `inner` and `cols` fill whole
units, and fewer rows than a unit has take as long as `unit` rows, in which it loads the next elements (Jouppi et al.
2017, section 2). The sources of the share, in their order:

1. a large product that was timed on the machine itself (`topology --measure`, or a simulation of local devices);
2. a table of the machine, by shape: products that NVIDIA measured (`profiles/distilled`); square products that Google
   published, at the square with as many FLOPs (`profiles/published`); cycles that the compiler of a TPU estimates,
   under the limit of a core's memory that the plan's flags or the compiler set (`profiles/compiled`);
3. a rate of a large product that the profile states;
4. the median of the shares that other machines of the kind reach with this shape: of machines with tables whose matrix
   units are as wide.

A dtype without a table has the shares of bfloat16. Attention does not depend on these rates, nor they on the rate that
scales its cycles.
"""

import itertools
import math
import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

from stripectl.core.workload import DTYPE_BYTES
from stripectl.costs.core_memory import compiler_limit_bytes
from stripectl.hardware.profile import Hardware, hardware_names
from stripectl.util.files import table_rows

MEASURED, PUBLISHED, COMPILED = "distilled/matrices", "published/matrices", "compiled/matrices"
USUAL = "bfloat16"  # the dtype with a table on every machine that has one
# Rows and columns of a matrix unit: TPU v3 to v5 (Jouppi et al. 2023, table 4), and an instruction of tensor cores
# (PTX ISA, mma.m16n8k16). TPUs since v6e: scaling-book, "TPUs".
UNITS: Mapping[str, int] = {"v3": 128, "v4": 128, "v5e": 128, "v5p": 128}
UNIT_OF_KIND = {"tpu": 256, "gpu": 16, "cpu": 1}
TIMED_SIDE = {"cpu": 2048, "gpu": 8192, "tpu": 8192}  # of the square product that is timed on a machine itself


class MatrixProduct(NamedTuple):
    """A product of matrices on a device, which is computed `times` in a step."""

    rows: float
    inner: float
    cols: float
    times: float = 1

    @property
    def flops(self) -> float:
        return 2 * self.rows * self.inner * self.cols * self.times


@dataclass(frozen=True, eq=False)
class Shares:
    """Shares of the peak rate at the nodes of a grid, by rows, inner and cols, or by the side of a square with as many
    FLOPs. Between nodes logarithms are interpolated linearly; beyond them the share of the nearest node holds."""

    axes: tuple[tuple[float, ...], ...]  # logarithms of sizes, ascending
    nodes: Mapping[tuple[int, ...], float]  # logarithms of shares, by the place on each axis

    @classmethod
    def of(cls, shares: Mapping[tuple[float, ...], float]) -> "Shares":
        """The grid of shares by sizes."""
        axes = [sorted(set(each)) for each in zip(*shares, strict=True)]
        places = {
            tuple(axis.index(size) for axis, size in zip(axes, sizes, strict=True)): math.log(share)
            for sizes, share in shares.items()
        }
        return cls(tuple(tuple(map(math.log, axis)) for axis in axes), places)

    def at(self, rows: float, inner: float, cols: float) -> float:
        """The share of a shape."""
        sizes = [(rows * inner * cols) ** (1 / 3)] if len(self.axes) == 1 else [rows, inner, cols]
        sides = [self._sides(axis, math.log(size)) for axis, size in zip(self.axes, sizes, strict=True)]
        corners = itertools.product(*sides)
        return math.exp(
            math.fsum(
                math.prod(weight for _, weight in corner) * self.nodes[tuple(place for place, _ in corner)]
                for corner in corners
            )
        )

    @staticmethod
    def _sides(axis: Sequence[float], at: float) -> list[tuple[int, float]]:
        """The nodes of an axis on both sides of a point, and their weights."""
        above = bisect_right(axis, at)
        if above in (0, len(axis)):
            return [(max(0, above - 1), 1.0)]
        part = (at - axis[above - 1]) / (axis[above] - axis[above - 1])
        return [(above - 1, 1 - part), (above, part)] if part else [(above - 1, 1.0)]


class MatrixRate(NamedTuple):
    """How fast a machine multiplies matrices of a dtype: a product reaches the median of the shares of a rate, or the
    whole rate without shares. `source` is their source, and `own` is false where other machines tell them."""

    flops_per_s: float
    shares: tuple[Shares, ...]
    memory_bytes_per_s: float
    itemsize: int
    unit: int
    source: str
    own: bool = True

    def seconds(self, product: MatrixProduct) -> float:
        """Seconds of a product, as often as it is computed."""
        return product.times * product_seconds(self, product.rows, product.inner, product.cols)


@lru_cache(2**16)
def product_seconds(rate: MatrixRate, rows: float, inner: float, cols: float) -> float:
    """Seconds of one product."""
    rows, inner, cols = max(rows, rate.unit), in_whole_units(inner, rate.unit), in_whole_units(cols, rate.unit)
    share = statistics.median(each.at(rows, inner, cols) for each in rate.shares) if rate.shares else 1.0
    moved = rate.itemsize * (rows * inner + inner * cols + rows * cols)
    return max(2 * rows * inner * cols / (rate.flops_per_s * share), moved / rate.memory_bytes_per_s)


def in_whole_units(size: float, unit: int) -> int:
    """The size with which it fills whole units."""
    return math.ceil(size / unit) * unit


def matrix_seconds(
    hardware: Hardware, rows: float, inner: float, cols: float, dtype: str, flags: Mapping[str, str] | None = None
) -> float | None:
    """Seconds of one product; None where no rate is known."""
    rate = matrix_rate(hardware, dtype, flags)
    return rate and product_seconds(rate, rows, inner, cols)


def matrix_rate(hardware: Hardware, dtype: str, flags: Mapping[str, str] | None = None) -> MatrixRate | None:
    """How fast a machine multiplies matrices of a dtype under the flags of a plan; None where no rate is known."""
    peak, reached = f"matmul_flops_per_s_{dtype}", f"achievable_flops_per_s_{dtype}"
    memory = hardware.figure("achievable_hbm_bytes_per_s") or hardware.figure("hbm_bytes_per_s") or math.inf
    unit = matrix_unit(hardware)
    limit = compiler_limit_bytes(hardware, flags or {}) or 0
    table = machine_shares(hardware.tables_of, dtype, limit) or machine_shares(hardware.tables_of, USUAL, limit)

    def rate(flops_per_s: float, source: str, shares: Sequence[Shares] = (), own: bool = True) -> MatrixRate:
        return MatrixRate(flops_per_s, tuple(shares), memory, DTYPE_BYTES[dtype], unit, source, own)

    shares = [table.shares] if table else []
    if timed := next((name for name in (reached, peak) if hardware.is_measured(name)), None):
        share = table.shares.at(*3 * (TIMED_SIDE[hardware.kind],)) if table else 1.0
        return rate(hardware.figures[timed] / share, hardware.sources[timed], shares)
    if table and peak in hardware.figures:
        return rate(hardware.figures[peak], table.source, shares)
    if reached in hardware.figures:
        return rate(hardware.figures[reached], hardware.sources[reached])
    if peak in hardware.figures and (others := tables_alike(hardware.kind, unit)):
        source = f"the shares of {', '.join(others)}"
        return rate(hardware.figures[peak], source, [each.shares for each in others.values()], own=False)
    return None


def matrix_unit(hardware: Hardware) -> int:
    """The rows and columns of a matrix unit."""
    return UNITS.get(hardware.tables_of, UNIT_OF_KIND[hardware.kind])


class Table(NamedTuple):
    """The shares of a machine, and their file."""

    shares: Shares
    source: str


def machine_shares(name: str, dtype: str, limit_bytes: float) -> Table | None:
    """The table of a machine under a limit of a core's memory. Of several tables of a compiler it is the table with the
    largest limit that is not larger, or with the smallest limit."""
    if own := measured().get((name, dtype)) or published().get((name, dtype)):
        return own
    limits = sorted(limit for of, limit in compiled() if of == name) if dtype == USUAL else []
    if not limits:
        return None
    below = [limit for limit in limits if limit * 2**10 <= limit_bytes]
    return compiled()[name, below[-1] if below else limits[0]]


@cache
def tables_alike(kind: str, unit: int) -> dict[str, Table]:
    """The tables of machines of a kind with matrix units of this size, under their own limits, by machine."""
    alike = [each for each in map(Hardware.load, hardware_names()) if each.kind == kind and not each.based_on]
    found = {
        each.name: machine_shares(each.name, USUAL, each.figure("vmem_limit_bytes") or 0)
        for each in alike
        if matrix_unit(each) == unit
    }
    return {name: table for name, table in found.items() if table}


@cache
def measured() -> dict[tuple[str, str], Table]:
    """The tables of NVIDIA's measurements, by machine and dtype."""
    found: dict[tuple[str, str], dict[tuple[float, ...], float]] = {}
    for row in table_rows(MEASURED):
        if row["target"] not in hardware_names() or row["dtype"] not in DTYPE_BYTES:
            continue
        peak = Hardware.load(row["target"]).figures[f"matmul_flops_per_s_{row['dtype']}"]
        own = found.setdefault((row["target"], row["dtype"]), {})
        for column, rate in row.items():
            if column.startswith("tflops_") and rate:
                sizes = float(column.partition("_")[2]), float(row["k"]), float(row["n"])
                own[sizes] = float(rate) * 1e12 / peak
    return {key: Table(Shares.of(own), f"profiles/{MEASURED}.csv") for key, own in found.items()}


@cache
def published() -> dict[tuple[str, str], Table]:
    """The tables of published square products, by machine and dtype."""
    found: dict[tuple[str, str], dict[tuple[float, ...], float]] = {}
    for row in table_rows(PUBLISHED):
        peak = Hardware.load(row["hardware"]).figures[f"matmul_flops_per_s_{row['dtype']}"]
        own = found.setdefault((row["hardware"], row["dtype"]), {})
        own[(float(row["side"]),)] = float(row["tflops_per_device"]) * 1e12 / peak
    return {key: Table(Shares.of(own), f"profiles/{PUBLISHED}.csv") for key, own in found.items()}


@cache
def compiled() -> dict[tuple[str, int], Table]:
    """The tables of the cycles that compilers estimate, by machine and limit of a core's memory in KiB."""
    found: dict[tuple[str, int], dict[tuple[float, ...], float]] = {}
    for row in table_rows(COMPILED):
        own = found.setdefault((row["target"], int(row["vmem_kib"])), {})
        for column, share in row.items():
            if column.startswith("share_"):
                own[float(column.partition("_")[2]), float(row["inner"]), float(row["cols"])] = float(share)
    return {
        (name, limit): Table(Shares.of(own), f"profiles/{COMPILED}.csv, {limit >> 10} MiB of a core's memory")
        for (name, limit), own in found.items()
    }
