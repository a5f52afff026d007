"""Tiles of the xla kernel on pinned CPU cores: GFLOP/s of a whole 4k block of one head, forward and backward.

    python benchmarks/cpu_tiles.py [head_dim ...]

Each core runs the same block at the same time, as in a ring. FLOPs: two matmuls a tile forward, five backward.
"""

import sys

from stripectl.results.environment import cores
from stripectl.workers.worker_group import WorkerGroup

ROWS = 4096
TILES = ("128x512", "256x256", "256x512", "512x512", "512x1024", "1024x1024", "2048x2048")

with WorkerGroup(len(cores())) as devices:
    print(f"{'dtype':9} {'head':>4} {'tile':>10} {'forward':>8} {'backward':>8} {'both':>6}   GFLOP/s a core")
    for dtype in ("float32", "bfloat16"):
        for head_dim in map(int, sys.argv[1:] or ("64", "128")):
            for tile in TILES:
                shape = {"group": 1, "head_dim": head_dim, "v_head_dim": head_dim, "dtype": dtype}
                block = {"rows": ROWS, "band": "whole", "shape": shape}
                answers = devices.ask("time_block", 600, kernel="xla", tile=tile, **block)
                seconds = {name: max(each[name] for each in answers) for name in ("forward", "backward")}
                matmul = 2 * ROWS**2 * head_dim / 1e9
                rates = (
                    2 * matmul / seconds["forward"],
                    5 * matmul / seconds["backward"],
                    7 * matmul / sum(seconds.values()),
                )
                print(f"{dtype:9} {head_dim:4} {tile:>10} {rates[0]:8.0f} {rates[1]:8.0f} {rates[2]:6.0f}", flush=True)
