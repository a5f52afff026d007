"""A machine in figures: rates, memory and links, each with its source.

A profile in `profiles/hardware/` gives figures per JAX device, as `{value, source}`; `stripectl topology --measure`
writes a profile of the local machine. A figure that is not published is absent from the profile, and None here.

A profile may be `based_on` another machine. It takes all fields and figures that it does not give from that machine,
and the tables that ship for it. A profile without a base takes the tables of the machine that has its name.
"""

import functools
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stripectl.errors import BadInput
from stripectl.hardware.other_machines import unknown_machine, why_other_machine
from stripectl.hardware.profile_fields import ACHIEVABLE, FIELDS, LISTS, check_compiler, check_fields, read_figures
from stripectl.util.files import load_profile, profile_names

MAX_BASES = 8  # profiles of which each is based on the next
MEASURED_ON = "measured on "  # how the source of a figure begins that stripectl measured on the machine itself


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One kind of device. Rates are peaks for dense matrices unless `achievable`; a link is one link, one direction."""

    name: str
    based_on: str  # the machine whose tables it takes; empty for the machine that has its name
    links_of: str  # the machine whose measured collectives hold, at the ratio of their links; empty for the base's
    kind: str
    device_kinds: tuple[str, ...]  # as jax.Device.device_kind prints it
    devices_per_chip: int
    devices_per_host: int
    torus_dims: int  # 0: a switch joins any two devices
    gather_dims: int  # sides of the torus over which its compiler gathers at once, at most
    all_reduce_for: tuple[str, ...]  # collectives that its compiler runs as an all-reduce, of twice the bytes
    wrap: str | None  # which axes of a slice close to a ring: axes as long as the pod's, or all where all are 4n long
    host: tuple[int, ...]  # chips on each axis of the torus: of a host, and of a pod
    pod: tuple[int, ...]
    larger: str  # why no slice is larger than the pod, where it is not for want of chips
    slices: tuple[tuple[int, ...], ...]  # shapes that the cloud sells, in chips
    counted: int  # what a cloud name counts per chip: v4-32 has 16 chips of 2 cores
    chip_config: str | None  # libtpu's name for a chip with this number of devices
    aliases: tuple[str, ...]
    compiles: bool  # whether the compiler of its kind knows it
    overlaps: bool  # whether collectives run while the device computes
    unknown: str  # what nobody publishes about it, and what predictions therefore lack
    kernel: str  # the kernel that its users have
    # Figures that a GPU's compiler needs about a device that is absent.
    compiler: Mapping[str, float | str] = field(hash=False)
    figures: Mapping[str, float] = field(hash=False)
    sources: Mapping[str, str] = field(hash=False)

    @property
    def tables_of(self) -> str:
        """The machine whose tables hold for this machine: tile costs, exposed hops, published times. The
        compiler and clouds know the machine by this name too."""
        return self.based_on or self.name

    @property
    def cores(self) -> int:
        """The cores of a device, which share its programs: a TPU v4 has two, which its compiler treats as one
        device."""
        return max(1, self.counted // self.devices_per_chip)

    @property
    def capability(self) -> tuple[int, int] | None:
        """The compute capability of a GPU, as (major, minor); None where the profile has none."""
        major, _, minor = str(self.compiler.get("compute_capability", "")).partition(".")
        return (int(major), int(minor)) if minor else None

    def figure(self, name: str) -> float | None:
        return self.figures.get(name)

    def is_measured(self, name: str) -> bool:
        """Whether the figure was measured on the machine itself."""
        return name in self.figures and self.sources.get(name, "").startswith(MEASURED_ON)

    def flops_per_s(self, dtype: str) -> float | None:
        """The peak matmul rate for inputs of this dtype."""
        return self.figure(f"matmul_flops_per_s_{dtype}")

    @property
    def links_bytes_per_s_one_way(self) -> float | None:
        """The rate of all links of a device, with the links to other devices of its chip; None where the rate of a link
        is unknown."""
        link = self.figure("link_bytes_per_s_one_way")
        return link and link * max(1, 2 * self.torus_dims) + (self.figure("chip_bytes_per_s_one_way") or 0.0)

    def fields(self) -> dict[str, object]:
        """The other fields of a profile, as they are written there."""
        values = {key: getattr(self, key) for key in FIELDS}
        tuples = {key: list(getattr(self, key)) for key in LISTS}
        return {**values, **tuples, "slices": [format_shape(shape) for shape in self.slices]}

    @classmethod
    def load(cls, name: str) -> "Hardware":
        """A machine by name or by the path of a profile.

        Raises:
            BadInput: the name is unknown, or the file is not a profile.
        """
        if name in hardware_names():
            return _shipped(name)
        if os.sep not in name and not name.endswith((".yaml", ".yml")) and (why := why_other_machine(name)):
            raise BadInput(why)
        return cls.from_mapping(*load_profile("hardware", "hardware", name))

    @classmethod
    def from_mapping(cls, path: Path, content: Mapping[str, Any], above: tuple[Path, ...] = ()) -> "Hardware":
        """A machine from the content of a profile; `above` are the profiles that are based on it.

        Raises:
            BadInput: a field or a figure has another form, or the base is unknown or based on this profile.
        """
        check_fields(path, content)
        base = _base(path, content.get("based_on"), above)
        usual = base.fields() if base else {key: field.default for key, field in FIELDS.items()}
        given: dict[str, Any] = usual | {"name": ""} | {key: value for key, value in content.items() if key in FIELDS}
        if given["kind"] is None:
            raise BadInput(f"the hardware {path} has no kind; it must be {FIELDS['kind'].description}.")
        figures, sources = read_figures(path, content.get("figures") or {})
        if base:
            if base.kind != given["kind"]:
                raise BadInput(f"the hardware {path} is a {given['kind']}, but its base {base.name} is a {base.kind}.")
            figures, sources = _inherited(base, figures, sources)
            given["compiler"] = {**base.compiler, **given["compiler"]}
        given |= {name: tuple(given[name]) for name in LISTS}
        given |= {"name": given["name"] or path.stem, "slices": tuple(map(parse_shape, given["slices"]))}
        given["based_on"] = base.tables_of if base and base.tables_of != given["name"] else ""
        _check_axes(path, given)
        if given["links_of"] and given["links_of"] not in hardware_names():
            raise unknown_machine(f"machine in links_of of the hardware {path}:", given["links_of"], hardware_names())
        check_compiler(path, given)
        if given["host"]:
            given["devices_per_host"] = math.prod(given["host"]) * given["devices_per_chip"]
        return cls(figures=figures, sources=sources, **given)


def needed_figures(hardware: Hardware, needed: Mapping[str, float | None]) -> list[float]:
    """The figures that a time needs.

    Raises:
        BadInput: the profile lacks one of them.
    """
    if lacking := [name for name, value in needed.items() if value is None]:
        other = "another --dtype, or " * any(name.startswith("matmul") for name in lacking)
        raise BadInput(
            f"the profile of {hardware.name} has no {' and no '.join(lacking)}, so its datasheet gives no time. Try "
            f"{other}--hardware with a profile that has the figure. stripectl topology --measure writes one."
        )
    return [value for value in needed.values() if value is not None]


def _base(path: Path, name: str | None, above: tuple[Path, ...]) -> Hardware | None:
    """The machine on which a profile is based: a machine that ships, or a file whose path is relative to the profile.

    Raises:
        BadInput: no such machine exists, or it is based on the profile.
    """
    if not name:
        return None
    if name in hardware_names():
        return _shipped(name)
    if os.sep not in name and not name.endswith((".yaml", ".yml")):
        raise unknown_machine(f"machine in based_on of the hardware {path}:", name, hardware_names())
    chain = (*above, Path(os.path.realpath(path)))
    if (other := Path(os.path.realpath(path.parent / name))) in chain or len(chain) == MAX_BASES:
        why = "leads back to it" if other in chain else f"leads through more than {MAX_BASES} files"
        names = ", ".join(hardware_names())
        raise BadInput(f"cannot load the hardware {chain[0]} because its based_on {why}. Try one of {names}.")
    return Hardware.from_mapping(*load_profile("hardware", "hardware", str(other)), chain)


def _inherited(
    base: Hardware, figures: Mapping[str, float], sources: Mapping[str, str]
) -> tuple[dict[str, float], dict[str, str]]:
    """The figures and sources of a profile, and all other figures of its base. A rate that the base achieves stays the
    same share of its peak where the profile gives another peak."""
    values, origins = {**base.figures, **figures}, {**base.sources, **sources}
    for reached, peak in ACHIEVABLE.items():
        if reached in base.figures and peak in figures and peak in base.figures and reached not in figures:
            values[reached] = base.figures[reached] / base.figures[peak] * figures[peak]
            origins[reached] = f"D the share of the peak that {base.name} reaches: {base.sources[reached]}"
    return values, origins


def _check_axes(path: Path, given: Mapping[str, Any]) -> None:
    """Check that shapes have as many axes as the torus.

    Raises:
        BadInput: a shape has another number of axes.
    """
    shapes = [*((name, given[name]) for name in ("host", "pod")), *(("slices", each) for each in given["slices"])]
    for name, axes in shapes:
        if axes and len(axes) != given["torus_dims"]:
            raise BadInput(f"the hardware {path} has {given['torus_dims']} torus_dims, but {len(axes)} in {name}.")


def parse_shape(text: str) -> tuple[int, ...]:
    """(2, 2, 4) of `2x2x4`."""
    return tuple(map(int, text.split("x")))


def format_shape(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def hardware_names() -> tuple[str, ...]:
    return profile_names("hardware")


@functools.cache
def _shipped(name: str) -> Hardware:
    """A machine of this package, which does not change while it runs."""
    return Hardware.from_mapping(*load_profile("hardware", "hardware", name))


def named_by_device(device_kind: str) -> Hardware | None:
    """The profile of a device by JAX's name for it, or None."""
    for name in hardware_names():
        hardware = Hardware.load(name)
        if device_kind in hardware.device_kinds:
            return hardware
    return None


def hardware_of_device(device_kind: str, platform: str) -> Hardware:
    """The machine of a device, by JAX's names for it and for its platform (`cpu`, `gpu`, `tpu`); without figures where
    no profile has the device."""
    if platform == "cpu":
        return Hardware.load(platform)
    return named_by_device(device_kind) or Hardware.from_mapping(
        Path(device_kind), {"name": platform, "kind": platform}
    )


def min_hiding_rows(
    hardware: Hardware,
    dtype: str,
    dtype_bytes: int,
    group: int = 1,
    pairs_share: float = 1.0,
    bytes_per_s: float | None = None,
) -> float | None:
    """The smallest block (rows per shard) whose hop hides behind its tiles: c >= F/B (Liu et al. 2023, section 3).

    A hop moves 2 c d e bytes per key/value head. A whole block computes 4 c^2 d FLOPs for each of the `group` query
    heads that share it; a balanced causal layout needs only `pairs_share` = 1/2 of them:
    c = e F / (2 B group pairs_share), with e = `dtype_bytes`. B is `bytes_per_s` where the hop crosses more than a
    link.
    """
    rate, link = hardware.flops_per_s(dtype), bytes_per_s or hardware.figure("link_bytes_per_s_one_way")
    if rate is None or link is None:
        return None
    return dtype_bytes * rate / (2 * link * group * pairs_share)
