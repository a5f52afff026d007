"""The links of a target, each as thick as its load: the chips of a torus in their places, or the devices of each node
at their switch."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from stripectl.analysis.link_load import CarriedBytes
from stripectl.hardware.placement import MeshPlacement, TorusLink, is_torus
from stripectl.hardware.target import Target
from stripectl.reporters.html.vega_lite import filled, svg
from stripectl.util.units import BYTES, digits, unit_of

MAX_CHIPS = 64  # that are drawn
BROADEST, THINNEST = 9.0, 1.0  # pixels of a line
OBLIQUE = 0.42, 0.25  # the offset of a layer of chips, to the side and down, as fractions of the distance of chips


class ChipDot(NamedTuple):
    """A chip or device with its places in the mesh, in steps from chip to chip."""

    x: float
    y: float
    name: str


class Line(NamedTuple):
    """A link with its load in the unit of the drawing, or a half of a link that wraps around."""

    x: float
    y: float
    x2: float
    y2: float
    load: float
    broad: float

    @property
    def used(self) -> bool:
        return bool(self.load)


class Box(NamedTuple):
    """A switch or a network."""

    x: float
    y: float
    x2: float
    y2: float


class Key(NamedTuple):
    """The load of a line with this thickness."""

    order: int
    broad: float
    words: str


@dataclass(frozen=True)
class Links:
    """Devices, links, switches, and a key of the loads in `unit`; empty where the target is too large."""

    dots: Sequence[ChipDot] = ()
    lines: Sequence[Line] = ()
    boxes: Sequence[Box] = ()
    unit: str = ""
    kind: ClassVar = "links"

    @property
    def keys(self) -> list[Key]:
        """The thinnest and the thickest line with a load."""
        used = sorted({round(line.load, 3): line.broad for line in self.lines if line.used}.items())
        ends = [used[0], used[-1]] if len(used) > 1 else used
        return [Key(at, broad, f"{digits(load)} {self.unit}") for at, (load, broad) in enumerate(ends)]

    def draw(self, width: int) -> str:
        if not self.dots:
            return ""
        ends = [(end.x, end.y) for end in (*self.dots, *self.lines, *self.boxes)]
        ends += [(line.x2, line.y2) for line in (*self.lines, *self.boxes)]
        (left, right), (low, high) = ((min(each) - 0.4, max(each) + 0.4) for each in zip(*ends, strict=True))
        step = min(84.0, (width - 20) / (right - left))
        data = {"dots": self.dots, "lines": self.lines, "boxes": self.boxes, "keys": self.keys}
        form = filled("links", data, across=[left, right], down=[high, low], step=step)
        picture, key = form.pop("vconcat")
        picture |= {"width": step * (right - left), "height": step * (high - low)}
        return svg({**form, "vconcat": [picture, key]} if self.keys else form | picture)


def drawn_links(target: Target, placement: MeshPlacement, carried: CarriedBytes, sent: float) -> Links:
    """The links with what a run sends over them, of which each device sends `sent` bytes."""
    if math.prod(target.shape) * target.slices > MAX_CHIPS:
        return Links()
    return _torus(target, placement, carried) if is_torus(target) else _switch(target, placement, carried, sent)


def _torus(target: Target, placement: MeshPlacement, carried: CarriedBytes) -> Links:
    """Chips in their places, with the third axis drawn backwards; a wrap-around link is a stub at both ends."""
    most = max([*carried.links.values(), 1.0])
    unit, size = unit_of(most, BYTES)
    across = target.shape[0] + (OBLIQUE[0] * target.shape[2] if len(target.shape) > 2 else 0.0)

    def place(slice: int, chip: Sequence[float]) -> tuple[float, float]:
        deep = chip[2] if len(chip) > 2 else 0.0
        x = slice * (across + 0.6) + chip[0] + OBLIQUE[0] * deep
        return x, (chip[1] if len(chip) > 1 else 0.0) + OBLIQUE[1] * deep

    names: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    position = {device: at for at, device in enumerate(placement.order)}
    for device, p in enumerate(target.positions):
        if device in position:
            names.setdefault((p.slice, p.coords), []).append(str(position[device]))
    lines = list[Line]()
    for link in _every_link(target):
        load = carried.links.get(link, 0.0)
        for a, b in _ends(link, target):
            lines.append(Line(*place(link.slice, a), *place(link.slice, b), load / size, _broad(load, most)))
    return Links([ChipDot(*place(*at), ",".join(found)) for at, found in names.items()], lines, unit=unit)


def _every_link(target: Target) -> Iterator[TorusLink]:
    for slice in range(target.slices):
        for place in {p.coords for p in target.positions if p.slice == slice}:
            for dimension, length in enumerate(target.shape):
                if place[dimension] + 1 < length or target.wrap[dimension]:
                    yield TorusLink(slice, place, dimension)


def _ends(link: TorusLink, target: Target) -> list[tuple[Sequence[float], Sequence[float]]]:
    """The ends of the lines of a link. A link that wraps around is half a step out of the last chip, and half a step
    out of the first."""
    length, end = target.shape[link.dimension], list(link.chip)
    end[link.dimension] += 1
    if end[link.dimension] < length:
        return [(link.chip, end)]
    first, out, back = ([*map(float, link.chip)] for _ in range(3))
    out[link.dimension] += 0.4
    first[link.dimension] = 0.0
    back[link.dimension] = -0.4
    return [(link.chip, out), (back, first)] if length > 2 else []


def _switch(target: Target, placement: MeshPlacement, carried: CarriedBytes, sent: float) -> Links:
    """The devices of each node in a row below their switch, and nodes below each other, next to the network."""
    node = target.slice_devices
    inside = max(0.0, sent - carried.network / max(len(placement.order), 1))
    per_node = carried.network / max(target.slices, 1)
    most = max(sent, per_node, 1.0)
    unit, size = unit_of(most, BYTES)
    position = {device: at for at, device in enumerate(placement.order)}
    dots, lines, boxes = list[ChipDot](), list[Line](), list[Box]()
    for slice in range(target.slices):
        y = 1.9 * slice
        for at in range(node):
            device = slice * node + at
            dots.append(ChipDot(float(at), y, str(position.get(device, ""))))
            load = inside if device in position else 0.0
            lines.append(Line(float(at), y, float(at), y + 0.8, load / size, _broad(load, most)))
        boxes.append(Box(-0.3, y + 0.8, node - 0.7, y + 0.8))
        if target.slices > 1:
            lines.append(Line(node - 0.7, y + 0.8, node + 0.2, y + 0.8, per_node / size, _broad(per_node, most)))
    if target.slices > 1:
        boxes.append(Box(node + 0.2, 0.6, node + 0.2, 1.9 * (target.slices - 1) + 1.0))
    return Links(dots, lines, boxes, unit)


def _broad(load: float, most: float) -> float:
    return THINNEST + (BROADEST - THINNEST) * load / most
