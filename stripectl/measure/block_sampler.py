"""Tiles timed here on a block of scores, one sample at a time, as a search asks.

Their cost does not depend on scheme or layout, so each is timed once, and plans are simulated from it.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from stripectl.core.kernel import kernels
from stripectl.core.layout import Tile
from stripectl.core.reason import Reason
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import CostModel
from stripectl.costs.sources.timed_tiles import BlockShape, CalibrationBlock, block_tile_count
from stripectl.measure.local_target import LocalTarget
from stripectl.measure.machine_timings import MachineTimings
from stripectl.measure.prior import work_of
from stripectl.results.case import Case
from stripectl.results.cost_source import CostOrigin, CostSource, Timings
from stripectl.results.measurement import Measurement
from stripectl.results.records import record_json
from stripectl.results.tile_cost import TileCost
from stripectl.simulate.simulation import simulate
from stripectl.util.json import Json
from stripectl.workers.failure import failure_kind, failure_reason
from stripectl.workers.worker_group import WorkerError

BLOCK_ROWS = 4096  # queries and keys of the block that a tile is first timed on
BAND = "whole"  # long shards have few boundary tiles


@dataclass
class TimedTiles:
    """Tiles timed here on one block of scores, once for all plans that need them, whatever their layout."""

    timings: MachineTimings
    place: LocalTarget
    samples_s: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, WorkerError] = field(default_factory=dict)
    ready: tuple[int, set[str]] = (0, set())  # the number of the workers' start, and the blocks that they have prepared

    def shape(self, workload: Workload, kernel: str) -> BlockShape:
        return BlockShape.of(workload, kernel, self.place.target.hardware.kind)

    def request(self, workload: Workload, kernel: str, tile: Tile, passes: str) -> dict[str, Json]:
        rows = block_of(kernel, tile).rows
        return {
            "passes": passes,
            "kernel": kernel,
            "tile": str(tile),
            "rows": rows,
            "band": BAND,
            "shape": record_json(self.shape(workload, kernel)),
        }

    def known(self, workload: Workload, kernel: str, tile: Tile, passes: str) -> list[float]:
        return self.samples_s.setdefault(str(self.request(workload, kernel, tile, passes)), [])

    def sample(self, workload: Workload, kernel: str, tile: Tile, passes: str, nth: int) -> float | None:
        """Seconds of the n-th run; None: it failed."""
        request = self.request(workload, kernel, tile, passes)
        key, known = str(request), self.known(workload, kernel, tile, passes)
        if len(known) > nth:
            return known[nth]
        workers = self.timings.workers.group(self.place.processes)
        try:
            while len(known) <= nth and key not in self.failed:
                if self.ready[0] != workers.starts or not workers.workers:
                    self.ready = workers.starts + (not workers.workers), set()
                if key not in self.ready[1]:
                    workers.ask("prepare_block", 600, key=key, **request)
                    self.ready[1].add(key)
                known.append(max(workers.ask("sample_block", 600, key=key)))
        except WorkerError as failure:
            self.failed[key] = failure
        return None if key in self.failed else known[nth]

    def cost(self, workload: Workload, kernel: str, tile: Tile, passes: str) -> TileCost:
        """The cost of a tile of one head, by the median of its timings, for every kind of tile."""
        seconds, block = self.known(workload, kernel, tile, passes), block_of(kernel, tile)
        tiles = float(block_tile_count(block, tile, kernel).computed) * self.shape(workload, kernel).heads
        each = statistics.median_high(seconds) / tiles if seconds else 0.0
        return TileCost(each, each)

    def resume(self, done: Iterable[Measurement]) -> None:
        """Use earlier timings instead of timing again."""
        for m in done:
            plan = m.plan
            for passes, seconds in ((m.cost_source and m.cost_source.timings.coarse) or {}).items():
                if not (known := self.known(m.workload, plan.kernel, plan.tiles[passes], passes)):
                    known += seconds


def block_of(kernel: str, tile: Tile) -> CalibrationBlock:
    """The block on which a tile is first timed; it holds whole tiles where the kernel needs them."""
    step = math.lcm(*tile.sides) if kernels[kernel].tile_multiple > 1 else 1
    return CalibrationBlock(-(-max(BLOCK_ROWS, *tile.sides) // step) * step, BAND)


class BlockSampler:
    """One pass of a plan (`Sampler`): the time of a block with a candidate's tile, scaled to the scores that the plan
    computes. The candidates of a forward pass differ in its tile, all others in the tile of the backward pass."""

    def __init__(self, tiles: TimedTiles, cases: Sequence[Case], place: LocalTarget) -> None:
        self.tiles, self.cases, self.place = tiles, cases, place
        self.passes = "forward" if cases[0].workload.passes == "forward" else "backward"
        self.prior_s = [work_of(case, {self.passes: 1.0}) for case in cases]
        self.runs, self.spent_s = [0] * len(cases), 0.0

    def pull_short(self, index: int) -> float | None:
        return self._run(index)

    def pull_full(self, index: int) -> float | None:
        return self._run(index)

    def _run(self, index: int) -> float | None:
        plan, workload = self.cases[index].plan, self.cases[index].workload
        tile = plan.tiles[self.passes]
        self.tiles.timings.workers.say(f"time tiles of {tile}, {self.passes}", index, len(self.cases))
        seconds = self.tiles.sample(workload, plan.kernel, tile, self.passes, self.runs[index])
        if seconds is None:
            return None
        self.runs[index] += 1
        self.spent_s += seconds
        block = block_of(plan.kernel, tile)
        tiles = float(block_tile_count(block, tile, plan.kernel).computed)
        scores = tiles * self.tiles.shape(workload, plan.kernel).heads * tile.scores
        return seconds / scores * self.prior_s[index]

    def result(self, index: int) -> Measurement | None:
        """The case simulated from the time of its block."""
        case, plan, failed = self.cases[index], self.cases[index].plan, Measurement.of(self.cases[index])
        try:
            hop = self.tiles.timings.hop_of(self.place)
        except WorkerError as failure:
            reason = Reason(failure_kind(failure), f"a hop could not be timed: {failure}")
            return replace(failed, status="failed", reason=reason)
        found, costs = dict[str, tuple[float, ...]](), dict[str, TileCost]()
        for passes, tile in plan.tiles.items():
            costs[passes] = self.tiles.cost(case.workload, plan.kernel, tile, passes)
            if known := self.tiles.known(case.workload, plan.kernel, tile, passes):
                found[passes] = tuple(known)
        own = plan.tiles[self.passes]
        key = str(self.tiles.request(case.workload, plan.kernel, own, self.passes))
        if key in self.tiles.failed:
            reason, status = failure_reason(self.tiles.failed[key], "its tiles could not be timed: ")
            return replace(failed, status=status, reason=reason)
        if not self.runs[index]:
            return None
        latency, rate = hop or (0.0, float("inf"))
        timings = Timings(tile=str(own), block=f"{BLOCK_ROWS} {BAND}", coarse=found)
        source = CostSource(source=CostOrigin.ONE_BLOCK, timings=timings)
        overlaps = self.place.target.hardware.overlaps
        machine = CostModel(costs["forward"], costs["backward"], source, latency, rate, overlaps)
        seconds = simulate(case.workload, plan, machine).seconds
        return replace(Measurement.of(case, "simulated"), median_s=seconds, cost_source=source)

    def release(self) -> None:
        """Nothing to forget: blocks are kept for other plans."""
