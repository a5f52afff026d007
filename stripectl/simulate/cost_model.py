"""What a machine costs a simulation: seconds of tiles, of hops, and what hides behind what."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stripectl.core.layout import Tile, TileCount
from stripectl.hardware.links import Hops, Spread
from stripectl.results.cost_source import FROM_DATASHEET, CostSource

PARTS = ("compute", "communication", "latency", "memory")


@dataclass(frozen=True)
class TileCost:
    """Seconds that one head takes for a tile of each kind, for visiting a row of tiles, and for a call. A kernel that
    `masks_all` masks every tile of a pair of shards that has a boundary, and visits its dead ones. What a call costs is
    the same for shards of all lengths, but where `call_grows` it is in proportion to their rows: copies and merges.

    On a GPU whose `processors` share the thread blocks of a kernel, each of which takes a `block` of queries, a tile
    takes `whole_s` of one of them."""

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
        """The cost were a part of the machine twice as fast: of compute the tiles, of memory the traffic of a row's
        accumulators and what else grows with the rows, of latency what a call takes beside its tiles."""
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
        """The cost on shards of so many times the rows."""
        return replace(self, call_s=self.call_s * times) if self.call_grows else self

    def seconds(self, tiles: TileCount, heads: int, part: float = 1.0) -> np.ndarray:
        """Of a call with so many tiles of so many heads, which are a part of a shard's."""
        if self.processors:
            return tiles.calls * self.call_s + tiles.busiest * self.whole_s
        each = tiles.whole * self.whole_s + tiles.boundary * self.boundary_s + tiles.dead * self.dead_s
        if self.masks_all:
            masked = tiles.computed * self.boundary_s + tiles.dead * self.dead_s
            each = np.where(np.asarray(tiles.boundary) > 0, masked, tiles.whole * self.whole_s)
        return self.call_s * (part if self.call_grows else 1.0) + heads * (each + tiles.rows * self.row_s)


@dataclass(frozen=True)
class CostModel:
    """What a device and a link cost; `cost_source` says where that comes from. Hops of axes that are not in `hops` are
    all alike."""

    forward: TileCost
    backward: TileCost
    hop_latency_s: float
    link_bytes_per_s_one_way: float
    overlaps: bool
    cost_source: CostSource
    exposed: Mapping[tuple[str, str, int], float] = field(default_factory=dict)
    blocking: Sequence[str] = ()  # collectives that the compiler runs by themselves, in every pass
    hops: Mapping[str, Hops] = field(default_factory=dict)
    torus: bool = False  # devices that are not neighbours send through those between them
    collective_latency_s: float = 0.0  # of what all devices of an axis do together, before its first byte moves
    collective_spreads: Mapping[frozenset[str], Spread] = field(default_factory=dict)
    memory_bytes_per_s: float = math.inf  # of what is read and written beside tiles: copies, merges, conversions

    @property
    def plans(self) -> int:
        """Of how many plans it holds tile costs."""
        return np.size(self.forward.whole_s)

    def overlaps_compute(self, passes: str, opcode: str, itemsize: int, nth: int) -> bool:
        """Whether compute runs beside the n-th such transfer: `exposed[pass, opcode, itemsize]` is the share of them
        that none runs beside, the first of each few of them: the others hide behind what follows."""
        if opcode in self.blocking:
            return False
        share = self.exposed.get((passes, opcode, itemsize), 0.0)
        return self.overlaps and math.ceil(nth * share) == math.ceil((nth - 1) * share)

    def with_part_sped_up(self, part: str) -> "CostModel":
        """The machine were a part of it (one of PARTS) twice as fast: tiles; links and the network; what a hop or a
        call costs whatever its size; or the memory that accumulators and copies pass through. A tile that waits for its
        keys and values in memory is compute here, as its time is one figure."""
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
        """The machine for the same plan at so many times the length."""
        return replace(
            self, forward=self.forward.scaled_to_length(times), backward=self.backward.scaled_to_length(times)
        )

    def hop(self, axis: str, size: int, by: int) -> tuple[np.ndarray, np.ndarray]:
        """(bytes/s, latency in seconds) of the hops along an axis, by the place they leave."""
        alike = Hops(np.full((2, size), self.link_bytes_per_s_one_way), np.full((2, size), self.hop_latency_s))
        both = self.hops.get(axis, alike)
        return both.bytes_per_s[int(by < 0)], both.latency_s[int(by < 0)]

    def devices_per_node(self, axis: str, size: int) -> float:
        """How many devices of an axis links join that are no network between nodes."""
        crossings = int((self.hop(axis, size, 1)[0] < self.link_bytes_per_s_one_way).sum())
        return size if self.torus or not crossings else size / crossings

    def collective_spread(self, axes: Mapping[str, int]) -> Spread | None:
        """How a collective over axes lies on the links, where that is known."""
        return self.collective_spreads.get(frozenset(axis for axis, size in axes.items() if size > 1))

    def gather_bandwidth(self, axes: Mapping[str, int]) -> float:
        """Bytes/s at which a device gets what an all-gather, a reduce-scatter or an all-reduce moves over axes."""
        if found := self.collective_spread(axes):
            return found.ways * self.link_bytes_per_s_one_way
        return self.collective_bandwidth(axes) * min(self.ring_directions(axis, size) for axis, size in axes.items())

    def collective_bandwidth(self, axes: Mapping[str, int]) -> float:
        """Bytes/s at which an all-gather, a reduce-scatter or an all-reduce goes round axes: those of the slowest hop;
        but between nodes by as many rings at once as a node has devices of them, each through the network of another
        (NVIDIA/nccl issue 601), up to what links carry within it."""
        slowest = min(float(self.hop(axis, size, 1)[0].min()) for axis, size in axes.items())
        if self.torus or slowest >= self.link_bytes_per_s_one_way:
            return slowest
        rings = math.prod(self.devices_per_node(axis, size) for axis, size in axes.items())
        return min(self.link_bytes_per_s_one_way, slowest * rings)

    def ring_directions(self, axis: str, size: int) -> int:
        """In how many directions at once an all-gather or a reduce-scatter goes round an axis: both, where links close
        it to a ring of hops that are all alike (Austin et al. 2025, How to Scale Your Model, section 3); the others go
        through one link a device."""
        rates, latencies = self.hop(axis, size, 1)
        alike = all((hops == hops[0]).all() for hops in (rates, latencies))
        return 2 if self.torus and size > 2 and alike else 1


# For a simulation of which only counts are read: every tile takes a second.
COUNTING = CostModel(TileCost(1.0, 1.0), TileCost(1.0, 1.0), 0.0, 1.0, True, FROM_DATASHEET)


def stack_cost_models(machines: Sequence[CostModel]) -> CostModel:
    """Machines that differ in what tiles cost as one: numbers of its tile costs are (plans, 1)."""

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
