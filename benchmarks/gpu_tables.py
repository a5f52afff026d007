"""Makes the tables of GPUs in `profiles/kernels/`: three constants per head size and pass, seconds of a tile on one
processor, of the start of a thread block and of a call, that explain the published times best (least squares of
relative errors).

    python benchmarks/gpu_tables.py             # write the tables
    python benchmarks/gpu_tables.py --sustained # print which sustained rate explains the times of each GPU best

The constants show a GPU's full rate: long calls run at the rate that it sustains (`costs/power_limit`), a figure of its
hardware profile.

A kernel, or a head size and pass of cuDNN, without published times takes what `make check-gpu` measured
(`benchmarks/gpu/`). The constant of a call is there the start of a program. It is the same for heads of all sizes, and
no part of a kernel, so it is left out.

Blocks of thread blocks: Hopper's take 128 queries, Blackwell's 256 (two of 128), keys in tiles of 128; in backward
passes they take 128 keys. A machine without published times takes those of one of its architecture, in the ratio of
both machines' tiles for heads of 128, where both are published, else of their clocks.
"""

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from kernel_tables import schedule_lines, schedule_of
from scipy.optimize import nnls

from stripectl.analysis.accuracy.attention import DTYPE, PublishedTime, attention_rows, calls
from stripectl.core.kernel import kernels
from stripectl.core.layout import Tile
from stripectl.costs.power_limit import after_pause, sustained_share
from stripectl.costs.sources.timed_tiles import CalibrationBlock, block_tile_count, fit_tiles
from stripectl.hardware.profile import Hardware, named_by_device
from stripectl.results.tile_cost import TileCost

FOLDER = Path(__file__).parents[1] / "profiles" / "kernels"
MEASURED = Path(__file__).parent / "gpu"
LIBRARIES = ("cudnn", "tokamax_gpu")  # of measured kernels, those with blocks of thread blocks
HEADS = 8  # of a measured pair
BANDS_OF = {"full": "whole", "causal": "causal"}
LARGEST, SMALLER = Tile(2048, 2048), (Tile(512, 512), Tile(1024, 1024))  # tiles of kernel xla
SIZE_OF_TILES = 128  # of the heads with which smaller tiles were timed
PASSES = ("forward", "backward")
BLOCKS = {"9.0": Tile(128, 128), "10.0": Tile(256, 128), "10.3": Tile(256, 128)}
BACKWARD = Tile(128, 128)
LEAST_S = 1e-3  # of a measured pair
ROUNDS = 5
MIN_ROWS, SHARES = 5, np.arange(0.80, 1.01, 0.02)  # of a fit that shows a sustained share, and the shares
ALSO = """, and pairs of shards that were measured (benchmarks/gpu)
# Kernels of which only such pairs are known.
measured: [tokamax_gpu, xla]"""
# What no published time is of: the machine of the same architecture whose times are taken, by pass.
# The machines come in this order, so that one may take what another took.
LIKE = {
    "h100": {"forward": "h200", "backward": "h200"},
    "h200": {"forward": "h100"},
    "gb200": {"forward": "gb300", "backward": "gb300"},
    "b200": {"forward": "gb200", "backward": "gb200"},
}
SQUARES = "128/128"  # the heads with which two machines are compared
HEADER = """# What attention costs on {name}: seconds of a tile of a block on one processor, of a call, and of
# the start of a block.
# kernel, dtype, head_dim, queries x keys of a tile in which work is counted, pass.
# Entries with whole and boundary: microseconds of a tile on the whole GPU, whose programs start one after another.
# After each entry: how many published or measured rows it was fitted to, or whose it is.
# Made by: python benchmarks/gpu_tables.py
source: published times (profiles/published/attention.csv){measured}
kernels:
"""


Shape = tuple[str, str, str]  # a kernel, the sizes of key and value heads, a pass


class Fit(NamedTuple):
    """Seconds of a tile on one processor, of a call and of the start of a block; the kernel's blocks; the source."""

    tile_s: float
    call_s: float
    start_s: float
    block: Tile
    said: str

    def of_machine(self, ratio: float, other: str, by: str) -> "Fit":
        """The costs of machine `other` on one whose tiles take `ratio` as long."""
        return self._replace(tile_s=self.tile_s * ratio, said=f"as {other}, in the ratio of {by}")


def block_of(hardware: Hardware, passes: str) -> Tile:
    return BLOCKS[str(hardware.compiler["compute_capability"])] if passes == "forward" else BACKWARD


def counts(row: PublishedTime, hardware: Hardware, start: float = 0.0) -> tuple[float, int]:
    """(tiles of the busiest processor, calls) of a row, where the start of a block counts as `start` tiles."""
    block, cores = block_of(hardware, row.passes), int(hardware.compiler["core_count"])
    unit = TileCost(1.0, 1.0, start_s=start, processors=cores, block=block)
    tiles = [call.tiles for call in calls(row, unit)]
    return sum(each.busiest[0] for each in tiles), sum(each.calls[0] for each in tiles)


def fit_constants(rows: list[PublishedTime], hardware: Hardware, share: float) -> tuple[np.ndarray, float]:
    """(seconds of a tile, of a call and of the start of a block at the full rate; the sum of squared errors) of rows
    that a GPU with a sustained share computed. Starts overlap with the tiles of other processors, so their number
    depends on their length: it is found in a few rounds."""
    seconds = np.array([after_pause(row.seconds, 1 / share) for row in rows])
    tiles, made = np.array([counts(row, hardware) for row in rows], float).T
    start, found, error = 1.0, np.zeros(3), 0.0
    for _ in range(ROUNDS):
        starts = (np.array([counts(row, hardware, start)[0] for row in rows]) - tiles) / start
        terms = np.stack([tiles, made, starts][: len(rows)], 1)
        found[: len(rows)], error = nnls(terms / seconds[:, None], np.ones(len(rows)))
        if not found[2]:
            break
        start = found[2] / found[0]
    return found, error**2


def square_pairs(path: Path, kernel: str) -> Iterator[dict[str, Any]]:
    """The pairs of equally long shards that a kernel computed, without a mask or on the diagonal."""
    for pair in found_in(path, "block_pairs"):
        if pair["kernel"] == kernel and pair["band"] in BANDS_OF and pair["rows"] == pair["cols"]:
            yield {"v_head_dim": pair["head_dim"], **pair}


def measured_rows() -> Iterator[PublishedTime]:
    """Square pairs that a library's kernel computed, in both passes."""
    for path in sorted(MEASURED.iterdir()):
        for pair in (pair for kernel in LIBRARIES for pair in square_pairs(path, kernel)):
            shape = pair["rows"], pair["cols"], HEADS, HEADS, pair["head_dim"], pair["v_head_dim"], pair["band"]
            for passes in PASSES:
                if (seconds := pair[f"{passes}_s"]) > LEAST_S:
                    yield PublishedTime(path.name, machine_of(path), pair["kernel"], 1, *shape, passes, None, seconds)


def measured_tiles(rows: list[PublishedTime], hardware: Hardware) -> dict[str, float]:
    """Seconds of a tile by heads, from pairs of a kernel in a pass; all have the same start of a program."""
    heads = sorted({f"{row.head_dim}/{row.v_dim}" for row in rows})
    terms = [
        [tiles * (f"{row.head_dim}/{row.v_dim}" == each) for each in heads] + [1.0]
        for row in rows
        for tiles, _ in [counts(row, hardware)]
    ]
    seconds = np.array([row.seconds for row in rows])
    found, _ = nnls(np.array(terms) / seconds[:, None], np.ones(len(rows)))
    return dict(zip(heads, found[:-1], strict=True))


def rows_that_set() -> dict[str, dict[Shape, list[PublishedTime]]]:
    """The rows of each GPU that set its constants."""
    groups: dict[str, dict[Shape, list[PublishedTime]]] = defaultdict(lambda: defaultdict(list))
    for row in attention_rows():
        if row.sets and Hardware.load(row.hardware).kind == "gpu" and not kernels[row.ours].table_only:
            groups[row.hardware][row.ours, f"{row.head_dim}/{row.v_dim}", row.passes].append(row)
    return groups


def sustained_shares() -> None:
    """Prints, for each GPU, the error of a fit for several sustained shares, all heads and passes together."""
    for name, shapes in rows_that_set().items():
        groups = [rows for rows in shapes.values() if len(rows) >= MIN_ROWS]
        many, hardware = sum(map(len, groups)), Hardware.load(name)
        for share in SHARES:
            error = math.sqrt(sum(fit_constants(rows, hardware, share)[1] for rows in groups) / many)
            print(f"{name}: {many} rows, share {share:.2f}: error {error:.1%}")


def main() -> None:
    measured: dict[tuple[str, str, str], list[PublishedTime]] = defaultdict(list)
    for row in measured_rows():
        measured[row.hardware, row.ours, row.passes].append(row)
    found: dict[str, dict[Shape, Fit]] = {}
    for name, shapes in rows_that_set().items():
        hardware, found[name] = Hardware.load(name), {}
        for shape, rows in shapes.items():
            block, share = block_of(hardware, shape[-1]), sustained_share(hardware, DTYPE)
            tile_s, call_s, start_s = fit_constants(rows, hardware, share)[0]
            found[name][shape] = Fit(tile_s, call_s, start_s, block, f"{len(rows)} rows")
    for name, like in LIKE.items():
        own = found.setdefault(name, {})
        for wanted, other in like.items():
            taken = {shape: fit for shape, fit in found[other].items() if shape[-1] == wanted and shape not in own}
            square = "cudnn", SQUARES, wanted
            ratio = ratio_of(name, other, own.get(square), found[other].get(square))
            own |= {shape: fit.of_machine(*ratio) for shape, fit in taken.items()}
    for (other, kernel, passes), rows in measured.items():
        tiles = measured_tiles(rows, hardware := Hardware.load(other))
        for heads, tile_s in tiles.items():
            pairs = sum(f"{row.head_dim}/{row.v_dim}" == heads for row in rows)
            fit = Fit(tile_s, 0.0, 0.0, block_of(hardware, passes), f"{pairs} measured pairs")
            for name in (each for each in found if architecture(each) == architecture(other)):
                there = fit if name == other else fit.of_machine(*ratio_of(name, other))
                found[name].setdefault((kernel, heads, passes), there)
    for name, costs in sorted(found.items()):
        run = run_of(name)
        text = HEADER.format(name=name, measured=ALSO if run else "")
        for kernel in sorted({kernel for kernel, *_ in costs}):
            text += f"  {kernel}:\n    bfloat16:\n" + "".join(entries(kernel, costs))
        text += xla_entries(run) if run else ""
        text += "\n".join(schedule_lines(name, schedule_of(name))) + "\n"
        (FOLDER / f"{name}.yaml").write_text(text)
        print(text)


def xla_entries(path: Path) -> str:
    """The lines of kernel `xla`, whose tiles start programs one after another: the costs of the largest timed tile are
    fitted to long pairs, and the call of this fit is taken from the times of smaller tiles."""
    timed = tiles_of(path)
    text = "  xla:\n    bfloat16:\n"
    for size in (64, 128, 256):
        lines = defaultdict(list)
        for passes in PASSES:
            times = {
                CalibrationBlock(pair["rows"], BANDS_OF[pair["band"]]): pair[f"{passes}_s"]
                for pair in square_pairs(path, "xla")
                if pair["head_dim"] == size and pair["rows"] > LARGEST.block_q
            }
            cost = fit_tiles(list(times), list(times.values()), LARGEST, HEADS, "xla")
            costs = {LARGEST: (cost.whole_s, max(cost.whole_s, cost.boundary_s))} | {
                tile: timed_tile(tile, cost.call_s, passes, timed) for tile in SMALLER if size == SIZE_OF_TILES
            }
            for tile, (whole_s, boundary_s) in costs.items():
                lines[tile].append(f"{passes}: {{whole: {whole_s * 1e6:.1f}, boundary: {boundary_s * 1e6:.1f}}}")
        text += f"      {size}:\n"
        for tile in sorted(lines):
            text += f'        "{tile}":\n' + "".join(f"          {line}\n" for line in lines[tile])
    return text


def timed_tile(tile: Tile, call_s: float, passes: str, found: list[dict[str, Any]]) -> tuple[float, float]:
    """(seconds of a whole tile, of a boundary tile), from blocks of such tiles."""
    seconds = {row["band"]: row[passes] - call_s for row in found if row.get("tile") == str(tile)}
    counts = {band: block_tile_count(CalibrationBlock(4 * tile.block_q, band), tile, "xla") for band in seconds}
    whole_s = seconds["whole"] / float(counts["whole"].whole) / HEADS
    beside = seconds["causal"] / HEADS - float(counts["causal"].whole) * whole_s
    return whole_s, max(whole_s, beside / float(counts["causal"].boundary))


def entries(kernel: str, costs: Mapping[Shape, "Fit"]) -> Iterator[str]:
    """The lines of a kernel in a table."""
    sizes = {heads for own, heads, _ in costs if own == kernel}
    for heads in sorted(sizes, key=lambda text: [*map(int, text.split("/"))]):
        keys, values = heads.split("/")
        yield f'      {keys if keys == values else heads}:\n        "128x128":\n'
        for passes in PASSES:
            if fit := costs.get((kernel, heads, passes)):
                costs_s = f"tile_s: {fit.tile_s:.4e}, call_s: {fit.call_s:.2e}, start_s: {fit.start_s:.2e}"
                yield f"          {passes}: {{{costs_s}, block: {fit.block}}}  # {fit.said}\n"


def found_in(run: Path, part: str) -> list[dict[str, Any]]:
    """What a part of `make check-gpu` found, nothing where it did not run."""
    path = run / f"{part}.json"
    return json.loads(path.read_text())["found"] if path.exists() else []


def run_of(name: str) -> Path | None:
    """The folder of `make check-gpu`, with tiles, on a machine, else on another of its architecture."""
    runs = sorted(filter(tiles_of, MEASURED.iterdir()), key=lambda path: machine_of(path) != name)
    return next((path for path in runs if architecture(machine_of(path)) == architecture(name)), None)


def tiles_of(run: Path) -> list[dict[str, Any]]:
    """The timed tiles of kernel `xla`."""
    return found_in(run, "tile_costs")


def machine_of(path: Path) -> str:
    """The machine of a folder of `make check-gpu`."""
    found = named_by_device(json.loads((path / "device.json").read_text())["kind"])
    assert found
    return found.name


def architecture(name: str) -> str:
    return str(Hardware.load(name).compiler["compute_capability"])


def ratio_of(name: str, other: str, own: Fit | None = None, others: Fit | None = None) -> tuple[float, str, str]:
    """(seconds of a tile on a machine over those on another, the other, the name of the ratio), by the own fits of both
    for heads of 128, where both have one."""
    if own and others:
        return own.tile_s / others.tile_s, other, "their tiles for heads of 128"
    return clock(other) / clock(name), other, "their clock rates"


def clock(name: str) -> float:
    return float(Hardware.load(name).compiler["clock_rate_ghz"])


if __name__ == "__main__":
    sustained_shares() if "--sustained" in sys.argv else main()
