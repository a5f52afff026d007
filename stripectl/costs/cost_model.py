"""The cost model of a machine: seconds of tiles and hops, and what communication hides behind."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stripectl.costs.node_collectives import NodeCollectives, TimedCollective
from stripectl.hardware.links import Hops
from stripectl.hardware.spread import Spread
from stripectl.results.cost_source import FROM_DATASHEET, CostSource
from stripectl.results.tile_cost import SECONDS, TileCost

PARTS = ("compute", "communication", "latency", "memory")


@dataclass(frozen=True)
class CostModel:
    """The costs of a device and its links; `cost_source` names their source. Axes that are not in `hops` have equal
    hops."""

    forward: TileCost
    backward: TileCost
    cost_source: CostSource = FROM_DATASHEET
    hop_latency_s: float = 0.0
    link_bytes_per_s_one_way: float = math.inf
    overlaps: bool = True
    exposed: Mapping[tuple[str, str, int], float] = field(default_factory=dict)
    blocking: Sequence[str] = ()  # collectives that the compiler runs without compute, in every pass
    all_reduce_for: Sequence[str] = ()  # collectives that the compiler runs as an all-reduce, of twice the bytes
    hops: Mapping[str, Hops] = field(default_factory=dict)
    torus: bool = False  # devices that are not neighbours send through the devices between them
    collective_latency_s: float = 0.0  # of a collective over an axis, before its first byte moves
    collective_spreads: Mapping[frozenset[str], Spread] = field(default_factory=dict)
    node: NodeCollectives | None = None  # measured times, in place of rates of links in a node of GPUs
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
            node=self.node.faster(rate, latency) if self.node else None,
            memory_bytes_per_s=self.memory_bytes_per_s * (2 if part == "memory" else 1),
            hops={
                axis: hop._replace(bytes_per_s=hop.bytes_per_s * rate, latency_s=hop.latency_s / latency)
                for axis, hop in self.hops.items()
            },
        )

    def with_schedule(self, exposed: Mapping[tuple[str, str, int], float], blocking: Sequence[str] = ()) -> "CostModel":
        """The machine with the transfers during which a compiler schedules no tiles."""
        shares = {" ".join(map(str, key)): share for key, share in sorted(exposed.items())}
        source = replace(self.cost_source, exposed=shares or None)
        return replace(self, exposed=exposed, blocking=blocking, cost_source=source)

    def scaled_to_length(self, times: float) -> "CostModel":
        """The machine for the same plan at `times` the length."""
        return replace(
            self, forward=self.forward.scaled_to_length(times), backward=self.backward.scaled_to_length(times)
        )

    def hop(self, axis: str, size: int, by: int) -> tuple[np.ndarray, np.ndarray]:
        """(bytes/s, latency in seconds) of the hops along an axis, by the place that they leave."""
        both = self.hops_of(axis, size)
        return both.bytes_per_s[int(by < 0)], both.latency_s[int(by < 0)]

    def hops_of(self, axis: str, size: int) -> Hops:
        """The hops of an axis."""
        if axis in self.hops:
            return self.hops[axis]
        shape = (2, size)
        rates, latencies = np.full(shape, self.link_bytes_per_s_one_way), np.full(shape, self.hop_latency_s)
        return Hops(rates, latencies, np.zeros(shape, bool))

    def devices_per_slice(self, axis: str, size: int) -> int:
        """The number of an axis' devices in a slice, or a node of GPUs, which links join without the network."""
        return size // max(1, int(self.hops_of(axis, size).network[0].sum()))

    def collective_spread(self, axes: Mapping[str, int]) -> Spread | None:
        """The spread of a collective over axes on the links of a slice, where it is known."""
        return self.collective_spreads.get(frozenset(axis for axis, size in axes.items() if size > 1))

    def measured_collective(self, opcode: str, axes: Mapping[str, int], nbytes: float) -> TimedCollective | None:
        """The measured time of a collective over axes in a node; None where nobody measured it, or it leaves a node.
        `nbytes` as in `node_collectives`."""
        if not self.node or any(self.devices_per_slice(axis, size) < size for axis, size in axes.items()):
            return None
        return self.node.collective(opcode, math.prod(axes.values()), nbytes)

    def received_bytes_per_s(self, opcode: str, axes: Mapping[str, int]) -> float:
        """Bytes/s at which a device receives the data of a collective over axes.

        Between slices of a torus, every device exchanges its part with its peers in the other slices through its own
        network, and the parts then travel round the links of each slice: network and links are busy in turn, each with
        the bytes that cross it. Between nodes of GPUs as many rings run at once as a node has devices on the axes, each
        through another device's network (NVIDIA/nccl issue 601), up to the rate of the links within the node.
        In a permutation or an exchange, a device sends all its data through its own network.
        """
        devices = math.prod(axes.values())
        near = math.prod(self.devices_per_slice(axis, size) for axis, size in axes.items())
        if near == devices:
            return self._received_in_slice(opcode, axes)
        network = min(self.slowest_hop(axis, size, network=True) for axis, size in axes.items())
        if opcode in ("collective-permute", "all-to-all"):
            return network
        if not self.torus:
            return min(self.link_bytes_per_s_one_way, network * near)
        # Of an array of one byte, a device receives its part from each other slice, then the rest from its own slice.
        busy_s = (devices // near - 1) / devices / network
        if near > 1:
            busy_s += (near - 1) / near / self._received_in_slice(opcode, axes)
        return (devices - 1) / devices / busy_s

    def _received_in_slice(self, opcode: str, axes: Mapping[str, int]) -> float:
        """Bytes/s at which a device receives such data from the other devices of its slice."""
        found, link, summed = self.collective_spread(axes), self.link_bytes_per_s_one_way, opcode in self.all_reduce_for
        if found and found.gather_ways and opcode != "all-reduce" and not summed:
            return found.gather_ways * link
        near = [(axis, size) for axis, size in axes.items() if self.devices_per_slice(axis, size) > 1]
        slowest, directions = (min(of(*each) for each in near) for of in (self.slowest_hop, self.ring_directions))
        per_s = found.ways * link if found else slowest * directions
        if found and opcode == "all-gather":  # by an all-reduce, for which zeros are written first
            return 1 / (2 / per_s + 1 / self.fill_bytes_per_s)
        return per_s / 2 if summed else per_s

    def slowest_hop(self, axis: str, size: int, network: bool = False) -> float:
        """Bytes/s of the slowest hop of an axis within a slice, or between slices; no limit where it has none."""
        hops = self.hops_of(axis, size)
        return float(hops.bytes_per_s[0][hops.network[0] == network].min(initial=math.inf))

    def longest_hop_s(self, axis: str, size: int, network: bool = False) -> float:
        """The longest latency of an axis' hops within a slice, or between slices; 0 where it has none."""
        hops = self.hops_of(axis, size)
        return float(hops.latency_s[0][hops.network[0] == network].max(initial=0.0))

    def ring_directions(self, axis: str, size: int) -> int:
        """The number of directions that an all-gather or a reduce-scatter uses at once round an axis: two where links
        close the axis to a ring of equal hops (Austin et al. 2025, How to Scale Your Model, section 3), otherwise one,
        because each device then has one link."""
        rates, latencies = self.hop(axis, size, 1)
        rates = np.minimum(rates, self.link_bytes_per_s_one_way)  # hops within a chip may be faster
        alike = all((hops == hops[0]).all() for hops in (rates, latencies))
        return 2 if self.torus and size > 2 and alike else 1


# For a simulation that only counts: every tile takes a second.
COUNTING = CostModel(TileCost(1.0, 1.0), TileCost(1.0, 1.0), link_bytes_per_s_one_way=1.0)


def stack_cost_models(machines: Sequence[CostModel]) -> CostModel:
    """Machines that differ only in tile costs as one machine, whose tile costs are (plans, 1)."""

    def together(costs: Sequence[TileCost]) -> TileCost:
        return replace(costs[0], **{name: np.array([[getattr(each, name)] for each in costs]) for name in SECONDS})

    if len(machines) == 1:
        return machines[0]
    first = machines[0]
    return replace(
        first,
        forward=together([each.forward for each in machines]),
        backward=together([each.backward for each in machines]),
    )
