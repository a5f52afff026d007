"""The form of a hardware profile: its fields and figures, and the test of each value.

A profile gives figures per JAX device, as `{value, source}`.
"""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from stripectl.errors import BadInput
from stripectl.util.files import unknown_name
from stripectl.util.json import is_list, is_mapping

Kind = Literal["cpu", "tpu", "gpu"]

# Figures of a profile -> their meaning; the name ends in the unit, and `Hardware` has fields of the same names.
FIGURES = (
    "matmul_flops_per_s_bfloat16",
    "matmul_flops_per_s_float32",
    "achievable_flops_per_s_bfloat16",
    "sustained_share_bfloat16",  # of its rate, that a GPU keeps when it computes without a pause
    "hbm_bytes",
    "hbm_bytes_per_s",
    "achievable_hbm_bytes_per_s",
    "fill_bytes_per_s",  # of an array that is filled with one value
    "link_bytes_per_s_one_way",
    "chip_bytes_per_s_one_way",  # between the devices of a chip
    "hop_latency_s",
    "collective_latency_s",
    "network_bytes_per_s_one_way",
    "host_bytes_per_s_one_way",  # between a device and its host's memory
    "network_latency_s",  # of a transfer between slices or nodes, without the time of its bytes
    "block_wait_s",  # that a step of a Pallas grid waits per block that it loads or stores
    "vmem_bytes",  # of a TPU core's memory
    "vmem_limit_bytes",  # of a TPU core's memory, for a kernel that asks its compiler for no more
    "clock_hz",
)
ACHIEVABLE = {  # a rate that is reached -> its peak
    "achievable_flops_per_s_bfloat16": "matmul_flops_per_s_bfloat16",
    "achievable_hbm_bytes_per_s": "hbm_bytes_per_s",
}
MIN_FIGURE, MAX_FIGURE = 1e-15, 1e24  # the range of a figure


class ProfileField(NamedTuple):
    """A field of a profile: its default, the test of a value, and the test in words."""

    default: Any
    is_valid: Callable[[Any], bool]
    description: str


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
    "based_on": ProfileField("", _text, "the name of a machine or the path of a file"),
    "links_of": ProfileField("", _text, "the name of a machine"),
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
    "larger": ProfileField("", _text, "a text"),
    "slices": ProfileField([], _shapes, "a list of shapes such as 2x2x4"),
    "counted": ProfileField(1, _count(1), "a positive integer"),
    "chip_config": ProfileField(None, _text_or_none, "a name"),
    "aliases": ProfileField([], _names, "a list of names"),
    "kernel": ProfileField("xla", _text, "the name of a kernel"),
    "compiles": ProfileField(True, _flag, "true or false"),
    "overlaps": ProfileField(True, _flag, "true or false"),
    "unknown": ProfileField("", _text, "a text"),
    "compiler": ProfileField({}, is_mapping, "a mapping of names to numbers"),
}


LISTS = ("device_kinds", "aliases", "all_reduce_for", "host", "pod")  # fields that are lists of plain values


def check_fields(path: Path, content: Mapping[str, object]) -> None:
    """Check the names and the values of a profile's fields.

    Raises:
        BadInput: a field is unknown, or its value has another form.
    """
    known = {*FIELDS, "figures"}
    for key, value in content.items():
        if key not in known:
            raise unknown_name(f"field in the hardware {path}:", key, known)
        if key in FIELDS and not FIELDS[key].is_valid(value):
            raise BadInput(f"the hardware {path} has {key}: {value!r}, but it must be {FIELDS[key].description}.")


def check_compiler(path: Path, given: Mapping[str, Any]) -> None:
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


def read_figures(path: Path, entries: Any) -> tuple[dict[str, float], dict[str, str]]:
    """(values, sources) by name."""
    if not is_mapping(entries):
        raise BadInput(f"the hardware {path} has figures that are not a mapping of names to {{value, source}}.")
    for key, entry in entries.items():
        if key not in FIGURES:
            raise unknown_name(f"figure in the hardware {path}:", str(key), FIGURES)
        known = entry if is_mapping(entry) else {}
        value = known.get("value")
        if not isinstance(value, int | float) or isinstance(value, bool) or not MIN_FIGURE <= value <= MAX_FIGURE:
            text = f", but YAML reads {value} as text. Give it a point and a sign" * isinstance(value, str)
            raise BadInput(
                f"{key} in the hardware {path} must be a positive number{text}: {{value: 1.0e+9, source: ...}}."
            )
        if not known.get("source"):
            raise BadInput(f"{key} in the hardware {path} has no source.")
    values = {str(key): float(entry["value"]) for key, entry in entries.items()}
    return values, {str(key): str(entry["source"]) for key, entry in entries.items()}
