"""A target's devices and a mesh's links, in words and as JSON, for `stripectl topology`."""

from collections.abc import Iterator

import numpy as np

from stripectl.analysis.cost_sentences import without_tables
from stripectl.core.mesh import SEQUENCE_AXES
from stripectl.errors import BadInput
from stripectl.hardware.placement import HopPath, MeshPlacement, is_torus
from stripectl.hardware.profile import format_shape
from stripectl.hardware.target import Target, TargetName
from stripectl.util.json import JsonObject
from stripectl.util.units import duration, plural, rate

MAX_HOSTS = 8  # hosts whose devices are shown; --json shows all of them


def topology_header(target: Target, here: int) -> Iterator[str]:
    """A description of the target: devices, hosts, and how its axes close."""
    sold = f" ({target.cloud_name} each)" if target.slices > 1 else f" ({target.cloud_name})"
    kind = f" of {target.hardware.device_kinds[0]}" if target.hardware.device_kinds else ""
    hosts = plural(target.hosts, "host")
    yield (
        f"target   {target}{sold if target.cloud_name else ''}: {plural(target.devices, 'device')}{kind}, "
        f"{hosts}, {plural(here, 'device')} here"
    )
    yield from tables_line(target.name)
    if target.hardware.unknown:
        yield f"unknown  {target.hardware.unknown}"
    if not is_torus(target):
        yield f"links    any of {target.slice_devices} devices {'of a node ' * (target.slices > 1)}reaches any other"
        return
    cores = target.hardware.devices_per_chip
    several = f", {cores} devices per chip" if cores > 1 else ""
    yield f"chips    {format_shape(target.shape)}, hosts of {format_shape(target.host_shape)}{several}"
    yield f"links    {2 * len(target.shape)} per chip, two on each axis; wraps around: {wrap_text(target)}"


def tables_line(target: TargetName) -> Iterator[str]:
    """The machine whose tables hold for a machine of another name, or that no tables hold."""
    if target.machine is None:
        yield f"tables   none: {without_tables(target.hardware)}"
    elif target.based_on:
        yield f"tables   of {target.based_on}, on which {target.hardware} is based"


def wrap_text(target: Target) -> str:
    """The axes of a slice with a link from their end back to their start."""
    if all(target.wrap):
        return "all axes"
    found = [f"axis {axis} of {target.shape[axis]}" for axis, closed in enumerate(target.wrap) if closed]
    return ", ".join(found) or "no axis"


def device_lines(target: Target) -> Iterator[str]:
    """The devices of each host by their places, numbered as JAX lists them."""
    if not is_torus(target):
        return
    yield "devices  numbered as JAX lists them, by the coordinates of their chips"
    hosts: dict[int, list[tuple[int, str]]] = {}
    for number, position in enumerate(target.positions):
        place = ",".join(map(str, position.coords))
        hosts.setdefault(position.host, []).append((number, place))
    each = target.slice_devices
    for host, members in list(hosts.items())[:MAX_HOSTS]:
        numbers = f"{members[0][0]}-{members[-1][0]}" if len(members) > 1 else str(members[0][0])
        where = f"slice {members[0][0] // each} " if target.slices > 1 else ""
        yield f"  {where}host {host:<4} {numbers:>9}   {'  '.join(dict.fromkeys(place for _, place in members))}"
    if len(hosts) > MAX_HOSTS:
        yield f"  and {len(hosts) - MAX_HOSTS} more hosts; --json shows all of them"


def hop_path_rows(placement: MeshPlacement) -> Iterator[str]:
    """One sentence for each axis of the mesh: the links that its hops cross, and their cost."""
    yield f"mesh     {','.join(f'{axis}={size}' for axis, size in placement.mesh) or 'one device'}"
    for axis, size in placement.mesh:
        yield f"  {axis}={size}: {'; '.join(path_phrases(placement, placement.forward[axis]))}"


def path_phrases(placement: MeshPlacement, crossed: HopPath) -> Iterator[str]:
    target, size = placement.target, len(crossed.links)
    hardware, what = target.hardware, "nodes" if target.hardware.kind == "gpu" else "slices"
    over, links = int(crossed.network.sum()), crossed.links[~crossed.network]
    if over:
        count = "every hop crosses" if over == size else f"{over} of {size} hops cross"
        per_s = rate(hardware.figure("network_bytes_per_s_one_way"), "B/s")
        yield f"{count} the network between {what}, at {per_s} one way"
    if len(links) == 0:
        return
    yield slice_path(target, crossed, over > 0)
    if (sharing := int(crossed.sharing.max())) > 1:
        link = hardware.figure("link_bytes_per_s_one_way")
        yield f"{sharing} transfers share a link, {rate(link / sharing if link else None, 'B/s')} each"


def slice_path(target: Target, crossed: HopPath, open_ended: bool) -> str:
    """The links that the hops within a slice cross."""
    links = crossed.links[~crossed.network]
    last = int(links[-1])
    count = "the others are" if open_ended else "every hop is"
    if not is_torus(target):
        return f"{count} one link, through a switch or within a machine"
    if links.max() == 0:
        return f"{count} between the cores of a chip"
    if links.max() == 1:
        home = "over a wrap-around link" if crossed.wrapped.any() else "without a wrap-around link"
        said = [
            f"{count} one link",
            "or none between cores of a chip" * bool(links.min() == 0),
            f"the last hop returns {home}" * (not open_ended),
        ]
        return ", ".join(filter(None, said))
    if links[:-1].max(initial=0) <= 1 and not open_ended:
        latency_s, lacking = target.hardware.figure("hop_latency_s"), "cycle" if any(target.wrap) else "wrap-around"
        more = duration((last - 1) * latency_s if latency_s else None)
        return (
            f"one link each, but there is no {lacking}: the last hop crosses {last} links, {more} more than the others"
        )
    return f"hops cross {links.min()} to {links.max()} links" if links.min() < links.max() else f"{last} links each"


def slowest_hop_rate(placement: MeshPlacement) -> float | None:
    """Bytes/s of the slowest hop of keys and values, a link's rate where there is no hop; None where it is unknown."""
    try:
        hops = placement.hop_costs
    except BadInput:
        return None
    rates = [float(hops[axis].bytes_per_s[0].min()) for axis, _ in placement.mesh if axis in SEQUENCE_AXES]
    return min(rates, default=placement.target.hardware.figure("link_bytes_per_s_one_way"))


def topology_json(placement: MeshPlacement) -> JsonObject:
    """Everything: `order` lists devices in the order of the mesh; hops are listed by the place of the axis they
    leave."""
    target, hardware = placement.target, placement.target.hardware
    try:
        hops = {
            axis: {name: each.tolist() for name, each in hop._asdict().items()}
            for axis, hop in placement.hop_costs.items()
        }
    except BadInput:
        hops = {}
    return {
        "target": str(target),
        "cloud_name": target.cloud_name,
        "tables_of": target.name.machine and target.name.tables_of,
        "device_kinds": list(hardware.device_kinds),
        "devices": target.devices,
        "slices": target.slices,
        "hosts": target.hosts,
        "shape": list(target.shape),
        "wrap": list(target.wrap),
        "figures": {
            name: {"value": value, "source": hardware.sources[name]} for name, value in hardware.figures.items()
        },
        "positions": [position._asdict() for position in target.positions],
        "mesh": dict(placement.mesh),
        "order": list(placement.order),
        "axes": {
            axis: {
                "onward": {name: np.asarray(each).tolist() for name, each in placement.forward[axis]._asdict().items()},
                "back": {name: np.asarray(each).tolist() for name, each in placement.backward[axis]._asdict().items()},
                "hops": hops.get(axis),
            }
            for axis, _ in placement.mesh
        },
    }
