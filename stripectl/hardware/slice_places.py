"""The places of a mesh's devices in one slice: the boxes of chips that axes get, and the walks round them.

Every axis gets a box of chips and goes round it: a box with an even number of chips on two or more sides has a cycle of
single links whether or not its axes wrap around; a straight line has a cycle only where a link leads back to its start.
The boxes nest: one axis repeats at strides of another's box. Of all ways to divide the slice, the placement with the
shortest hops is taken.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache

Box = tuple[int, ...]  # chips on each axis of the torus, then cores per chip
Place = tuple[int, ...]  # a chip's place on each axis of the torus, then the core's


def places_in_slice(room: Box, wrap: tuple[bool, ...], sizes: tuple[int, ...], first: tuple[bool, ...]) -> list[Place]:
    """The place of each device of a mesh in a slice, in row-major order; `first` marks the axes whose hops count most.
    Where no box has the right number of devices, such as seven in a 2x4 slice, they follow one path through the
    slice."""
    cores = room[-1]
    best: tuple[tuple[float, ...], list[list[Place]]] | None = None
    for boxes in _divisions(sizes, room):
        wide = [axis for axis, size in enumerate(sizes) if size > 1]
        for nest in itertools.permutations(wide):
            strides = dict[int, Box]()
            reach = (1,) * len(room)
            for axis in nest:
                strides[axis], reach = reach, tuple(r * b for r, b in zip(reach, boxes[axis], strict=True))
            lines, cost = list[list[Place]](), [0.0, 0.0]
            for axis, box in enumerate(boxes):
                stride = strides.get(axis, (1,) * len(room))
                line, longest = _line(box, stride, room, wrap)
                lines.append(line)
                beside = 1 if box[-1] == cores or reach[-1] == 1 else cores  # cores of another axis share the links
                cost[0 if first[axis] else 1] += beside * longest
            if best is None or tuple(cost) < best[0]:
                best = tuple(cost), lines
    if best is None:
        return closed_walk(room)[: math.prod(sizes)]
    start = [(0,) * len(room)]
    return [tuple(map(sum, zip(*each, strict=True))) for each in itertools.product(start, *best[1])]


@lru_cache(2**14)
def _line(box: Box, stride: Box, room: Box, wrap: tuple[bool, ...]) -> tuple[list[Place], int]:
    """The places of an axis whose devices fill a box with such strides, and the links of the longest hop round them."""
    places = [tuple(s * x for s, x in zip(stride, at, strict=True)) for at in closed_walk(box)]
    return places, _longest(places, room, wrap)


def _divisions(sizes: Sequence[int], room: Box) -> Iterator[tuple[Box, ...]]:
    """All choices of one box per axis, with as many places as its devices, such that the boxes together fit the
    room."""
    if not sizes:
        yield ()
        return
    for box in _boxes(sizes[0], room):
        left = tuple(most // size for most, size in zip(room, box, strict=True))
        yield from ((box, *rest) for rest in _divisions(sizes[1:], left))


def _boxes(devices: int, room: Box) -> Iterator[Box]:
    if not room:
        yield from [()] * (devices == 1)
        return
    for size in (size for size in range(1, min(devices, room[0]) + 1) if devices % size == 0):
        yield from ((size, *rest) for rest in _boxes(devices // size, room[1:]))


@cache
def closed_walk(box: Box) -> list[Place]:
    """All places of the box in an order in which neighbours are a single link apart, and so are the last and the first
    where two sides are longer than one and one of these is even: the walk takes that many rows of a path over the other
    sides back and forth, without their starts, and returns along the starts. Cores of a chip follow each other."""
    *chips, cores = box
    wide = [axis for axis, size in enumerate(chips) if size > 1]
    even = next((axis for axis in wide if chips[axis] % 2 == 0), None)
    if even is None or len(wide) < 2:
        found = _snake(chips)
    else:
        path = _snake([1 if axis == even else size for axis, size in enumerate(chips)])

        def at(row: int, step: int) -> Place:
            return (*path[step][:even], row, *path[step][even + 1 :])

        rows, steps = range(chips[even]), range(1, len(path))
        found = [at(row, step) for row in rows for step in (steps if row % 2 == 0 else reversed(steps))]
        found += [at(row, 0) for row in reversed(rows)]
    return [(*place, core) for place in found for core in range(cores)]


def _snake(shape: Sequence[int]) -> list[Place]:
    """All places of a box in an order in which neighbours are a single link apart: back and forth along the last
    axis."""
    places: list[Place] = [()]
    for size in shape:
        line = range(size)
        places = [(*p, x) for k, p in enumerate(places) for x in (line if k % 2 == 0 else reversed(line))]
    return places


def _longest(line: Sequence[Place], room: Box, wrap: Sequence[bool]) -> int:
    """Links of the longest hop round a line of places."""
    return max(
        sum(
            min(abs(x - y), size - abs(x - y)) if closed else abs(x - y)
            for x, y, size, closed in zip(a[:-1], b[:-1], room[:-1], wrap[:-1], strict=True)
        )
        for a, b in zip(line, [*line[1:], line[0]], strict=True)
    )
