"""Pallas kernels beside each other by the TPU compiler's schedule: cycles of 1024x1024 scores of a head.

    python benchmarks/pallas_bundles.py tpu7x v6e:128      # 5 minutes for each size of heads; or one size
    python benchmarks/pallas_bundles.py --table            # the table of benchmarks/pallas_bundles.json

Python 3.12 or newer with tokamax is needed for all kernels.

Each tile is compiled as one small program (`costs.sources.small_programs`), and needs no TPU. `pairs` are pairs of
shards of 16k rows: `earlier` without a mask, `self` causal, `later` striped attention's pair whose diagonal lies below
the main one; by the scores that are kept. The ends of rows count, and waiting is left out. `units` are the cycles that
each unit of the core needs for a whole tile, and `matmuls` the cycles of its products at the peak rate of the matrix
units.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stripectl.compile.compiler import CHIPS, CompilerPool
from stripectl.compile.report import CompilerReport
from stripectl.core.kernel import kernels
from stripectl.core.layout import UNBOUNDED, MaskBlock, parse_tile
from stripectl.core.mask_tiles import count_pairs
from stripectl.costs.shape import Heads, TileShape
from stripectl.costs.sources.small_programs import CANONICAL, TileCycles, canonical_program, entries_of, masks_of
from stripectl.costs.sources.table import PASSES
from stripectl.errors import StripectlError
from stripectl.hardware.profile import Hardware
from stripectl.hardware.target import Target
from stripectl.results.compiled_program import KernelBundles

RECORDS = Path(__file__).with_suffix(".json")
TILES = {
    "splash": ["1024x1024"],
    "pallas_tpu": ["1024x1024", "1024x1024x1024", "2048x2048", "2048x2048x1024"],
    "pallas_bounded": ["1024x1024", "1024x1024x1024", "2048x2048"],
    "tokamax": ["1024x1024x512", "1024x1024", "2048x2048x512"],
}
HEADS = (64, 128, 256)
ROWS, SCORES = 2**14, 2**20
PAIRS = {"earlier": UNBOUNDED, "self": 0, "later": -1}  # and the last diagonal that is kept


def measured(compilers: CompilerPool, hardware: Hardware, key: TileShape) -> Iterator[dict[str, Any]]:
    """A row for each pass of a tile. Where the passes do not compile together, a row with the reason, and the forward
    pass alone."""
    own = {"machine": hardware.name, "head_dim": key.head_dim, "kernel": key.kernel, "tile": str(key.tile)}
    small = Target(hardware, next(shape for shape in hardware.slices if math.prod(shape) >= CHIPS))
    both = kernels[key.kernel].computes("backward") == key.kernel
    for passes in ("forward-backward", "forward") if both else ("forward",):
        programs = [canonical_program(key, mask, passes) for mask in masks_of(key.kernel)]
        try:
            reports = [compilers.report(*program, small, {}) for program in programs]
        except StripectlError as error:
            yield own | {"refused": str(error)[:80]}
            return
        refused = next((each.refused for each in reports if each.refused), None)
        if refused is None:
            yield from (own | row for row in rows_of(reports, hardware, key))
            return
        yield own | {"refused": refused[:80]}


def rows_of(reports: Sequence[CompilerReport], hardware: Hardware, key: TileShape) -> Iterator[dict[str, Any]]:
    """What the compiler says of each pass."""
    bundles = tuple(each for report in reports for each in report.program.bundles or ())
    matmul = SCORES * 2 * key.head_dim / (hardware.flops_per_s("bfloat16") or 1) * (hardware.figure("clock_hz") or 1)
    for passes, entry in entries_of(replace(reports[0].program, bundles=bundles), key, hardware).items():
        parts = kernels[key.kernel].costs.bundles[passes]
        units = [each for each in bundles for part in parts if part.name in each.name and each.units]
        yield {
            "pass": passes,
            "pairs": {pair: round(cycles_of(entry, key, high)) for pair, high in PAIRS.items()},
            "matmuls": round(matmul * sum(part.matmuls for part in parts)),
            "units": units_of(units, key.tile.scores / SCORES) if len(parts) == 1 and units else {},
            "compile_s": round(sum(report.compile_s for report in reports), 1),
            "compiler": reports[0].program.compiler,
        }


def units_of(found: Sequence[KernelBundles], share: float) -> dict[str, int]:
    """The cycles of each unit for 1024x1024 scores of a whole tile."""
    return {unit: round(cycles / share) for unit, cycles in found[0].units.items()}


def cycles_of(entry: TileCycles, key: TileShape, high: int) -> float:
    """Cycles of the kept scores of a pair of shards, per 1024x1024 of them."""
    kernel, band = kernels[key.kernel], MaskBlock(0, 0, ROWS, ROWS, -UNBOUNDED, high)
    tiles = kernel.count_tiles([band], key.tile)
    whole = tiles.whole * entry.whole + tiles.boundary * entry.boundary
    if kernel.costs.masks_all and tiles.boundary:
        whole = tiles.computed * entry.boundary + tiles.dead * entry.dead
    group = CANONICAL["heads"] / CANONICAL["kv_heads"]
    return float((whole + tiles.rows * (entry.row + entry.column / group)) / (count_pairs([band]) / SCORES))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Cycles of each kernel and pass at the best tile for each kind of pair, in Markdown; the other columns are of the
    best tile for `earlier`."""
    lines = [
        "| machine | heads | pass | kernel | earlier | self | later | matmuls | units | compile |",
        "|" + "---|" * 10,
    ]
    groups = dict[tuple[str, int, str, str], list[Mapping[str, Any]]]()
    for row in (row for row in rows if "pass" in row):
        groups.setdefault((row["machine"], row["head_dim"], row["pass"], row["kernel"]), []).append(row)
    for (machine, head_dim, passes, kernel), alike in sorted(groups.items(), key=lambda each: in_order(*each[0])):
        best = [min(alike, key=lambda row: row["pairs"][pair]) for pair in PAIRS]
        busy = sorted(best[0]["units"].items(), key=lambda each: -each[1])[:3]
        cells = [machine, head_dim, passes, kernel]
        cells += [f"{row['pairs'][pair]:,} ({row['tile']})" for row, pair in zip(best, PAIRS, strict=True)]
        cells += [f"{best[0]['matmuls']:,}", ", ".join(f"{unit} {cycles:,}" for unit, cycles in busy) or "n/a"]
        lines.append(f"| {' | '.join(map(str, cells))} | {best[0]['compile_s']:.0f} s |")
    return "\n".join(lines)


def in_order(machine: str, head_dim: int, passes: str, kernel: str) -> tuple[str, int, int, int]:
    return machine, head_dim, PASSES.index(passes), list(TILES).index(kernel)


def wanted(machines: Sequence[str]) -> Iterator[tuple[str, int]]:
    for text in machines:
        machine, _, head_dim = text.partition(":")
        yield from ((machine, each) for each in ([int(head_dim)] if head_dim else HEADS))


def main(machines: Sequence[str]) -> None:
    rows = json.loads(RECORDS.read_text()) if RECORDS.exists() else []
    if machines == ["--table"]:
        print(table(rows))
        return
    with CompilerPool(lambda *_: None, cached=False) as compilers:
        for machine, head_dim in wanted(machines):
            rows = [row for row in rows if (row["machine"], row["head_dim"]) != (machine, head_dim)]
            for kernel, tiles in TILES.items():
                for tile in map(parse_tile, tiles):
                    key = TileShape(kernel, "bfloat16", Heads(head_dim, head_dim), tile)
                    for row in measured(compilers, Hardware.load(machine), key):
                        rows.append(row)
                        print(json.dumps(row), flush=True)
            RECORDS.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


if __name__ == "__main__":
    main(sys.argv[1:])
