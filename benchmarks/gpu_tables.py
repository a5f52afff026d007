"""Makes the tables of GPUs in `profiles/kernels/`: two constants a head size and pass, seconds of a tile on one
processor and of a call, that explain the published times best (least squares of relative errors).

    python benchmarks/gpu_tables.py

Blocks of thread blocks: Hopper's take 128 queries, Blackwell's 256 (two of 128), keys in tiles of 128; in backward
passes they take 128 keys. A machine without published times takes those of one of its architecture, at its own clock.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
from kernel_tables import schedule_lines, schedule_of
from scipy.optimize import nnls

from stripectl.analysis.accuracy.attention import PublishedTime, attention_rows, calls
from stripectl.core.layout import Tile
from stripectl.hardware.profile import Hardware
from stripectl.simulate.cost_model import TileCost

FOLDER = Path(__file__).parents[1] / "profiles" / "kernels"
BLOCKS = {"9.0": Tile(128, 128), "10.0": Tile(256, 128), "10.3": Tile(256, 128)}
BACKWARD = Tile(128, 128)
# What no published time is of: the machine of the same architecture whose times are taken, by pass.
LIKE = {
    "h100": {"backward": "h200"},
    "h200": {"forward": "h100"},
    "gb200": {"forward": "gb300", "backward": "gb300"},
    "b200": {"forward": "gb300", "backward": "gb300"},
}
HEADER = """# What cuDNN's attention costs on {name}: seconds of a tile of a block on one processor, and of a call.
# kernel, dtype, head_dim, queries x keys of a tile in which work is counted, pass.
# After each entry: how many published rows it was fitted to, or whose it is.
# Made by: python benchmarks/gpu_tables.py
source: published times (profiles/published/attention.csv)
kernels:
  cudnn:
    bfloat16:
"""


def block_of(hardware: Hardware, passes: str) -> Tile:
    return BLOCKS[str(hardware.compiler["compute_capability"])] if passes == "forward" else BACKWARD


def fitted(rows: list[PublishedTime], hardware: Hardware, block: Tile) -> tuple[float, float]:
    """(seconds of a tile, seconds of a call)."""
    cores = int(hardware.compiler["core_count"])
    unit = TileCost(1.0, 1.0, processors=cores, block=block)
    tiles = [call.tiles for row in rows for call in calls(row, unit)]
    counts = np.array([(each.busiest[0], each.calls[0]) for each in tiles], float)
    seconds = np.array([row.seconds for row in rows])
    (tile_s, call_s), _ = nnls(counts / seconds[:, None], np.ones(len(rows)))
    return tile_s, call_s


def main() -> None:
    groups = defaultdict(list)
    for row in attention_rows():
        if Hardware.load(row.hardware).kind == "gpu":
            groups[row.hardware, f"{row.head_dim}/{row.v_dim}", row.passes].append(row)
    fits: dict[str, dict[tuple[str, str], tuple]] = defaultdict(dict)
    for (name, heads, passes), rows in groups.items():
        hardware = Hardware.load(name)
        block = block_of(hardware, passes)
        tile_s, call_s = fitted(rows, hardware, block)
        fits[name][heads, passes] = tile_s, call_s, block, len(rows), name
    found = {name: dict(fits[name]) for name in {*fits, *LIKE}}
    for name, like in LIKE.items():
        for wanted, other in like.items():
            ratio = clock(other) / clock(name)
            for (heads, passes), (tile_s, call_s, block, _, _) in fits[other].items():
                if passes == wanted:
                    found[name].setdefault((heads, passes), (tile_s * ratio, call_s, block, 0, other))
    for name, costs in sorted(found.items()):
        text = HEADER.format(name=name)
        for heads in sorted({heads for heads, _ in costs}, key=lambda text: [*map(int, text.split("/"))]):
            keys, values = heads.split("/")
            text += f'      {keys if keys == values else heads}:\n        "128x128":\n'
            for passes in ("forward", "backward"):
                if (heads, passes) in costs:
                    tile_s, call_s, block, rows, of = costs[heads, passes]
                    said = f"{rows} rows" if rows else f"as {of}, at the clock rate of {name}"
                    costs_s = f"tile_s: {tile_s:.4e}, call_s: {call_s:.2e}"
                    text += f"          {passes}: {{{costs_s}, block: {block}}}  # {said}\n"
        text += "\n".join(schedule_lines(name, schedule_of(name))) + "\n"
        (FOLDER / f"{name}.yaml").write_text(text)
        print(text)


def clock(name: str) -> float:
    return float(Hardware.load(name).compiler["clock_rate_ghz"])


if __name__ == "__main__":
    main()
