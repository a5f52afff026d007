"""A target is the machine that a plan is for: `local`, `cpu:2`, `h100:8`, `v5e:4x4`, `v4-32`, `2*v5e:4x4`.

The devices of a slice are joined without a network: a box of TPU chips on a torus, or a node of GPUs behind a switch.
Its size is given in chips on each axis, or by the cloud's name for it; a target is one slice, or several equal slices.
"""

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

from stripectl.errors import BadInput
from stripectl.hardware.other_machines import unknown_machine, why_other_machine
from stripectl.hardware.profile import Hardware, format_shape, hardware_names, parse_shape
from stripectl.util.json import Json

MAX_CHIPS = 2**16


class Position(NamedTuple):
    """A device's position: its slice, its chip's place on each axis of the slice, its core of the chip, and its
    host."""

    slice: int
    coords: tuple[int, ...]
    core: int
    host: int


@dataclass(frozen=True)
class Target:
    """Equal slices of one kind of device: (8,) is eight behind a switch or in a row, (4, 4) is a part of a torus."""

    hardware: Hardware
    shape: tuple[int, ...]  # of a slice, in chips
    slices: int = 1

    def __str__(self) -> str:
        return str(self.name)

    @property
    def name(self) -> "TargetName":
        return TargetName(self.hardware.name, self.shape, self.slices, self.hardware.based_on)

    @property
    def slice_devices(self) -> int:
        return math.prod(self.shape) * self.hardware.devices_per_chip

    @property
    def devices(self) -> int:
        return self.slices * self.slice_devices

    @property
    def host_shape(self) -> tuple[int, ...]:
        """Chips of one host on each axis; behind a switch, or where it is unknown, a slice is one host."""
        if len(self.hardware.host) != len(self.shape):
            return self.shape
        return tuple(map(min, self.hardware.host, self.shape))

    @property
    def hosts(self) -> int:
        return self.slices * math.prod(self.shape) // math.prod(self.host_shape)

    @property
    def wrap(self) -> tuple[bool, ...]:
        """Whether a link leads from the end of each axis back to its start. A 2D pod has such links only at its own
        edges; in a 3D pod the optical switches close every slice of whole 4x4x4 cubes."""
        if self.hardware.wrap == "full_axis" and len(self.hardware.pod) == len(self.shape):
            return tuple(size == full for size, full in zip(self.shape, self.hardware.pod, strict=True))
        cubes = self.hardware.wrap == "multiple_of_4" and all(size % 4 == 0 for size in self.shape)
        return (cubes,) * len(self.shape)

    @cached_property
    def positions(self) -> list[Position]:
        """All devices' positions, in the order in which JAX lists the devices of such a topology: slice by slice, host
        by host, chip by chip, with the first axis fastest, and both cores of a chip together."""
        host = self.host_shape
        grid = [size // each for size, each in zip(self.shape, host, strict=True)]
        places = list(product(range(self.slices), _first_fastest(grid)))
        return [
            Position(slice, tuple(w * size + c for w, size, c in zip(where, host, chip, strict=True)), core, number)
            for number, (slice, where) in enumerate(places)
            for chip in _first_fastest(host)
            for core in range(self.hardware.devices_per_chip)
        ]

    @property
    def topology_arguments(self) -> dict[str, Json]:
        """The arguments of `jax.experimental.topologies.get_topology_desc` for these devices.

        Raises:
            BadInput: the target is not a TPU slice of a known shape.
        """
        if self.hardware.kind != "tpu" or len(self.shape) != self.hardware.torus_dims:
            raise BadInput(f"{self} is not a TPU slice of a known shape. Try stripectl list targets.")
        ones = (1,) * (3 - len(self.shape))
        return {
            "platform": "tpu",
            "topology_name": f"{self.hardware.tables_of}:{format_shape(self.shape)}",
            "chip_config_name": self.hardware.chip_config or "default",
            "chips_per_host_bounds": (*self.host_shape, *ones),
            "wrap": (*self.wrap, *(False for _ in ones)),
            **({"num_slices": self.slices} if self.slices > 1 else {}),
        }

    @property
    def cloud_name(self) -> str | None:
        """The cloud's name of one slice, where it sells the slice."""
        if self.shape not in self.hardware.slices:
            return None
        return f"{self.hardware.tables_of}-{math.prod(self.shape) * self.hardware.counted}"


def _first_fastest(shape: list[int] | tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return (place[::-1] for place in product(*map(range, shape[::-1])))


def parse_target(text: str, hardware: Hardware | None = None) -> Target:
    """A target by name. `hardware` replaces the profile of that name, for example by a measured profile, or has the
    name itself.

    A single number is the cloud's shape with that number of chips (`v5e:16` is `v5e:4x4`), or a number of GPUs, which
    must be a multiple of a node where it is larger than one.

    Raises:
        BadInput: not a target, unknown hardware, or a shape that the hardware does not have.
    """
    match = re.fullmatch(r"(?:([1-9]\d{0,3})\*)?([\w.-]+?)(?::(\d{1,6}(?:x\d{1,6}){0,7})|-(\d{1,6}))", text)
    if not match:
        if why := why_other_machine(text):
            raise BadInput(why)
        raise BadInput(
            f"{text!r} is not a target. Write local, cpu:2, h100:8, v5e:4x4, v4-32 or 2*v5e:4x4; stripectl list "
            f"targets prints all."
        )
    machine = _hardware(match[2], hardware)
    slices, shape = int(match[1] or 1), parse_shape(match[3] or match[4])
    if match[4]:
        found = Target(machine, _sold(machine, shape[0], text), slices)
    elif machine.torus_dims == 0:
        found = _behind_a_switch(machine, shape, slices, text)
    else:
        found = Target(machine, _shape(machine, shape, text), slices)
    if not 1 <= found.slices * math.prod(found.shape) <= MAX_CHIPS:
        raise BadInput(f"the target {text} has {found.slices * math.prod(found.shape)} chips, not 1 to {MAX_CHIPS}.")
    return found


@dataclass(frozen=True)
class TargetName:
    """A target as a file names it; its hardware may have no profile here. A text that is not a target is a name without
    a shape."""

    hardware: str
    shape: tuple[int, ...] = ()  # of a slice, in chips
    slices: int = 1
    based_on: str = ""  # the machine whose tables its hardware takes; empty for the machine that has its name

    def __str__(self) -> str:
        several = f"{self.slices}*" if self.slices > 1 else ""
        return f"{several}{self.hardware}" + (f":{format_shape(self.shape)}" if self.shape else "")

    @property
    def tables_of(self) -> str:
        """As `Hardware.tables_of`."""
        return self.based_on or self.hardware

    @property
    def machine(self) -> Hardware | None:
        """The machine that ships under its name, or else whose tables its hardware takes; None where there is no such
        machine. Its figures may differ from the hardware's."""
        known = [Hardware.load(name) for name in (self.hardware, self.tables_of) if name in hardware_names()]
        return next((each for each in known if self.based_on in ("", each.tables_of)), None)

    @property
    def kind(self) -> str:
        """The kind of its hardware; CPU where it is not known here."""
        return self.machine.kind if self.machine else "cpu"

    def load(self) -> Target:
        """The target, with the shapes of its machine.

        Raises:
            BadInput: no such machine ships, or it does not have this shape.
        """
        found = parse_target(str(replace(self, hardware=self.machine.name if self.machine else self.tables_of)))
        return replace(found, hardware=replace(found.hardware, name=self.hardware, based_on=self.based_on))


@functools.lru_cache(4096)  # measurements of a run share their targets
def read_target(text: str) -> TargetName:
    """The target named in a file."""
    match = re.fullmatch(r"(?:([2-9]|[1-9]\d{1,3})\*)?([\w.-]+):([1-9]\d{0,5}(?:x[1-9]\d{0,5}){0,7})", text)
    return TargetName(match[2], parse_shape(match[3]), int(match[1] or 1)) if match else TargetName(text)


def target_of(hardware: Hardware, devices: int) -> Target:
    """`devices` devices in a shape that exists: a slice that the cloud sells, or the most even shape where no sizes are
    known, else whole nodes, else a row."""
    chips, node = max(1, devices // hardware.devices_per_chip), hardware.devices_per_host
    if hardware.kind == "gpu" and node > 1 and devices > node and devices % node == 0:
        return Target(hardware, (node,), devices // node)
    known = hardware.slices or even_shapes(hardware, chips)
    return Target(hardware, next((shape for shape in known if math.prod(shape) == chips), (chips,)))


def _hardware(name: str, given: Hardware | None) -> Hardware:
    """The hardware that a target's name begins with."""
    known = hardware_names()
    every = [*([given] if given else []), *map(Hardware.load, known)]
    named = [found for found in every if name in (found.name, *found.aliases)]
    if not named:
        raise unknown_machine("hardware in the target", name, known)
    if given and given.kind != named[0].kind:
        raise BadInput(f"the profile {given.name} is for a {given.kind}, but {name} is a {named[0].kind}.")
    return given or named[0]


def _behind_a_switch(machine: Hardware, shape: tuple[int, ...], slices: int, text: str) -> Target:
    """GPUs in nodes, or processes of this machine."""
    name, count, node = machine.name, math.prod(shape), machine.devices_per_host
    if len(shape) > 1:
        raise BadInput(f"{name} has no torus, so {text} needs a device count, not a shape. Try {name}:{count}.")
    if machine.kind != "gpu" or node == 1:
        if slices > 1:
            raise BadInput(f"{name} devices are in one machine, not in {slices}. Try {name}:{slices * count}.")
        return Target(machine, shape)
    if count > node and count % node:
        fewer, more = (Target(machine, (node,), nodes) for nodes in (count // node, count // node + 1))
        raise BadInput(f"{text} is more than a node of {node}, but not a multiple. Try {fewer} or {more}.")
    return Target(machine, (min(count, node),), slices * max(1, count // node))


def _sold(machine: Hardware, count: int, text: str) -> tuple[int, ...]:
    """The shape of a cloud name, whose number counts cores or chips."""
    if not machine.slices:
        size = next(map(format_shape, even_shapes(machine, count)), str(count))
        raise BadInput(f"{text} is not the name of a slice. Try {machine.name}:{size}.")
    shapes = [shape for shape in machine.slices if math.prod(shape) * machine.counted == count]
    if not shapes:
        raise BadInput(f"no slice is called {text}. Nearest: {nearest_slices(machine, count / machine.counted)}.")
    return shapes[0]


def _shape(machine: Hardware, shape: tuple[int, ...], text: str) -> tuple[int, ...]:
    """The shape of a slice of a torus, where the hardware comes in it."""
    chips = math.prod(shape)
    if len(shape) == 1:
        sold = [each for each in (*machine.slices, (1,) * machine.torus_dims) if math.prod(each) == chips]
        known = "no slice with this number of chips is sold" if machine.slices else "it is not known which are sold"
        reason = None if sold else f"{known}; name a shape"
        shape = sold[0] if sold else shape
    else:
        reason = why_shape_unsupported(machine, shape)
    if reason:
        near = nearest_slices(machine, chips)
        raise BadInput(f"{machine.name} does not exist as {text}: {reason}.{f' Nearest: {near}.' * bool(near)}")
    return shape


def why_shape_unsupported(machine: Hardware, shape: tuple[int, ...]) -> str | None:
    """Why no slice has this shape, or None: a slice consists of whole hosts and fits the pod. Where optical switches
    join 4x4x4 cubes, a slice of whole cubes may be as long as there are cubes."""
    if len(shape) != machine.torus_dims:
        return f"a slice has {machine.torus_dims} axes, as in {format_shape((4,) * machine.torus_dims)}"
    if min(shape) < 1:
        return "each axis needs at least one chip"
    if any(size > host and size % host for size, host in zip(shape, machine.host, strict=False)):
        return f"a host has {format_shape(machine.host)} chips, and a slice consists of whole hosts"
    cubes = machine.wrap == "multiple_of_4" and all(size % 4 == 0 for size in shape)
    too_long = any(size > most for size, most in zip(sorted(shape), sorted(machine.pod), strict=False))
    if machine.pod and (math.prod(shape) > math.prod(machine.pod) or (too_long and not cubes)):
        return machine.larger or f"a pod has only {format_shape(machine.pod)} chips"
    return None


def even_shapes(machine: Hardware, chips: int) -> list[tuple[int, ...]]:
    """The shapes of this number of chips in which a torus exists, the most even first."""
    if machine.torus_dims == 0:
        return []
    sides = [side for side in range(1, chips + 1) if chips % side == 0]
    found = (shape for shape in product(*[sides] * machine.torus_dims) if math.prod(shape) == chips)
    return sorted(
        (each for each in found if not why_shape_unsupported(machine, each)), key=lambda each: (max(each), each)
    )


def nearest_slices(machine: Hardware, chips: float, count: int = 3) -> str:
    """The slices with about this number of chips, nearest first, by both names; where no sizes are known, the most even
    shape of a power of two, or the pod."""
    if not machine.slices:
        shapes = even_shapes(machine, 2 ** round(math.log2(max(chips, 1)))) or [machine.pod]
        return str(Target(machine, shapes[0]))
    near = sorted(machine.slices, key=lambda shape: abs(math.log(math.prod(shape) / max(chips, 0.5))))[:count]
    return ", ".join(f"{target} ({target.cloud_name})" for shape in near if (target := Target(machine, shape)))
