"""The cycles of a tile, from one small compiled program of one device: from the compiler's final schedule (Pallas
kernels) or from its estimates (XLA's own loops)."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stripectl.core.kernel import Kernel, kernels
from stripectl.core.kernel_costs import PallasKernel
from stripectl.core.plan import Plan
from stripectl.core.workload import Workload
from stripectl.costs.shape import TileShape
from stripectl.costs.sources.datasheet import chunk_costs
from stripectl.costs.sources.gated_chunks import chunk_work
from stripectl.hardware.profile import Hardware
from stripectl.results.compiled_program import CompiledProgram, KernelBundles
from stripectl.results.cost_source import CostOrigin
from stripectl.results.tile_cost import TileCost


class TileCycles(NamedTuple):
    """Cycles of a device with all cores busy: per tile of each kind and head, and per row of tiles for its start and
    its end; in a pass whose lines are columns of tiles, per column and key/value head."""

    whole: float
    boundary: float
    dead: float = 0.0
    row: float = 0.0
    column: float = 0.0

    def cost(self, clock_hz: float) -> TileCost:
        """The cost at a clock rate."""
        whole, boundary, dead, row, column = (cycles / clock_hz for cycles in self)
        return TileCost(whole, boundary, dead, row, column_s=column)


HEADS_IN_NAME = re.compile(r"_(\d+)_heads")
CANONICAL = {"batch": 1, "heads": 8, "kv_heads": 2}
CANONICAL_TILES = 4  # tiles along the sequence of a canonical program
FEW_TILES = 3  # likewise, for a tile that fits into a core's memory in a short line only (tokamax, backward)


def canonical_program(
    shape: TileShape, mask: str = "causal", passes: str = "forward-backward", tiles: int = CANONICAL_TILES
) -> tuple[Workload, Plan]:
    """The small program from which the costs of a shape are read: attention on one device, forward and backward; of a
    recurrence on two, because one device makes no map."""
    tile = shape.tile
    if shape.recurrence:
        return canonical_recurrence(shape)
    own = {
        "head_dim": shape.heads.keys,
        "v_head_dim": shape.heads.values,
        "dtype": shape.dtype,
        "mask": mask,
        "seq_len": tiles * max(tile.sides),
    }
    workload = Workload(**CANONICAL, **own, passes=passes)
    return workload, Plan("memory_efficient", "contiguous", shape.kernel, mesh=(), tile=tile)


def canonical_recurrence(shape: TileShape) -> tuple[Workload, Plan]:
    heads = CANONICAL["heads"]
    workload = Workload(
        seq_len=2 * CANONICAL_TILES * shape.tile.block_kv,
        heads=heads,
        kv_heads=heads,
        head_dim=shape.heads.keys,
        v_head_dim=shape.heads.values,
        dtype=shape.dtype,
        attention="linear",
        recurrence=shape.recurrence,
        passes="forward-backward",
    )
    return workload, Plan("lasp2", "contiguous", shape.kernel, mesh=(("ring", 2),), tile=shape.tile)


def masks_of(kernel: str) -> tuple[str, ...]:
    """The masks whose canonical programs together hold all kinds of a kernel's tiles. A kernel that masks all tiles of
    a pair with a boundary has whole tiles only in a program without a mask."""
    return ("causal", "full") if kernels[kernel].costs.masks_all else ("causal",)


class MeanBundles(NamedTuple):
    """Cycles of a device, and the share of matmuls, the mean of several kernels (`KernelBundles`)."""

    tile: float
    boundary: float
    step: float
    row: float
    boundary_matmuls: float


def mean_bundles(alike: Sequence[KernelBundles], masked: bool, share: float) -> MeanBundles:
    """The mean over kernels that mask, or over kernels that do not mask, as `masked` says; over all where there are
    none. A device takes a share of a core's cycles."""
    chosen = [each for each in alike if each.masked == masked] or alike
    columns = zip(*((each.tile, each.boundary, each.step, each.row) for each in chosen), strict=True)
    cycles = (share * float(np.mean(column)) for column in columns)
    return MeanBundles(*cycles, boundary_matmuls=float(np.mean([each.boundary_matmuls for each in chosen])))


def entry_of_bundles(
    bundles: Sequence[KernelBundles], parts: Sequence[PallasKernel], matmul: float, cores: int
) -> TileCycles | None:
    """The entry of a pass, which consists of `parts`, from the bundles of a program; None where they are missing.
    Bundles count for one core of a device. They do not include waiting for a matrix unit, so a tile takes at least
    its matmuls, each of `matmul` cycles at the peak rate."""
    whole = boundary = dead = row = column = 0.0
    for part in parts:
        alike = [each for each in bundles if part.name in each.name]
        if not alike:
            return None
        share = 1 / cores if part.shared else 1.0
        masked, tiles = mean_bundles(alike, True, share), mean_bundles(alike, part.only_live, share)
        whole += max(part.matmuls * matmul, tiles.tile + tiles.step)
        boundary += max(masked.boundary_matmuls * part.matmuls * matmul, masked.boundary + masked.step)
        dead += 0.0 if part.only_live else masked.step
        if part.per_kv_head:
            column += masked.row
        else:
            row += masked.row
    return TileCycles(whole, boundary, dead, row, column)


def entry_of_chunks(
    bundles: Sequence[KernelBundles], parts: Sequence[PallasKernel], least: Mapping[str, float], cores: int
) -> TileCycles | None:
    """The entry of linear attention's pass; None where bundles are missing. A step computes a chunk of as many heads as
    the name of its kernel says. Chunks take at least `least[kind]` cycles (`chunk_cycles`)."""
    found = dict.fromkeys(least, 0.0)
    for part in parts:
        alike = [each for each in bundles if each.name.startswith(part.name)]
        if not alike:
            return None
        of_heads = [(each.tile + each.step) / int(HEADS_IN_NAME.findall(each.name)[0]) for each in alike]
        found[part.chunks] += float(np.mean(of_heads)) / cores
    return TileCycles(**{kind: max(cycles, least[kind]) for kind, cycles in found.items()})


def entry_of_cycles(cycles: Mapping[str, float]) -> TileCycles | None:
    """The entry of a pass from the compiler's estimates for the bodies of a program's tile loops."""
    if not cycles["whole"] and not cycles["boundary"]:
        return None
    whole, boundary = cycles["whole"] or cycles["boundary"], cycles["boundary"] or cycles["whole"]
    return TileCycles(whole, boundary, row=cycles["row"])


def chunk_cycles(
    shape: TileShape, passes: str, flops_per_cycle: float, memory_bytes_per_cycle: float
) -> dict[str, float]:
    """Cycles of a chunk's matmuls at the peak rate, by the kind of its tile. With a constant decay, XLA computes whole
    tiles and rows, and they take at least their memory traffic."""
    workload, tile = canonical_recurrence(shape)[0], shape.tile
    if workload.gated is None:
        at_peak, limited = (
            chunk_costs(workload, tile, flops_per_cycle, memory, at_once=True)[passes == "backward"]
            for memory in (math.inf, memory_bytes_per_cycle)
        )
        return {"whole": limited.whole_s, "boundary": at_peak.boundary_s, "row": limited.row_s}
    work = chunk_work(workload, tile.block_kv)
    names = ("map", "outputs") if passes == "forward" else ("transposed_map", "gradients")
    return {kind: work[name].flops / flops_per_cycle for kind, name in zip(("whole", "boundary"), names, strict=True)}


def entries_of(program: CompiledProgram, shape: TileShape, hardware: Hardware) -> dict[str, TileCycles]:
    """The entries of a compiled program whose tiles have this shape in all passes, by pass."""
    clock, peak, parts = hardware.figure("clock_hz"), hardware.flops_per_s(shape.dtype), shape.computed_by.costs.bundles
    if not clock or not program.cycles:
        return {}
    area = shape.tile.scores
    matmul = area * sum(shape.heads) / peak * clock if peak else 0.0  # the mean of matmuls with keys and with values
    found = {}
    for passes, cycles in program.cycles.items():
        if parts and shape.recurrence:
            memory = hardware.figure("hbm_bytes_per_s")
            per_cycle = (rate / clock if rate else math.inf for rate in (peak, memory))
            least = chunk_cycles(shape, passes, *per_cycle)
            found[passes] = entry_of_chunks(program.bundles or (), parts[passes], least, hardware.cores)
        elif parts:
            found[passes] = entry_of_bundles(program.bundles or (), parts[passes], matmul, hardware.cores)
        else:
            found[passes] = entry_of_cycles(cycles)
    return {passes: entry for passes, entry in found.items() if entry}


def has_tile_costs(kernel: Kernel) -> bool:
    """Whether small programs show the costs of a kernel's tiles."""
    return kernel.family == "softmax" or bool(kernel.costs.bundles)


def source_of(kernel: Kernel) -> CostOrigin:
    """The source of a kernel's cycles from a compiler."""
    return CostOrigin.BUNDLES if kernel.costs.bundles else CostOrigin.ESTIMATED_CYCLES
