"""The default tiles of kernels whose machine has no table: the fastest of a few that are timed here on a block.

All plans share the timings. The tile of the kernel's description stays unless another is clearly faster, so that two
runs on one machine compare the same plans.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stripectl.core.kernel import kernels
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan
from stripectl.core.workload import Workload
from stripectl.costs.default_tiles import Calls, fits_piece, tiles_of_calls
from stripectl.costs.sources.table import machine_table
from stripectl.costs.sources.timed_tiles import block_tile_count
from stripectl.measure.block_sampler import BLOCK_ROWS, TimedTiles, block_of
from stripectl.results.measurement import Measurement

SIDES = (0.5, 1, 2, 4)  # times the sides of the usual tile
SAMPLES = 3  # of each tile, in alternation
CLEARLY = 1.05  # times as fast as the usual tile, in each sample
WORTH = 10  # times the work of all blocks that are timed: a workload with less has the usual tile


@dataclass
class TimedDefaults:
    """The default tiles of plans on a target whose devices are here, and the earlier measurements of a resumed run,
    whose tiles stay."""

    tiles: TimedTiles
    previous: Sequence[Measurement] = ()

    def __call__(self, plan: Plan, workload: Workload, passes: str) -> Tile | None:
        """The tile of a pass of a plan of equal layers, which names its usual tile; None where that stays."""
        kernel, hardware = kernels[plan.kernel], self.tiles.place.target.hardware
        if kernel.family != "softmax" or kernel.keeps_all_scores or machine_table(hardware, kernel):
            return None
        if before := self.before(plan, workload):
            return before.tiles[passes]
        usual, calls = plan.tiles[passes], Calls.of(plan, workload, passes)
        wanted = [Tile(int(usual.block_q * times), int(usual.block_kv * times)) for times in SIDES]
        tiles = [tile for tile in wanted if fits_piece(tile, kernel, calls.sharding)]
        known = all(self.tiles.known(workload, plan.kernel, tile, passes) for tile in tiles)
        if len(tiles) < 2 or not (known or is_worth_timing(workload, len(tiles))):
            return None
        seconds = self.seconds_of(tiles, workload, calls)
        own = seconds.get(usual, [math.inf] * SAMPLES)
        clear = (tile for tile in seconds if all(CLEARLY * s < o for s, o in zip(seconds[tile], own, strict=True)))
        return min(clear, key=lambda tile: statistics.median(seconds[tile]), default=None)

    def seconds_of(self, tiles: Sequence[Tile], workload: Workload, calls: Calls) -> dict[Tile, list[float]]:
        """Samples of the seconds of the calls, each from a sample of a block, by tile; without tiles that fail."""
        kernel, passes, samples = calls.shape.kernel, calls.shape.passes, dict[Tile, list[float]]()
        for nth, (at, tile) in itertools.product(range(SAMPLES), enumerate(tiles)):
            self.tiles.timings.workers.say(f"time tiles of {tile}, {passes}, for the default", at, len(tiles))
            seconds = self.tiles.sample(workload, kernel, tile, passes, nth)
            if seconds is not None:
                block = block_tile_count(block_of(kernel, tile), tile, kernel)
                computed = np.broadcast_to(tiles_of_calls(tile, calls).computed, calls.sharding.shards).sum()
                samples.setdefault(tile, []).append(seconds * float(computed) / float(block.computed))
        return {tile: each for tile, each in samples.items() if len(each) == SAMPLES}

    def before(self, plan: Plan, workload: Workload) -> Plan | None:
        """The same plan as the resumed run measured or simulated it."""
        bare = replace(plan, tile=None, backward=None)
        same = (m.plan for m in self.previous if m.workload == workload)
        return next((each for each in same if replace(each, tile=None, backward=None) == bare), None)


def is_worth_timing(workload: Workload, tiles: int) -> bool:
    """Whether a forward pass of the workload is much more work than the timing of its tiles."""
    block_flops = 2 * BLOCK_ROWS**2 * (workload.head_dim + workload.value_dim)
    return replace(workload, passes="forward").flops >= WORTH * SAMPLES * tiles * block_flops
