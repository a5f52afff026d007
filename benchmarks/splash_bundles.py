"""Tiles of the splash kernel by the compiler's bundles: microseconds that 1024x1024 scores of a head of 128 take.

    python benchmarks/splash_bundles.py v5e:2x2 1.5       # a topology, and the clock of its matrix units in GHz

Needs libtpu and no TPU. Each tile is compiled in a process of its own, because the dump's folder is a flag of libtpu.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from stripectl import StripectlError
from stripectl.bundles import dump_flags, kernels
from stripectl.plan import parse_tile

TILES = ("512", "512x1024", "1024x512", "1024", "1024x2048", "2048x1024", "2048")
COMPILE = """
import sys
from jax.experimental import topologies
from stripectl.execute import Program
from stripectl.plan import parse_plan
from stripectl.workload import Workload

name, mask, tile = sys.argv[1:]
chip = {"chip_config_name": "megacore"} if name.startswith(("v4", "v5:")) else {}
devices = topologies.get_topology_desc(platform="tpu", topology_name=name, **chip).devices
work = Workload(seq_len=8192, heads=4, kv_heads=4, head_dim=128, mask=mask, passes="forward-backward")
program = Program(work, parse_plan(f"ring/contiguous/splash@ring=1,tile={tile}"), devices)
program.function.lower(*program.shapes).compile()
"""


def bundles(topology: str, mask: str, tile: str) -> dict[str, int]:
    """Bundles of a computed tile, with the rest of its step, by kernel."""
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
        env["LIBTPU_INIT_ARGS"] = dump_flags(Path(folder))
        command = [sys.executable, "-c", COMPILE, topology, mask, tile]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode:
            full = "RESOURCE_EXHAUSTED" in done.stderr
            raise StripectlError("does not compile" if full else done.stderr.strip().splitlines()[-1])
        return {each.name.split("_")[2]: each.tile + each.step for each in kernels(Path(folder))}


def main(topology: str, ghz: str) -> None:
    print(
        f"{topology} at {ghz} GHz\n{'tile':>10}{'whole':>22}{'masked':>22}\n{'':10}"
        + f"{'fwd':>8}{'dq':>7}{'dkv':>7}" * 2
    )
    for tile in TILES:
        cells = []
        scale = 2**20 / (parse_tile(tile).block_q * parse_tile(tile).block_kv) / float(ghz) / 1e3
        for mask in ("full", "causal"):
            try:
                found = bundles(topology, mask, tile)
                cells.append(
                    "".join(f"{found[name] * scale:{8 if name == 'fwd' else 7}.2f}" for name in ("fwd", "dq", "dkv"))
                )
            except StripectlError as error:
                cells.append(f"{error!s:>22.22}")
        print(f"{tile:>10}" + "".join(cells), flush=True)


main(*sys.argv[1:])
