"""The cost model of a machine: seconds of tiles and hops, and what communication hides behind."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stripectl.core.layout import Tile
from stripectl.core.mask_tiles import TileCount
from stripectl.hardware.links import Hops
from stripectl.hardware.spread import Spread
from stripectl.results.cost_source import FROM_DATASHEET, CostSource

PARTS = ("compute", "communication", "latency", "memory")


@dataclass(frozen=True)
class TileCost:
    """Seconds per head for a tile of each kind, for visiting a row of tiles, and for a call. A kernel that `masks_all`
    masks every tile of a pair of shards with a boundary, and visits its dead tiles. The cost of a call is the same for
    shards of all lengths, except `call_grows`, which is proportional to their rows: copies and merges.

    On a GPU whose `processors` share the thread blocks of a kernel, each of a `block` of queries, `whole_s` is the time
    of a tile on one processor.
    """

    whole_s: float
    boundary_s: float
    dead_s: float = 0.0
    row_s: float = 0.0
    call_s: float = 0.0
    masks_all: bool = False
    call_grows: bool = False
    processors: int = 0
    block: Tile | None = None

    def with_part_sped_up(self, part: str) -> "TileCost":
        """The cost if a part of the machine were twice as fast: compute changes the tiles, memory the traffic of a
        row's accumulators and all else that grows with the rows, latency the time of a call without its tiles."""
        call_is = "memory" if self.call_grows else "latency"
        parts = {
            "whole_s": "compute",
            "boundary_s": "compute",
            "dead_s": "compute",
            "row_s": "memory",
            "call_s": call_is,
        }
        return replace(self, **{kind: getattr(self, kind) / 2 for kind, of in parts.items() if of == part})

    def scaled_to_length(self, times: float) -> "TileCost":
        """The cost on shards with `times` as many rows."""
        return replace(self, call_s=self.call_s * times) if self.call_grows else self

    def seconds(self, tiles: TileCount, heads: int, part: float = 1.0) -> np.ndarray:
        """Seconds of a call with these tiles for `heads` heads, which are a part of a shard's heads."""
        if self.processors:
            return tiles.calls * self.call_s + tiles.busiest * self.whole_s
        each = tiles.whole * self.whole_s + tiles.boundary * self.boundary_s + tiles.dead * self.dead_s
        if self.masks_all:
            masked = tiles.computed * self.boundary_s + tiles.dead * self.dead_s
            each = np.where(np.asarray(tiles.boundary) > 0, masked, tiles.whole * self.whole_s)
        return self.call_s * (part if self.call_grows else 1.0) + heads * (each + tiles.rows * self.row_s)


@dataclass(frozen=True)
class CostModel:
    """The costs of a device and its links; `cost_source` names their source. Axes that are not in `hops` have equal
    hops."""

    forward: TileCost
    backward: TileCost
    hop_latency_s: float
    link_bytes_per_s_one_way: float
    overlaps: bool
    cost_source: CostSource
    exposed: Mapping[tuple[str, str, int], float] = field(default_factory=dict)
    blocking: Sequence[str] = ()  # collectives that the compiler runs without compute, in every pass
    all_reduce_for: Sequence[str] = ()  # collectives that the compiler runs as an all-reduce, of twice the bytes
    hops: Mapping[str, Hops] = field(default_factory=dict)
    torus: bool = False  # devices that are not neighbours send through the devices between them
    collective_latency_s: float = 0.0  # of a collective over an axis, before its first byte moves
    collective_spreads: Mapping[frozenset[str], Spread] = field(default_factory=dict)
    memory_bytes_per_s: float = math.inf  # of reads and writes outside of tiles: copies, merges, conversions
    fill_bytes_per_s: float = math.inf  # of an array that is filled with one value

    @property
    def plans(self) -> int:
        """The number of plans whose tile costs it holds."""
        return np.size(self.forward.whole_s)

    def overlaps_compute(self, passes: str, opcode: str, itemsize: int, nth: int) -> bool:
        """Whether compute runs during the n-th such transfer. `exposed[pass, opcode, itemsize]` is the share of
        transfers without compute, always the first of a few; the others hide behind the compute that follows."""
        if opcode in self.blocking:
            return False
        share = self.exposed.get((passes, opcode, itemsize), 0.0)
        return self.overlaps and math.ceil(nth * share) == math.ceil((nth - 1) * share)

    def with_part_sped_up(self, part: str) -> "CostModel":
        """The machine if a part (one of PARTS) were twice as fast: tiles; links and the network; the cost of a
        hop or a call that does not depend on its size; or the memory that accumulators and copies use. A tile that
        waits for its keys and values in memory counts as compute here, because its time is one figure."""
        assert part in PARTS
        rate, latency = (2 if part == "communication" else 1), (2 if part == "latency" else 1)
        return replace(
            self,
            forward=self.forward.with_part_sped_up(part),
            backward=self.backward.with_part_sped_up(part),
            hop_latency_s=self.hop_latency_s / latency,
            collective_latency_s=self.collective_latency_s / latency,
            link_bytes_per_s_one_way=self.link_bytes_per_s_one_way * rate,
            memory_bytes_per_s=self.memory_bytes_per_s * (2 if part == "memory" else 1),
            hops={axis: Hops(hop.bytes_per_s * rate, hop.latency_s / latency) for axis, hop in self.hops.items()},
        )

    def scaled_to_length(self, times: float) -> "CostModel":
        """The machine for the same plan at `times` the length."""
        return replace(
            self, forward=self.forward.scaled_to_length(times), backward=self.backward.scaled_to_length(times)
        )

    def hop(self, axis: str, size: int, by: int) -> tuple[np.ndarray, np.ndarray]:
        """(bytes/s, latency in seconds) of the hops along an axis, by the place that they leave."""
        alike = Hops(np.full((2, size), self.link_bytes_per_s_one_way), np.full((2, size), self.hop_latency_s))
        both = self.hops.get(axis, alike)
        return both.bytes_per_s[int(by < 0)], both.latency_s[int(by < 0)]

    def devices_per_node(self, axis: str, size: int) -> float:
        """The number of an axis' devices that links join without the network between nodes."""
        crossings = int((self.hop(axis, size, 1)[0] < self.link_bytes_per_s_one_way).sum())
        return size if self.torus or not crossings else size / crossings

    def collective_spread(self, axes: Mapping[str, int]) -> Spread | None:
        """The spread of a collective over axes on the links, where it is known."""
        return self.collective_spreads.get(frozenset(axis for axis, size in axes.items() if size > 1))

    def received_bytes_per_s(self, opcode: str, axes: Mapping[str, int]) -> float:
        """Bytes/s at which a device receives the data of an all-gather, a reduce-scatter or an all-reduce over axes."""
        found, link, summed = self.collective_spread(axes), self.link_bytes_per_s_one_way, opcode in self.all_reduce_for
        if found and found.gather_ways and opcode != "all-reduce" and not summed:
            return found.gather_ways * link
        directions = min(self.ring_directions(axis, size) for axis, size in axes.items())
        per_s = found.ways * link if found else self.collective_bandwidth(axes) * directions
        if found and opcode == "all-gather":  # by an all-reduce, for which zeros are written first
            return 1 / (2 / per_s + 1 / self.fill_bytes_per_s)
        return per_s / 2 if summed else per_s

    def collective_bandwidth(self, axes: Mapping[str, int]) -> float:
        """Bytes/s of an all-gather, a reduce-scatter or an all-reduce round axes: the rate of the slowest hop. Between
        nodes as many rings run at once as a node has devices on the axes, each through another device's network
        (NVIDIA/nccl issue 601), up to the rate of the links within the node."""
        slowest = min(float(self.hop(axis, size, 1)[0].min()) for axis, size in axes.items())
        if self.torus or slowest >= self.link_bytes_per_s_one_way:
            return slowest
        rings = math.prod(self.devices_per_node(axis, size) for axis, size in axes.items())
        return min(self.link_bytes_per_s_one_way, slowest * rings)

    def ring_directions(self, axis: str, size: int) -> int:
        """The number of directions that an all-gather or a reduce-scatter uses at once round an axis: two where links
        close the axis to a ring of equal hops (Austin et al. 2025, How to Scale Your Model, section 3), otherwise one,
        because each device then has one link."""
        rates, latencies = self.hop(axis, size, 1)
        rates = np.minimum(rates, self.link_bytes_per_s_one_way)  # hops within a chip may be faster
        alike = all((hops == hops[0]).all() for hops in (rates, latencies))
        return 2 if self.torus and size > 2 and alike else 1


# For a simulation that only counts: every tile takes a second.
COUNTING = CostModel(TileCost(1.0, 1.0), TileCost(1.0, 1.0), 0.0, 1.0, True, FROM_DATASHEET)


def stack_cost_models(machines: Sequence[CostModel]) -> CostModel:
    """Machines that differ only in tile costs as one machine, whose tile costs are (plans, 1)."""

    def together(costs: Sequence[TileCost]) -> TileCost:
        numbers = [name for name in vars(costs[0]) if name.endswith("_s")]
        return replace(costs[0], **{name: np.array([[getattr(each, name)] for each in costs]) for name in numbers})

    if len(machines) == 1:
        return machines[0]
    first = machines[0]
    return replace(
        first,
        forward=together([each.forward for each in machines]),
        backward=together([each.backward for each in machines]),
    )
