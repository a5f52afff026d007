"""The placement of a mesh's axes on the links of a target, and the links that each hop crosses.

Slices (and nodes of GPUs) divide the outermost axes, because only a network joins them. Within a slice the placement
with the shortest hops is taken (`slice_places`), with the sequence's axes first.

A transfer takes the shortest path, one axis of the torus after the other; transfers share a link when all devices shift
at once.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from stripectl.core.mesh import AXES, SEQUENCE_AXES
from stripectl.errors import BadInput
from stripectl.hardware.links import Hops
from stripectl.hardware.slice_places import Place, places_in_slice
from stripectl.hardware.spread import Spread, spread_over
from stripectl.hardware.target import Target


class HopPath(NamedTuple):
    """The links that the hops of an axis cross in one direction: entry i is the hop that leaves place i of the axis,
    the slowest of the hops that run in parallel."""

    links: np.ndarray  # 0 within a chip, and across the network
    sharing: np.ndarray  # transfers on its busiest link, in its direction
    network: np.ndarray  # whether it leaves the slice
    wrapped: np.ndarray  # whether it takes a wrap-around link


class TorusLink(NamedTuple):
    """The link from a chip to the next along an axis of the torus."""

    slice: int
    chip: tuple[int, ...]
    dimension: int


class LinkLoad(NamedTuple):
    """Transfers over each link, both directions together, and over the network between slices."""

    links: Mapping[TorusLink, int]
    network: int


@dataclass(frozen=True)
class MeshPlacement:
    """A mesh on a target. `order[k]` is the index in `target.positions`, and so in JAX's list of such devices, of the
    k-th device of the mesh in row-major order of its axes, the last varying fastest:
    `Mesh(np.array(devices)[order].reshape(sizes), axes)`. `forward` and `backward` are by axis."""

    target: Target
    mesh: tuple[tuple[str, int], ...]
    order: tuple[int, ...]
    forward: Mapping[str, HopPath]
    backward: Mapping[str, HopPath]

    @cached_property
    def hop_costs(self) -> dict[str, Hops]:
        """Seconds and bytes/s of every hop of every axis. Links add their latency, and transfers that share a link
        divide its rate. A hop between the devices of a chip has the rate of the profile, or of a link where it has
        none, and the latency of a link. A latency that the profile lacks is not counted.

        Raises:
            BadInput: the profile lacks the rate of its links, or of the network that the mesh crosses.
        """
        hardware = self.target.hardware
        link, network = (hardware.figure(f"{name}_bytes_per_s_one_way") for name in ("link", "network"))
        crosses = [axis for axis, crossed in self.forward.items() if crossed.network.any()]
        if link is None or (crosses and network is None):
            lacking, hint = ("link", "") if link is None else ("network", "a target of one slice, or ")
            raise BadInput(
                f"the profile of {hardware.name} has no {lacking}_bytes_per_s_one_way, so hops cannot be timed on "
                f"{self.target}. Try {hint}--hardware with a profile that has this figure."
            )
        latency_s, through_network_s = (hardware.figure(f"{name}_latency_s") or 0.0 for name in ("hop", "network"))
        within = hardware.figure("chip_bytes_per_s_one_way") or link

        def rates(crossed: HopPath) -> np.ndarray:
            over = np.where(crossed.links > 0, link / np.maximum(crossed.sharing, 1), within)
            return np.where(crossed.network, network or link, over)

        def latencies(crossed: HopPath) -> np.ndarray:
            return np.where(crossed.network, through_network_s, latency_s * np.maximum(crossed.links, 1))

        both = {axis: (self.forward[axis], self.backward[axis]) for axis, _ in self.mesh}
        return {
            axis: Hops(
                np.stack(list(map(rates, ways))),
                np.stack(list(map(latencies, ways))),
                np.stack([crossed.network for crossed in ways]),
            )
            for axis, ways in both.items()
        }

    def _along(self, axis: str) -> tuple[np.ndarray, int]:
        """(devices by their places in the mesh, the index of the axis in the mesh)."""
        names, sizes = zip(*self.mesh, strict=True)
        return np.array(self.order).reshape(sizes), names.index(axis)

    def link_load(self, axis: str) -> "LinkLoad":
        """The load of the links when every device sends to the next device of an axis."""
        transfers = _Transfers(self.target, *self._along(axis), 1)
        found: Counter[TorusLink] = Counter()
        if is_torus(self.target):
            ways, shape = _ways(self.target, transfers)[0], self.target.shape
            taken: list[int] = ways[ways >= 0].tolist()
            for way in taken:
                (chip, dimension), onward = divmod(way // 2, len(shape)), way % 2
                slice, place = divmod(chip, math.prod(shape))
                at = list(map(int, np.unravel_index(place, shape)))
                at[dimension] = at[dimension] if onward else (at[dimension] - 1) % shape[dimension]
                found[TorusLink(slice, tuple(at), dimension)] += 1
        return LinkLoad(found, int(transfers.network.sum()))

    @cached_property
    def collective_spreads(self) -> dict[frozenset[str], Spread]:
        """The spread of collectives over each choice of axes whose devices, or the devices in one slice, form boxes of
        the torus. Devices that share their places on all other axes are a group; such groups are equal, so the first
        group represents all."""
        if not is_torus(self.target):
            return {}
        grid = np.array(self.order).reshape([size for _, size in self.mesh])
        found, wide = dict[frozenset[str], Spread](), [axis for axis, size in self.mesh if size > 1]
        for axes in itertools.chain.from_iterable(itertools.combinations(wide, n + 1) for n in range(len(wide))):
            first = tuple(slice(None) if name in axes else 0 for name, _ in self.mesh)
            devices: list[int] = grid[first].reshape(-1).tolist()
            places = [self.target.positions[k] for k in devices]
            if spread := spread_over(self.target, [each for each in places if each.slice == places[0].slice]):
                found[frozenset(axes)] = spread
        return found

    def cross_slice_fraction(self, axis: str) -> float:
        """The fraction of an all-to-all along an axis that leaves its slice: for each device the share of other devices
        in other slices, averaged over all devices."""
        grid, line = self._along(axis)
        slices = np.array([position.slice for position in self.target.positions])[grid]
        others = np.stack([np.roll(slices, by, line) != slices for by in range(1, grid.shape[line])])
        return float(others.mean(0).sum())


def is_torus(target: Target) -> bool:
    """Whether its chips form a torus; otherwise a switch joins any two chips of a slice."""
    return len(target.shape) == target.hardware.torus_dims


@lru_cache(1024)
def place_mesh(target: Target, mesh: tuple[tuple[str, int], ...]) -> MeshPlacement:
    """The mesh (axes in the order of plan.AXES) on the target's links, or on the part of the target that it needs.

    Raises:
        BadInput: the mesh needs more devices than the target has.
    """
    axes, sizes = [axis for axis, _ in mesh], [size for _, size in mesh]
    assert axes == [axis for axis in AXES if axis in axes]
    devices = math.prod(sizes)
    if devices > target.devices:
        raise BadInput(f"the mesh needs {devices} devices and {target} has {target.devices}. Try another --mesh.")
    outer = _across_slices(target, sizes)
    inner = [size // over for size, over in zip(sizes, outer, strict=True)]
    room, wrap = (*target.shape, target.hardware.devices_per_chip), (*target.wrap, False)
    places = places_in_slice(room, wrap, tuple(inner), tuple(axis in SEQUENCE_AXES for axis in axes))
    index: dict[tuple[int, Place], int] = {(p.slice, (*p.coords, p.core)): k for k, p in enumerate(target.positions)}
    order = np.empty((math.prod(outer), math.prod(inner)), int)
    for slice, place in itertools.product(range(order.shape[0]), range(order.shape[1])):
        order[slice, place] = index[slice, places[place]]
    # (outer axes, inner axes) -> for each axis its outer and inner part, adjacent
    pairs = [axis for each in range(len(axes)) for axis in (each, len(axes) + each)]
    return place_in_order(target, mesh, order.reshape([*outer, *inner]).transpose(pairs).reshape(-1).tolist())


def place_in_order(target: Target, mesh: Sequence[tuple[str, int]], order: Sequence[int]) -> MeshPlacement:
    """The mesh with its devices in a given order."""
    grid = np.array(order).reshape([size for _, size in mesh])
    ways = [{axis: _crossed(target, grid, line, by) for line, (axis, _) in enumerate(mesh)} for by in (1, -1)]
    return MeshPlacement(target, tuple(mesh), tuple(order), *ways)


def slices_spanned(target: Target, mesh: Sequence[tuple[str, int]]) -> dict[str, int]:
    """The number of slices that each axis of a mesh spans.

    Raises:
        BadInput: the mesh does not divide evenly over the slices.
    """
    return dict(zip((axis for axis, _ in mesh), _across_slices(target, [size for _, size in mesh]), strict=True))


def _across_slices(target: Target, sizes: Sequence[int]) -> list[int]:
    """The number of slices that each axis spans: only as many as the devices need, the outermost axes first."""
    devices = math.prod(sizes)
    fits = (s for s in range(1, target.slices + 1) if devices % s == 0 and devices // s <= target.slice_devices)
    left = next(fits, None)
    if left is None:
        raise BadInput(
            f"a mesh of {devices} devices does not divide evenly over the {target.slices} slices of {target}. Try a "
            f"mesh of {target.devices} devices."
        )
    spans = list[int]()
    for size in sizes:
        spans.append(math.gcd(size, left))
        left //= spans[-1]
    return spans


class _Transfers:
    """The transfers of every device to its neighbour along one axis of the grid of positions."""

    def __init__(self, target: Target, grid: np.ndarray, line: int, by: int) -> None:
        places = target.positions
        self.senders, self.receivers = (each.reshape(-1) for each in (grid, np.roll(grid, -by, line)))
        self.slices, self.coords = np.array([p.slice for p in places]), np.array([p.coords for p in places])
        self.network = self.slices[self.senders] != self.slices[self.receivers]


def _crossed(target: Target, grid: np.ndarray, line: int, by: int) -> HopPath:
    """The links that the hops of one axis of the grid of positions cross when all devices send to their neighbours."""
    transfers = _Transfers(target, grid, line, by)
    if is_torus(target):
        ways, wrapped = _ways(target, transfers)
        load = np.bincount(ways[ways >= 0], minlength=int(ways.max(initial=0)) + 1)
        links = (ways >= 0).sum(0)
        sharing = np.where(ways >= 0, load[ways], 1).max(0, initial=1)
    else:  # a switch, or a slice of unknown shape: any two devices have their own link
        links = np.where(transfers.network | (transfers.senders == transfers.receivers), 0, 1)
        sharing, wrapped = np.ones_like(links), np.zeros(len(links), bool)
    alike = tuple(axis for axis in range(grid.ndim) if axis != line)
    return HopPath(*(each.reshape(grid.shape).max(alike) for each in (links, sharing, transfers.network, wrapped)))


def _ways(target: Target, transfers: _Transfers) -> tuple[np.ndarray, np.ndarray]:
    """(the links that each transfer takes within its slice, in sequence, int[steps, transfers]: chip, axis of the torus
    and direction as one number, or -1; whether it wraps around)."""
    starts, ends = transfers.coords[transfers.senders], transfers.coords[transfers.receivers]
    slices, at, taken = transfers.slices[transfers.senders], starts.copy(), list[np.ndarray]()
    wrapped = np.zeros(len(starts), bool)
    for axis, size in enumerate(target.shape):
        apart = np.where(transfers.network, 0, ends[:, axis] - starts[:, axis])
        if target.wrap[axis]:
            wrapped |= 2 * np.abs(apart) > size
            apart = (apart + (size - 1) // 2) % size - (size - 1) // 2
        for step in range(int(np.abs(apart).max(initial=0))):
            moving, onward = np.abs(apart) > step, apart > 0
            chip = np.ravel_multi_index((*at.T,), target.shape) + slices * math.prod(target.shape)
            taken.append(np.where(moving, (chip * len(target.shape) + axis) * 2 + onward, -1))
            at[:, axis] = np.where(moving, (at[:, axis] + np.sign(apart)) % size, at[:, axis])
    return np.stack(taken) if taken else np.full((0, len(starts)), -1), wrapped
