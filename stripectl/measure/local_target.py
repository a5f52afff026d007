"""A target, and its devices that are available here."""

from dataclasses import dataclass, field
from functools import cached_property

from stripectl.compile.toolchain import TOOLCHAINS, why_not_described
from stripectl.costs.default_tiles import TimedTile
from stripectl.hardware.profile import Hardware, hardware_of_device
from stripectl.hardware.target import Target, parse_target, target_of
from stripectl.measure.local_workers import LocalWorkers

# Devices of the ring that a machine with one device simulates: a node of GPUs, the papers' smallest slices.
DEFAULT_RING_DEVICES = 8


@dataclass(frozen=True)
class LocalTarget:
    """A target, its devices that are available here, the processes that drive it, and the default tiles that are timed
    on them. `device_kind` is JAX's name of devices that were looked for."""

    target: Target
    here: int = 0
    processes: int | None = None
    timed: TimedTile | None = field(default=None, compare=False)
    device_kind: str | None = field(default=None, compare=False)

    @property
    def is_timed(self) -> bool:
        """Whether tiles, hops and matrices are timed on its devices."""
        return self.processes is not None or self.here > 0

    @cached_property
    def why_not_compiled(self) -> str | None:
        """Why the target's compiler does not know it or is not installed; None where it is, or where none is needed."""
        kind = self.target.hardware.kind
        if kind not in TOOLCHAINS or self.here:
            return None
        return why_not_described(self.target.hardware) or TOOLCHAINS[kind].missing


def local_target(name: str, profile: Hardware | None, workers: LocalWorkers) -> LocalTarget:
    """The target by its name; `local` means the devices that are found.

    Raises:
        BadInput, Missing: not a target, or no devices.
    """
    if name != "local":
        target = parse_target(name, profile)
        if target.hardware.kind == "cpu":
            here = min(target.devices, workers.cores)
            return LocalTarget(target, here if here == target.devices else 0, here)
        return LocalTarget(target)
    found = workers.look()
    if found.platform == "cpu":
        here = 2 ** (workers.cores.bit_length() - 1)  # a power of two divides usual sequence lengths
        return LocalTarget(Target(profile or Hardware.load("cpu"), (max(DEFAULT_RING_DEVICES, here),)), here, here)
    known = profile or hardware_of_device(found.kind, found.platform)
    devices = found.count if found.count > 1 else DEFAULT_RING_DEVICES
    return LocalTarget(target_of(known, devices), found.count, device_kind=found.kind)
