"""How long it takes to time and rank ten thousand plans without a compiler, and to explain the best.

    python benchmarks/search.py            # v5p:4x4x4, 1M tokens, forward and backward

Every scheme, layout and mesh that can compute the workload, with 25 tiles each.
"""

import itertools
import sys
import time
from dataclasses import replace

from stripectl.analysis.ranking import rankings
from stripectl.core.layout import Tile, layouts
from stripectl.core.model_config import Model
from stripectl.core.plan import Plan
from stripectl.core.scheme import schemes
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import Workload
from stripectl.measure.local_target import local_target
from stripectl.measure.local_workers import LocalWorkers
from stripectl.measure.machine_timings import MachineTimings
from stripectl.results.backend import finals
from stripectl.runner.backends import Simulated
from stripectl.runner.cases import asked_meshes, make_case
from stripectl.runner.request import Request

TARGET, MODEL, LENGTH, BATCH = "v5p:4x4x4", "llama3-8b", 2**20, 2  # tokens of a batch, and sequences in it
SIDES = (256, 512, 1024, 2048, 4096)


def main(target: str) -> None:
    model = Model.load(MODEL)
    work = Workload(
        seq_len=LENGTH // BATCH,
        batch=BATCH,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        passes="forward-backward",
        model=MODEL,
    )
    plans = [
        Plan(scheme, layout, "pallas_tpu")
        for scheme, layout in itertools.product(schemes.names(), layouts.names())
        if layout in (schemes[scheme].layouts or layouts.names()) and "softmax" in schemes[scheme].kernel_families
    ]
    tiles = [Tile(*sides) for sides in itertools.product(SIDES, SIDES)]
    request = Request(workloads=[work], plans=plans, every_mesh=True, method="simulated")
    with LocalWorkers(lambda *_: None) as workers:
        place = local_target(target, None, workers)
        start = time.perf_counter()
        meshed = (each for plan in plans for each in asked_meshes(request, plan, place))
        able = [plan for plan in meshed if not why_unsupported(plan, work, "tpu", place.target.devices)]
        tiled = (replace(plan, tile=tile) for plan in able for tile in tiles)
        wanted = [make_case(work, plan, {}, place, "simulated", describe=False) for plan in tiled]
        wanted = [case for case in wanted if case.is_ready]
        ready = time.perf_counter()
        found = finals(Simulated(place, MachineTimings(workers)).run(wanted))
        simulated = time.perf_counter()
        best = rankings(found)[0].best
        ranked = time.perf_counter()
    timed = [m for m in found if m.median_s]
    print(f"{len(wanted):,} plans, {len(timed):,} with a time; the best is {best.plan}, {best.median_s:.3f} s")
    print(f"made in {ready - start:.1f} s, simulated and 20 explained in {simulated - ready:.1f} s, ", end="")
    print(f"ranked in {ranked - simulated:.1f} s; in all {ranked - start:.1f} s")


if __name__ == "__main__":
    main(*(sys.argv[1:] or [TARGET]))
