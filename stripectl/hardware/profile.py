"""A machine in figures: rates, memory and links, each with its source.

A profile in `profiles/hardware/` gives figures per JAX device, as `{value, source}`; `stripectl topology --measure`
writes a profile of the local machine. A figure that is not published is absent from the profile, and None here.
"""

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from stripectl.errors import BadInput
from stripectl.util.files import load_profile, profile_names, unknown_name
from stripectl.util.json import is_list, is_mapping

Kind = Literal["cpu", "tpu", "gpu"]

# Figures of a profile -> their meaning; the name ends in the unit, and `Hardware` has fields of the same names.
FIGURES = (
    "matmul_flops_per_s_bfloat16",
    "matmul_flops_per_s_float32",
    "achievable_flops_per_s_bfloat16",
    "hbm_bytes",
    "hbm_bytes_per_s",
    "achievable_hbm_bytes_per_s",
    "fill_bytes_per_s",  # of an array that is filled with one value
    "link_bytes_per_s_one_way",
    "chip_bytes_per_s_one_way",  # between the devices of a chip
    "hop_latency_s",
    "collective_latency_s",
    "network_bytes_per_s_one_way",
    "block_wait_s",  # that a step of a Pallas grid waits per block that it loads or stores
    "vmem_bytes",  # of a TPU core's memory
    "vmem_limit_bytes",  # of a TPU core's memory, for a kernel that asks its compiler for no more
    "clock_hz",
)
MIN_FIGURE, MAX_FIGURE = 1e-15, 1e24  # the range of a figure


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One kind of device. Rates are peaks for dense matrices unless `achievable`; a link is one link, one direction."""

    name: str
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
    slices: tuple[tuple[int, ...], ...]  # shapes that the cloud sells, in chips
    counted: int  # what a cloud name counts per chip: v4-32 has 16 chips of 2 cores
    chip_config: str | None  # libtpu's name for a chip with this number of devices
    aliases: tuple[str, ...]
    overlaps: bool  # whether collectives run while the device computes
    kernel: str  # the kernel that its users have
    compiler: Mapping[str, float | str]  # what a GPU's compiler needs to know about a device that is absent
    figures: Mapping[str, float]
    sources: Mapping[str, str]

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

    def flops_per_s(self, dtype: str) -> float | None:
        """The peak matmul rate for inputs of this dtype."""
        return self.figure(f"matmul_flops_per_s_{dtype}")

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
        return cls.from_mapping(*load_profile("hardware", "hardware", name))

    @classmethod
    def from_mapping(cls, path: Path, content: Mapping[str, Any]) -> "Hardware":
        known = {*FIELDS, "figures"}
        for key, value in content.items():
            if key not in known:
                raise unknown_name(f"field in the hardware {path}:", key, known)
            if key in FIELDS and not FIELDS[key].is_valid(value):
                raise BadInput(f"the hardware {path} has {key}: {value!r}, but it must be {FIELDS[key].description}.")
        if "kind" not in content:
            raise BadInput(f"the hardware {path} has no kind; it must be {FIELDS['kind'].description}.")
        given: dict[str, Any] = {key: content.get(key, field.default) for key, field in FIELDS.items()}
        figures, sources = _figures(path, content.get("figures") or {})
        given |= {name: tuple(given[name]) for name in LISTS}
        given |= {"name": given["name"] or path.stem, "slices": tuple(map(parse_shape, given["slices"]))}
        for name, axes in (
            *((name, given[name]) for name in ("host", "pod")),
            *(("slices", x) for x in given["slices"]),
        ):
            if axes and len(axes) != given["torus_dims"]:
                raise BadInput(f"the hardware {path} has {given['torus_dims']} torus_dims, but {len(axes)} in {name}.")
        _check_compiler(path, given)
        if given["host"]:
            given["devices_per_host"] = math.prod(given["host"]) * given["devices_per_chip"]
        return cls(figures=figures, sources=sources, **given)


class ProfileField(NamedTuple):
    """A field of a profile: its default, the test of a value, and the test in words."""

    default: Any
    is_valid: Callable[[Any], bool]
    description: str


def parse_shape(text: str) -> tuple[int, ...]:
    """(2, 2, 4) of `2x2x4`."""
    return tuple(map(int, text.split("x")))


def format_shape(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def _names(value: Any) -> bool:
    return is_list(value) and all(isinstance(each, str) for each in value)


def _axes(value: Any) -> bool:
    return is_list(value) and all(map(_count(1), value))


def _shapes(value: Any) -> bool:
    return _names(value) and all(re.fullmatch(r"[1-9]\d{0,3}(x[1-9]\d{0,3}){0,7}", each) for each in value)


def _count(least: int, most: int = 4096) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _name(value: Any) -> bool:
    return _text(value) and bool(re.fullmatch(r"[\w.-]+", value))


def _text_or_none(value: Any) -> bool:
    return value is None or _text(value)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _among(*known: object) -> Callable[[Any], bool]:
    return lambda value: value in known


FIELDS = {
    "name": ProfileField("", _name, "letters, digits, - and ."),
    "kind": ProfileField(None, _among(*get_args(Kind)), f"one of {', '.join(get_args(Kind))}"),
    "device_kinds": ProfileField([], _names, "a list of names"),
    "devices_per_chip": ProfileField(1, _count(1, 8), "a number from 1 to 8"),
    "devices_per_host": ProfileField(1, _count(1), "a positive integer"),
    "torus_dims": ProfileField(0, _count(0, 3), "a number of dimensions, at most 3"),
    "gather_dims": ProfileField(3, _count(1, 3), "a number of dimensions, from 1 to 3"),
    "all_reduce_for": ProfileField([], _names, "a list of collectives, such as [reduce-scatter]"),
    "wrap": ProfileField(None, _among(None, "full_axis", "multiple_of_4"), "full_axis or multiple_of_4"),
    "host": ProfileField([], _axes, "a list of positive integers"),
    "pod": ProfileField([], _axes, "a list of positive integers"),
    "slices": ProfileField([], _shapes, "a list of shapes such as 2x2x4"),
    "counted": ProfileField(1, _count(1), "a positive integer"),
    "chip_config": ProfileField(None, _text_or_none, "a name"),
    "aliases": ProfileField([], _names, "a list of names"),
    "kernel": ProfileField("xla", _text, "the name of a kernel"),
    "overlaps": ProfileField(True, _flag, "true or false"),
    "compiler": ProfileField({}, is_mapping, "a mapping of names to numbers"),
}


LISTS = ("device_kinds", "aliases", "all_reduce_for", "host", "pod")  # fields that are lists of plain values


def _check_compiler(path: Path, given: Mapping[str, Any]) -> None:
    """Check the values that a compiler needs about a device.

    Raises:
        BadInput: a value has the wrong form, or the device's name is missing.
    """
    for name, value in given["compiler"].items():
        what = "a positive number"
        fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
        if name == "compute_capability":
            what, fits = "two numbers with a dot, such as 9.0", re.fullmatch(r"\d+\.\d+", str(value))
        if not fits:
            raise BadInput(f"the hardware {path} has {name}: {value!r} in compiler, but it must be {what}.")
    if given["compiler"] and not given["device_kinds"]:
        raise BadInput(
            f"the hardware {path} has a compiler but no device_kinds. Add device_kinds, with the device's name first."
        )


def _figures(path: Path, entries: Any) -> tuple[dict[str, float], dict[str, str]]:
    """(values, sources) by name."""
    if not is_mapping(entries):
        raise BadInput(f"the hardware {path} has figures that are not a mapping of names to {{value, source}}.")
    for key, entry in entries.items():
        if key not in FIGURES:
            raise unknown_name(f"figure in the hardware {path}:", str(key), FIGURES)
        known = entry if is_mapping(entry) else {}
        value = known.get("value")
        if not isinstance(value, int | float) or isinstance(value, bool) or not MIN_FIGURE <= value <= MAX_FIGURE:
            raise BadInput(f"{key} in the hardware {path} must be a positive number: {{value: 1.0e+9, source: ...}}.")
        if not known.get("source"):
            raise BadInput(f"{key} in the hardware {path} has no source.")
    values = {str(key): float(entry["value"]) for key, entry in entries.items()}
    return values, {str(key): str(entry["source"]) for key, entry in entries.items()}


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
