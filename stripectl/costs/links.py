"""The links of a machine by its datasheet, and collectives in a node of GPUs as others measured them."""

import math
from dataclasses import replace

from stripectl.costs.cost_model import CostModel
from stripectl.costs.node_collectives import LARGE_HOP, SOURCE, node_collectives
from stripectl.hardware.links import Hops
from stripectl.hardware.placement import MeshPlacement
from stripectl.hardware.profile import Hardware, needed_figures
from stripectl.results.cost_source import CostOrigin, HopCost, SlowestHop

LINK = "link_bytes_per_s_one_way"


def with_links(hardware: Hardware, machine: CostModel, placement: MeshPlacement | None) -> CostModel:
    """The machine with hops from the datasheet; its cost source adds their cost, the source, and what is not included.

    Raises:
        BadInput: the profile lacks the rate of its links.
    """
    (link,) = needed_figures(hardware, {LINK: hardware.figure(LINK)})
    latency, hops = hardware.figure("hop_latency_s"), placement.hop_costs if placement else {}
    across = placement is not None and any(crossed.network.any() for crossed in placement.forward.values())
    node = node_collectives(hardware)
    hop, sources = HopCost(latency_s=latency, bytes_per_s_one_way=link), {LINK: hardware.sources[LINK]}
    if node:
        sending = math.prod(size for _, size in placement.mesh) if placement else 1
        large = node.hop(LARGE_HOP, placement.target.slice_devices if placement and sending == 1 else sending)
        hop = HopCost(latency_s=large.latency_s, bytes_per_s_one_way=LARGE_HOP / large.busy_s)
        sources["collectives"] = SOURCE
    unmeasured = across and hardware.figure("network_latency_s") is None
    unknown = ["hop latency (not published)"] * (not hop.latency_s) + ["network latency (not published)"] * unmeasured
    known, slower = machine.cost_source, {axis: slowest_hop(hop, link, latency or 0.0) for axis, hop in hops.items()}
    source = replace(
        known,
        hop=hop,
        sources={**(known.sources or {}), **sources},
        left_out="; ".join(filter(None, [known.left_out, *unknown])),
        slower_hops={axis: hop for axis, hop in slower.items() if hop} or None,
    )
    spreads = placement.collective_spreads if placement else {}
    sums = ("+".join(sorted(axes)) for axes, each in spreads.items() if each.gather_ways is None)
    source = replace(source, gathers_by_all_reduce=tuple(sums))
    memory = hardware.figure("achievable_hbm_bytes_per_s") or hardware.figure("hbm_bytes_per_s") or math.inf
    counted = known.source == CostOrigin.ESTIMATED_CYCLES  # these include the traffic outside of tiles
    return replace(
        machine,
        hop_latency_s=latency or 0.0,
        link_bytes_per_s_one_way=link,
        node=node,
        torus=bool(hardware.torus_dims),
        memory_bytes_per_s=math.inf if counted else memory,
        fill_bytes_per_s=hardware.figure("fill_bytes_per_s") or memory,
        collective_latency_s=hardware.figure("collective_latency_s") or 0.0,
        hops=hops,
        collective_spreads=spreads,
        all_reduce_for=hardware.all_reduce_for,
        cost_source=source,
    )


def slowest_hop(hops: Hops, link_bytes_per_s: float, latency_s: float) -> SlowestHop | None:
    """The slowest hop of an axis whose hops are not all separate single links; None where they are."""
    slowest, longest = float(hops.bytes_per_s.min()), float(hops.latency_s.max())
    if slowest >= link_bytes_per_s and longest <= latency_s:
        return None
    return SlowestHop(
        slowest_bytes_per_s=slowest if slowest < link_bytes_per_s else None,
        longest_latency_s=longest if longest > latency_s else None,
    )
