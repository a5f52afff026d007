"""Meshes: the axes that devices can have, and their sizes."""

import re
from collections.abc import Iterator, Mapping

from stripectl.errors import BadInput
from stripectl.util.files import unknown_name

BATCH_AXES = ("data", "fsdp")
HEAD_AXES = ("tensor",)
RING_AXES = ("ring", "outer", "inner")  # the layout divides the sequence among the shards of these axes
SEQUENCE_AXES = (*RING_AXES, "ulysses")  # devices of `ulysses` divide a shard, and are the closest to each other
AXES = (*BATCH_AXES, *SEQUENCE_AXES, *HEAD_AXES)
STORED_AXES = ("fsdp", *SEQUENCE_AXES)  # the devices that store a parameter together, in addition to `tensor`


def make_mesh(axes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """The mesh of a plan: known axes in their order, without axes of one device.

    Raises:
        BadInput: an unknown axis, or a size below 1.
    """
    for axis, size in axes.items():
        if axis not in AXES:
            raise unknown_name("mesh axis", axis, AXES)
        if size < 1:
            raise BadInput(f"the mesh axis {axis} must have at least 1 device, not {size}.")
    return tuple((axis, axes[axis]) for axis in AXES if axes.get(axis, 1) > 1)


def parse_mesh(text: str) -> tuple[tuple[str, int], ...]:
    """`ring=4,tensor=2`.

    Raises:
        BadInput: not a mesh.
    """
    axes: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)=(\d{1,6})\s*", part)
        if not match or match[1] in axes:
            raise BadInput(f"{text!r} is not a mesh. Write ring=4,tensor=2.")
        axes[match[1]] = int(match[2])
    return make_mesh(axes)


def factorisations(devices: int, axes: int) -> Iterator[tuple[int, ...]]:
    """All ways to write `devices` as a product of `axes` sizes."""
    if axes <= 1:
        yield (devices,) * axes
        return
    for first in (size for size in range(1, devices + 1) if devices % size == 0):
        yield from ((first, *rest) for rest in factorisations(devices // first, axes - 1))
