"""Pallas kernels beside each other by the TPU compiler's bundles: those of 1024x1024 scores of a head.

    python benchmarks/pallas_bundles.py v5e:2x2 128       # a topology, and a head_dim

Needs libtpu and no TPU. Each program is compiled in a process of its own, because the dump's folder is a flag of
libtpu. `whole` is a pair of shards of 16k rows without a mask, `later` striped attention's pair whose diagonal lies
below the main one, by the scores that are kept. Steps and the ends of rows count; waiting is left out.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from stripectl.core.kernel import kernels as catalogue
from stripectl.core.layout import UNBOUNDED, MaskBlock, Tile
from stripectl.core.mask_tiles import count_pairs, count_tiles
from stripectl.core.plan import parse_tile
from stripectl.errors import StripectlError
from stripectl.hlo.llo_bundles import KernelBundles, dump_flags, kernels

TILES = ("1024", "1024x2048", "2048")
ROWS, HEADS = 2**14, 4
PAIRS = {"whole": "full", "later": "causal"}  # and the mask that has its kernels
COMPILE = """
import sys
from jax.experimental import topologies
from stripectl.execute.program import PlanProgram
from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload

name, plan, mask, head_dim, passes, rows, heads = sys.argv[1:]
chip = {"chip_config_name": "megacore"} if name.startswith(("v4", "v5:")) else {}
devices = topologies.get_topology_desc(platform="tpu", topology_name=name, **chip).devices
sizes = {"seq_len": int(rows), "heads": int(heads), "kv_heads": int(heads), "head_dim": int(head_dim)}
program = PlanProgram(Workload(**sizes, mask=mask, passes=passes), parse_plan(plan), devices)
program.function.lower(*program.shapes).compile()
"""


def compiled(topology: str, plan: str, mask: str, head_dim: str, passes: str) -> list[KernelBundles]:
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
        env["LIBTPU_INIT_ARGS"] = dump_flags(Path(folder))
        asked = [topology, plan, mask, head_dim, passes, str(ROWS), str(HEADS)]
        done = subprocess.run([sys.executable, "-c", COMPILE, *asked], env=env, capture_output=True, text=True)
        if done.returncode:
            full = "RESOURCE_EXHAUSTED" in done.stderr
            raise StripectlError("none" if full else done.stderr.strip().splitlines()[-1])
        return kernels(Path(folder))


def bundles(topology: str, kernel: str, tile: Tile, pair: str, head_dim: str, passes: str) -> float:
    """Bundles of 1024x1024 scores that the pair keeps."""
    mask, band = PAIRS[pair], MaskBlock(0, 0, ROWS, ROWS, -UNBOUNDED, -1 if pair == "later" else UNBOUNDED)
    program = "forward" if passes == "forward" else "forward-backward"
    found = compiled(topology, f"ring/contiguous/{kernel}@ring=1,tile={tile}", mask, head_dim, program)
    tiles, each = count_tiles([band], tile), 0
    for part in catalogue[kernel].bundles[passes]:
        (one,) = (one for one in found if part.name in one.name)
        whole, boundary = (tiles.whole, tiles.boundary) if part.only_live else (0, tiles.computed)
        dead = 0 if part.only_live else tiles.dead
        each += whole * one.tile + boundary * one.boundary + (tiles.computed + dead) * one.step + tiles.rows * one.row
    return float(each / (count_pairs([band]) / 2**20))


def main(topology: str, head_dim: str = "128") -> None:
    columns = [(passes, pair) for passes in ("forward", "backward") for pair in PAIRS]
    print(f"{topology}, head_dim {head_dim}\n{'':25}" + "".join(f"{' '.join(column):>16}" for column in columns))
    for kernel in ("splash", "pallas_tpu"):
        for tile in map(parse_tile, TILES):
            cells = []
            for passes, pair in columns:
                try:
                    cells.append(f"{bundles(topology, kernel, tile, pair, head_dim, passes):16,.0f}")
                except StripectlError as error:
                    cells.append(f"{error!s:>16.16}")
            print(f"{kernel:11}{tile!s:>14}" + "".join(cells), flush=True)


main(*sys.argv[1:])
