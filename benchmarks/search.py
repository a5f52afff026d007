"""How long it takes to time and rank ten thousand plans without a compiler, and to explain the fastest of them.

    python benchmarks/search.py                # attention, training steps, and the search of a command
    python benchmarks/search.py --plans 500    # so many plans of attention and of steps

Plans are counted with their tiles: every scheme, layout and mesh that can compute the workload, with 25 tiles each.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from typing import NamedTuple

from stripectl.analysis.ranking import rankings
from stripectl.core.layout import Tile, layouts
from stripectl.core.plan import Plan
from stripectl.core.scheme import schemes
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import STEP, Workload
from stripectl.measure.local_target import LocalTarget, local_target
from stripectl.measure.local_workers import LocalWorkers
from stripectl.measure.machine_timings import MachineTimings
from stripectl.models.model_files import load_model
from stripectl.results.backend import finals
from stripectl.results.measurement import Measurement
from stripectl.runner.backends import Simulated
from stripectl.runner.cases import make_case
from stripectl.runner.meshes import every_mesh

MODEL = load_model("llama3-8b")
TILES = [Tile(*sides) for sides in itertools.product((256, 512, 1024, 2048, 4096), repeat=2)]
STEPS = Workload(seq_len=2**19, batch=2, passes=STEP, model=MODEL.name, **MODEL.step_sizes)
ATTENTION = STEPS.one_layer("forward-backward")
SEARCHES = {"attention": ("v5p:4x4x4", ATTENTION), "steps": ("v5p:4x4x8", STEPS)}
COMMAND = (
    "bench --target v5p:4x4x8 --seqlen 128k --model llama3-8b --pass step --mesh auto --scheme all --method simulated"
)


class Seconds(NamedTuple):
    """Seconds on the clock, and of the processor: on a busy machine only the second compare."""

    clock: float
    processor: float

    @classmethod
    def now(cls) -> "Seconds":
        return cls(time.perf_counter(), time.process_time())

    def since(self, start: "Seconds") -> "Seconds":
        return Seconds(self.clock - start.clock, self.processor - start.processor)

    def __str__(self) -> str:
        return f"{self.clock:.1f} s ({self.processor:.1f} s of the processor)"


class Search(NamedTuple):
    """The plans of a search in their order, each with its result, the fastest of them, and the times of the parts."""

    found: list[Measurement]
    best: Measurement
    making: Seconds
    simulating: Seconds
    ranking: Seconds
    all: Seconds


def able_plans(work: Workload, devices: int) -> list[Plan]:
    """Every scheme, layout and mesh of so many devices that can compute the workload."""
    pairs = itertools.product(schemes.names(), layouts.names())
    plans = (
        Plan(scheme, layout, "pallas_tpu")
        for scheme, layout in pairs
        if layout in (schemes[scheme].layouts or layouts.names()) and "softmax" in schemes[scheme].kernel_families
    )
    meshed = (each for plan in plans for each in every_mesh(plan, devices))
    return [plan for plan in meshed if not why_unsupported(plan, work, "tpu", devices)]


def search(name: str, most: int | None = None) -> Search:
    """Make, simulate and rank the plans of a search; with `most`, so many plans, spread evenly over schemes and
    meshes."""
    target, work = SEARCHES[name]
    with LocalWorkers(lambda *_: None) as workers:
        place: LocalTarget = local_target(target, None, workers)
        start = Seconds.now()
        able = able_plans(work, place.target.devices)
        if most is not None:
            wanted = min(len(able), max(1, most // len(TILES)))
            able = [able[at * len(able) // wanted] for at in range(wanted)]
        tiled = (replace(plan, tile=tile) for plan in able for tile in TILES)
        cases = [make_case(work, plan, {}, place, "simulated", describe=False) for plan in tiled]
        made = Seconds.now()
        found = finals(Simulated(place, MachineTimings(workers)).run(cases))
        simulated = Seconds.now()
        best = rankings(found)[0].best
        ranked = Seconds.now()
    return Search(found, best, made.since(start), simulated.since(made), ranked.since(simulated), ranked.since(start))


def command_seconds() -> float:
    """Seconds on the clock that the command takes, from its start to its report."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        line = [sys.executable, "-m", "stripectl", *COMMAND.split(), "--quiet", "--output", "run"]
        subprocess.run(line, check=True, cwd=folder, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, help="of attention and of steps (default: all, and the command too)")
    most: int | None = parser.parse_args().plans
    for name, (target, _) in SEARCHES.items():
        done = search(name, most)
        timed = sum(m.median_s is not None for m in done.found)
        print(f"{name} on {target}: {len(done.found):,} plans, {timed:,} with a time")
        print(f"  the fastest is {done.best.plan}, {done.best.median_s:.3f} s")
        print(f"  made in {done.making}, simulated and 20 explained in {done.simulating}, ranked in {done.ranking}")
        print(f"  in all {done.all}")
    if most is None:
        print(f"stripectl {COMMAND}\n  {command_seconds():.1f} s")


if __name__ == "__main__":
    main()
