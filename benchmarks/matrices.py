"""Products of matrices on TPUs, by the cycles that their compilers estimate.

    python benchmarks/matrices.py          # writes profiles/compiled/matrices.csv; needs jax[tpu], no TPU; an hour
    python benchmarks/matrices.py errors   # compares shapes between the nodes of the table; rows of a Markdown table

A product of rows x inner and inner x cols in bfloat16 is compiled alone, for one device. A value is the share of the
peak rate that it reaches: its FLOPs at the peak rate, in cycles of the profile's clock, over the estimated cycles. The
memory of a core that a product may use (`xla_tpu_scoped_vmem_limit_kib`) decides how often it reads its matrices: the
compiler's default, and the limit that published recipes of training set.
"""

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from typing import NamedTuple

from stripectl.compile.toolchain import TOOLCHAINS, topology_arguments
from stripectl.costs.matrices import COMPILED, compiled
from stripectl.hardware.target import parse_target
from stripectl.results.environment import version
from stripectl.util.files import data_folder
from stripectl.util.output import write_atomically

SIZES = (256, 1024, 4096, 16384)


class Grid(NamedTuple):
    """Products for a target under a limit of a core's memory; where products with the largest inner size take the
    compiler minutes, the share of 4096 stands for larger sizes."""

    target: str
    limit_kib: int
    inner: tuple[int, ...] = SIZES[:-1]

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        return [(rows, inner, cols) for inner in self.inner for cols in SIZES for rows in SIZES]

    @property
    def key(self) -> tuple[str, int]:
        return self.target.partition(":")[0], self.limit_kib


# The default of a compiler, and the limit that MaxText sets for training on v6e (benchmarks/xla_flags_library.py).
GRIDS = (
    Grid("v4:2x2x1", 16384),
    Grid("v5e:2x2", 16384),
    Grid("v5p:2x2x1", 16384, SIZES),
    Grid("v6e:2x2", 32768, SIZES),
    Grid("v6e:2x2", 98304),
)
BETWEEN = (
    (24576, 4096, 14336),
    (24576, 14336, 4096),
    (4096, 24576, 14336),
    (8192, 4096, 1792),
    (8192, 8192, 8192),
    (16384, 8192, 28672),
    (1024, 4096, 128256),
    (2048, 2048, 1024),
)
ESTIMATED = re.compile(r'"estimated_cycles":"(\d+)"')
HEADER = """\
# table: one product of matrices, rows x inner by inner x cols, on one TPU: the share of the peak rate, by rows
# source: cycles that the compiler estimates ({compiler}, benchmarks/matrices.py), at the clock of the machine's profile
# between nodes: logarithms are interpolated linearly, by the logarithms of coordinates
# fields: bfloat16; vmem_kib is the memory of a core that a product may use (xla_tpu_scoped_vmem_limit_kib)
"""


def print_shares(grid: Grid, shapes: Iterable[tuple[int, int, int]]) -> None:
    """Print the share of the peak that each shape reaches."""
    os.environ.update(TOOLCHAINS["tpu"].environment)
    import jax
    import jax.numpy as jnp
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    target = parse_target(grid.target)
    hardware = target.hardware
    device = SingleDeviceSharding(topologies.get_topology_desc(**topology_arguments(target)).devices[0])
    peak = hardware.figures["matmul_flops_per_s_bfloat16"] / hardware.figures["clock_hz"]  # FLOPs per cycle
    options: dict[str, str | bool] = {"xla_tpu_scoped_vmem_limit_kib": str(grid.limit_kib)}
    for rows, inner, cols in shapes:
        x, y = (jax.ShapeDtypeStruct(each, jnp.bfloat16, sharding=device) for each in ((rows, inner), (inner, cols)))
        text = jax.jit(jnp.matmul).lower(x, y).compile(compiler_options=options).as_text() or ""
        cycles = sum(map(int, ESTIMATED.findall(text)))
        print(f"{2 * rows * inner * cols / peak / cycles:.3f}", flush=True)


def found(grid: Grid, which: str) -> list[str]:
    """The shares of shapes, by a process of its own: a process describes one kind of TPU."""
    command = [sys.executable, __file__, which, str(GRIDS.index(grid))]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return [line for line in done.stdout.splitlines() if re.fullmatch(r"\d+\.\d+", line)]


def write_table() -> None:
    lines = ["target,vmem_kib,inner,cols," + ",".join(f"share_{rows}" for rows in SIZES)]
    for grid in GRIDS:
        each = iter(found(grid, "nodes"))
        for sizes in itertools.product(grid.inner, SIZES):
            lines.append(",".join(map(str, (*grid.key, *sizes, *(next(each) for _ in SIZES)))))
            print(lines[-1], flush=True)
    header = HEADER.format(compiler=f"libtpu {version('libtpu')}")
    write_atomically(data_folder("profiles") / f"{COMPILED}.csv", header + "\n".join(lines) + "\n")


def print_errors() -> None:
    """Print shapes between the nodes: the compiler's share, and the time by the table over the time by its cycles."""
    for grid in GRIDS:
        for shape, share in zip(BETWEEN, found(grid, "between"), strict=True):
            ratio = float(share) / compiled()[grid.key].shares.at(*shape)
            print(
                f"| {' | '.join(map(str, grid.key))} | {'x'.join(map(str, shape))} | {share} | {ratio:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            write_table()
        case ["errors"]:
            print_errors()
        case [which, at]:
            print_shares(GRIDS[int(at)], BETWEEN if which == "between" else GRIDS[int(at)].shapes)
