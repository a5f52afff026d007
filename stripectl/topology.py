"""A target is the machine a plan is for: `local`, `cpu:2`, `h100:8`, `v5e:4x4`."""

import math
import re
from dataclasses import dataclass

from stripectl import BadInput
from stripectl.files import unknown
from stripectl.hardware import Hardware, hardware_names


@dataclass(frozen=True)
class Target:
    """Devices of one kind, in a shape: (8,) is eight behind a switch or in a row, (4, 4) a slice of a torus."""

    hardware: Hardware
    shape: tuple[int, ...]  # in chips

    @property
    def devices(self) -> int:
        return math.prod(self.shape) * self.hardware.devices_per_chip

    def __str__(self) -> str:
        return f"{self.hardware.name}:{'x'.join(map(str, self.shape))}"


def parse_target(text: str, hardware: Hardware | None = None) -> Target:
    """A target by name. `hardware` replaces the profile that the name stands for (a measured one, say).

    Raises:
        BadInput: not a target, unknown hardware, or a shape the hardware does not come in.
    """
    match = re.fullmatch(r"([\w.-]+):(\d{1,6}(?:x\d{1,6})*)", text)
    if not match:
        raise BadInput(
            f"{text!r} is not a target. Write local, cpu:2, h100:8 or v5e:4x4 (stripectl list hardware has the names)."
        )
    if match[1] not in hardware_names():
        raise unknown("hardware in the target", match[1], hardware_names())
    machine = hardware or Hardware.load(match[1])
    shape = tuple(map(int, match[2].split("x")))
    if min(shape) < 1 or math.prod(shape) > 2**16:
        raise BadInput(f"the target {text} has {math.prod(shape)} chips; a target has 1 to {2**16}.")
    if machine.torus_dims == 0 and len(shape) > 1:
        raise BadInput(
            f"{match[1]} devices meet at a switch, so a target has one number: {match[1]}:{math.prod(shape)}."
        )
    if machine.torus_dims and len(shape) not in (1, machine.torus_dims):
        axes = "x".join("4" * machine.torus_dims)
        raise BadInput(
            f"{match[1]} slices have {machine.torus_dims} axes, as in {match[1]}:{axes}; {text} has {len(shape)}."
        )
    return Target(machine, shape)
