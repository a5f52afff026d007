"""Times of hops, matrices and tiles that are measured on the local devices, each once."""

from dataclasses import replace
from typing import Any

from stripectl.core.layout import Tile
from stripectl.core.workload import Workload
from stripectl.costs.sources.timed_tiles import HOP_BYTES, BlockShape, CalibrationBlock, blocks_for, fit_hop
from stripectl.hardware.profile import MEASURED_ON, Hardware
from stripectl.measure.local_target import LocalTarget
from stripectl.measure.local_workers import LocalWorkers
from stripectl.results.records import record_json


class MachineTimings:
    """The timings of a command. Each is made by the processes of a target when it is first asked for."""

    def __init__(self, workers: LocalWorkers) -> None:
        self.workers = workers
        self.tiles: dict[Any, dict[CalibrationBlock, float]] = {}
        self.hops: dict[int | None, tuple[float, float] | None] = {}
        self.rates: dict[str, float] = {}

    def hop(self, processes: int | None, count: int) -> tuple[float, float] | None:
        """(latency, rate) of a hop between the local devices, or None for one device."""
        if processes not in self.hops:
            timed = []
            for done, nbytes in enumerate(HOP_BYTES if count > 1 else ()):
                self.workers.say(f"time a hop of {nbytes >> 10} KiB", done, len(HOP_BYTES))
                timed.append(max(self.workers.group(processes).ask("time_hop", nbytes=nbytes)))
            self.hops[processes] = fit_hop(HOP_BYTES, timed) if timed else None
        return self.hops[processes]

    def hop_of(self, place: LocalTarget) -> tuple[float, float] | None:
        """(latency, rate) of a hop: measured between the local devices, else from the datasheet."""
        hardware, hop = place.target.hardware, self.hop(place.processes, place.processes or place.here)
        if hop is None and (link := hardware.figure("link_bytes_per_s_one_way")):
            return hardware.figure("hop_latency_s") or 0.0, link
        return hop

    def hardware(self, place: LocalTarget, dtype: str) -> Hardware:
        """The target's hardware, with the rate of a large matmul measured on it where it is local."""
        known = place.target.hardware
        if not place.is_timed:
            return known
        if dtype not in self.rates:
            self.workers.say("time a matmul", 0, 1)
            self.rates[dtype] = min(self.workers.group(place.processes).ask("time_matmul", 300, dtype=dtype))
        name = f"achievable_flops_per_s_{dtype}"
        figures, sources = (
            {**known.figures, name: self.rates[dtype]},
            {**known.sources, name: f"{MEASURED_ON}the devices here"},
        )
        return replace(known, figures=figures, sources=sources)

    def tile_times(
        self, place: LocalTarget, kernel: str, tile: Tile, workload: Workload, passes: str
    ) -> dict[CalibrationBlock, float]:
        """Seconds of the blocks of a tile in one pass."""
        shape = BlockShape.of(workload, kernel, place.target.hardware.kind)
        which = (place.processes, kernel, tile, passes, shape)
        if which not in self.tiles:
            (fitted, held_out), times = blocks_for(tile), dict[CalibrationBlock, float]()
            for done, block in enumerate([*fitted, held_out]):
                self.workers.say(f"time tiles of {tile}, {passes}: {block}", done, len(fitted) + 1)
                request = {"rows": block.rows, "band": block.band, "passes": [passes], "shape": record_json(shape)}
                group = self.workers.group(place.processes)
                answers = group.ask("time_block", 600, kernel=kernel, tile=str(tile), **request)
                times[block] = sum(answer[passes] for answer in answers) / len(answers)
            self.tiles[which] = times
        return self.tiles[which]
