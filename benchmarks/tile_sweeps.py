"""Records what every tile of a sweep takes on two pinned cores, so that searches can be replayed: benchmarks/sweeps/.

    python benchmarks/tile_sweeps.py [NAME ...]

Of every tile: runs of the workload cut to one key/value group (`short_s`) and of the whole (`samples_s`), each in turns
with the other tiles; the first of each list stands for the run that warms up. A sweep of `backward` tiles keeps the
tile of the forward pass. Seconds are processor time of the process that needs more, from the kernel's schedstat: what
else runs on these cores makes a run longer, and it does not make a tile slower.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from stripectl.core.kernel import kernels
from stripectl.core.layout import layouts
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import Workload
from stripectl.workers.process import Process
from stripectl.workers.worker_group import WorkerGroup

FOLDER = Path(__file__).parent / "sweeps"
SHORT, FULL = 3, 10  # runs, with the one that warms up
MAX_TILE_SCORES = 2**18  # scores of a tile
# name: (plan, the option that is swept, workload)
SWEEPS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "striped_forward": ("ring/striped/xla@ring=2", "tile", {"seq_len": 8192, "heads": 4, "head_dim": 64}),
    "striped_backward": (
        "ring/striped/xla@ring=2,tile=512x512",
        "backward",
        {"seq_len": 4096, "heads": 4, "head_dim": 64},
    ),
    "contiguous_forward": ("ring/contiguous/xla@ring=2", "tile", {"seq_len": 8192, "heads": 2, "head_dim": 128}),
    "contiguous_backward": (
        "ring/contiguous/xla@ring=2,tile=512x512",
        "backward",
        {"seq_len": 4096, "heads": 3, "head_dim": 64},
    ),
    "gathered_backward": (
        "all_gather/striped/xla@ring=2,tile=256x256",
        "backward",
        {"seq_len": 4096, "heads": 2, "head_dim": 128},
    ),
    "zigzag_grouped_forward": (
        "ring/zigzag/xla@ring=2",
        "tile",
        {"seq_len": 8192, "heads": 8, "kv_heads": 4, "head_dim": 64},
    ),
    "one_head_forward": ("ring/striped/xla@ring=2", "tile", {"seq_len": 16384, "heads": 1, "head_dim": 64}),
}


def plans_of(plan: Plan, option: str, workload: Workload) -> list[Plan]:
    rows = workload.seq_len // plan.shards // layouts[plan.layout].pieces
    tiles = [tile for tile in kernels[plan.kernel].candidate_tiles(rows) if tile.scores <= MAX_TILE_SCORES]
    found = [replace(plan, **{option: tile}) for tile in tiles]
    return [each for each in found if why_unsupported(each, workload, "cpu", 2) is None]


def processor_s(devices: WorkerGroup) -> list[float]:
    """Seconds that the threads of every worker have run."""
    found = []
    for worker in devices.workers:
        assert isinstance(worker, Process)
        threads = Path(f"/proc/{worker.process.pid}/task").glob("*/schedstat")
        found.append(sum(int(path.read_text().split()[0]) for path in threads) / 1e9)
    return found


def runs(devices: WorkerGroup, workload: Workload, plans: list[Plan], count: int) -> list[list[float]]:
    """Seconds of so many runs of every plan, in turns."""
    for index, plan in enumerate(plans):
        request = {"workload": workload.to_json(), "plan": str(plan), "flags": {}, "verify": False}
        devices.ask("prepare", 600, key=str(index), warmup=1, **request)
    found: list[list[float]] = [[] for _ in plans]
    for _ in range(count):
        for index, seconds in enumerate(found):
            before = processor_s(devices)
            devices.ask("sample", 600, key=str(index))
            seconds.append(max(b - a for a, b in zip(before, processor_s(devices), strict=True)))
    devices.ask("release")
    return found


def record(name: str) -> None:
    text, option, sizes = SWEEPS[name]
    passes = "forward" if option == "tile" else "forward-backward"
    workload = Workload(**{"kv_heads": sizes["heads"], "dtype": "float32", "passes": passes} | sizes)
    short = replace(workload, heads=workload.heads // workload.kv_heads, kv_heads=1)
    plans = plans_of(parse_plan(text), option, workload)
    started = time.monotonic()
    with WorkerGroup(2) as devices:
        short_s = runs(devices, short, plans, SHORT)
        samples_s = runs(devices, workload, plans, FULL)
    tiles = [
        {
            "plan": str(plan),
            "short_s": [float(f"{x:.5g}") for x in brief],
            "samples_s": [float(f"{x:.5g}") for x in full],
        }
        for plan, brief, full in zip(plans, short_s, samples_s, strict=True)
    ]
    content = {"target": "cpu:2", "workload": workload.to_json(), "tiles": tiles}
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    print(f"{name}: {len(plans)} tiles in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    for each in sys.argv[1:] or SWEEPS:
        record(each)
