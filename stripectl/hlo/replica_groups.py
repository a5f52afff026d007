"""The devices that exchange data in a collective, from its attributes in a compiled program's text (pairs, listed
groups, an iota, or mesh axes), and the axes of a plan's mesh along which they do."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping

import numpy as np

from stripectl.errors import BadInput

PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
LISTED = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
MAX_DEVICES = 2**20
NUMBERS = re.compile(r"\{([\d,]+)\}")
MESH_GROUP = re.compile(r"replica_groups=mesh\[([^\]]*)\]([^{]*)\{([^}]*)\}")


def groups_of(attributes: str) -> list[list[int]]:
    """The devices that exchange data: pairs of a permute, groups of another collective; empty where all devices do."""
    if (found := PAIRS.search(attributes)) or (found := LISTED.search(attributes)):
        return [list(map(int, each.split(","))) for each in NUMBERS.findall(found[1])]
    if found := IOTA.search(attributes):
        shape, dimensions = ([int(each) for each in found[at].split(",")] for at in (1, 2))
        order = listed_devices(math.prod(dimensions)).reshape(dimensions)
        if found[3]:
            order = order.transpose([int(each) for each in found[3].split(",")])
        return order.reshape(shape).tolist()
    if found := MESH_GROUP.search(attributes):
        return _groups_by_axes(*found.groups())
    return []


def _groups_by_axes(mesh: str, order: str, chosen: str) -> list[list[int]]:
    """Groups along axes of a mesh, `'x'=4,'y'=2`, or parts of axes: `'x':(2)2` is two of x at distance two, that is,
    the middle of x in (2, 2, the rest). `order` gives the devices' order in the mesh where it is not ascending."""
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh)}
    parts: dict[str, list[int]] = {name: [size] for name, size in sizes.items()}
    inside: set[tuple[str, int]] = set()
    for name, before, size in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", chosen):
        if size:
            parts[name] = [int(before), int(size), sizes[name] // int(before) // int(size)]
        inside.add((name, 1 if size else 0))
    places = [(name, at) for name, each in parts.items() for at in range(len(each))]
    grid = _laid(order, math.prod(sizes.values())).reshape([parts[name][at] for name, at in places])
    last = [at for at, place in enumerate(places) if place in inside]
    rest = [at for at, place in enumerate(places) if place not in inside]
    return grid.transpose([*rest, *last]).reshape(-1, math.prod(grid.shape[at] for at in last)).tolist()


def listed_devices(count: int) -> np.ndarray:
    """`count` devices in order.

    Raises:
        BadInput: more than any machine has.
    """
    if count > MAX_DEVICES:
        raise BadInput(f"a collective of the program names {count} devices, more than {MAX_DEVICES}.")
    return np.arange(count)


def _laid(order: str, count: int) -> np.ndarray:
    """Devices in the order of a mesh: ascending, or by an iota's shape and transposition."""
    found = re.search(r"device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\)", order)
    laid = listed_devices(count)
    if found:
        laid = laid.reshape([int(each) for each in found[1].split(",")])
        laid = laid.transpose([int(each) for each in found[2].split(",")]) if found[2] else laid
    return laid.reshape(-1)


def group_size(attributes: str) -> int:
    """The number of devices in a collective's group; 1 where it does not say."""
    groups = groups_of(attributes)
    return len(groups[0]) if groups else 1


def axis_of(attributes: str, axes: Mapping[str, int]) -> str:
    """The axes of a mesh along which a collective moves data, where `axes` holds their sizes in order, the last varying
    fastest. Without a mesh of that size: the number of devices that reach each other, and the stride between them."""
    groups = groups_of(attributes)
    if not groups:
        return "all devices" if len(axes) != 1 else next(iter(axes))
    size = int(np.prod(list(axes.values()))) if axes else 0
    named = MESH_GROUP.search(attributes)
    if named and size <= max(map(max, groups)):  # only the compiler's own mesh is known
        return "+".join(re.findall(r"'(\w+)'", named[3]))
    if size > max(map(max, groups)):
        places = [np.array(np.unravel_index(group, tuple(axes.values()))) for group in groups]
        moved = np.any([(place != place[:, :1]).any(axis=1) for place in places], axis=0)
        return "+".join(name for name, moves in zip(axes, moved, strict=True) if moves) or "itself"
    most = sorted(max(connected_devices(groups), key=len))
    return f"{len(most)} devices, stride {min((b - a for a, b in itertools.pairwise(most)), default=0)}"


def connected_devices(groups: Iterable[Iterable[int]]) -> list[set[int]]:
    """Sets of devices that reach each other: a ring is the pairs of its permute together."""
    found: dict[int, set[int]] = {}
    for group in groups:
        together = set[int]().union(*(found.get(device, {device}) for device in group))
        found |= dict.fromkeys(together, together)
    return list(found.values())
