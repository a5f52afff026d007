"""The links of a machine by its datasheet, and collectives in a node of GPUs as others measured them."""

import math
from collections.abc import Iterator
from dataclasses import replace

from stripectl.costs.cost_model import CostModel
from stripectl.costs.node_collectives import LARGE_HOP, SOURCE, NodeCollectives, node_collectives
from stripectl.hardware.links import Hops
from stripectl.hardware.placement import MeshPlacement
from stripectl.hardware.profile import Hardware, needed_figures
from stripectl.results.cost_source import CostOrigin, HopCost, LinkCosts, SlowestHop

LINK = "link_bytes_per_s_one_way"


def with_links(hardware: Hardware, machine: CostModel, placement: MeshPlacement | None) -> CostModel:
    """The machine with hops from the datasheet; its cost source adds their cost, the source, and what is not included.

    Raises:
        BadInput: the profile lacks the rate of its links.
    """
    (link,) = needed_figures(hardware, {LINK: hardware.figure(LINK)})
    node, known = node_collectives(hardware), machine.cost_source
    costs = link_costs(hardware, link, node, placement)
    sources = {LINK: hardware.sources[LINK]} | ({"collectives": SOURCE} if node else {})
    left_out = "; ".join(filter(None, [known.left_out, *unknown_latencies(hardware, costs, placement)]))
    memory = hardware.figure("achievable_hbm_bytes_per_s") or hardware.figure("hbm_bytes_per_s") or math.inf
    counted = known.source == CostOrigin.ESTIMATED_CYCLES  # these include the traffic outside of tiles
    return replace(
        machine,
        hop_latency_s=hardware.figure("hop_latency_s") or 0.0,
        link_bytes_per_s_one_way=link,
        node=node,
        torus=bool(hardware.torus_dims),
        memory_bytes_per_s=math.inf if counted else memory,
        fill_bytes_per_s=hardware.figure("fill_bytes_per_s") or memory,
        collective_latency_s=hardware.figure("collective_latency_s") or 0.0,
        hops=placement.hop_costs if placement else {},
        collective_spreads=placement.collective_spreads if placement else {},
        all_reduce_for=hardware.all_reduce_for,
        cost_source=replace(known, links=costs, sources={**(known.sources or {}), **sources}, left_out=left_out),
    )


def link_costs(
    hardware: Hardware, link: float, node: NodeCollectives | None, placement: MeshPlacement | None
) -> LinkCosts:
    """The cost of a hop, of the hops that are slower, and the gathers that the compiler makes by an all-reduce."""
    latency_s = hardware.figure("hop_latency_s")
    hop = HopCost(latency_s=latency_s, bytes_per_s_one_way=link)
    if node:
        sending = math.prod(size for _, size in placement.mesh) if placement else 1
        large = node.hop(LARGE_HOP, placement.target.slice_devices if placement and sending == 1 else sending)
        hop = HopCost(latency_s=large.latency_s, bytes_per_s_one_way=LARGE_HOP / large.busy_s)
    if placement is None:
        return LinkCosts(hop=hop)
    slower = {axis: slowest_hop(own, link, latency_s or 0.0) for axis, own in placement.hop_costs.items()}
    sums = (axes for axes, each in placement.collective_spreads.items() if each.gather_ways is None)
    return LinkCosts(
        hop=hop,
        slower_hops={axis: own for axis, own in slower.items() if own} or None,
        gathers_by_all_reduce=tuple("+".join(sorted(axes)) for axes in sums),
    )


def unknown_latencies(hardware: Hardware, costs: LinkCosts, placement: MeshPlacement | None) -> Iterator[str]:
    """The latencies that nobody published, as far as the placement has such hops."""
    if not (costs.hop and costs.hop.latency_s):
        yield "hop latency (not published)"
    across = placement is not None and any(crossed.network.any() for crossed in placement.forward.values())
    if across and hardware.figure("network_latency_s") is None:
        yield "network latency (not published)"


def slowest_hop(hops: Hops, link_bytes_per_s: float, latency_s: float) -> SlowestHop | None:
    """The slowest hop of an axis whose hops are not all separate single links; None where they are."""
    slowest, longest = float(hops.bytes_per_s.min()), float(hops.latency_s.max())
    if slowest >= link_bytes_per_s and longest <= latency_s:
        return None
    return SlowestHop(
        slowest_bytes_per_s=slowest if slowest < link_bytes_per_s else None,
        longest_latency_s=longest if longest > latency_s else None,
    )
