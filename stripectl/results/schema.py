"""What a run.json written by anybody must hold for the rest of stripectl to read it."""

import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

from stripectl.core.method import METHODS

MAX_MEASUREMENTS = 2**17  # of a run
MAX_ASKED_PLANS = 2**13  # of a command
MAX_SIMULATED_PLANS = 2**16  # plans of a workload that a command simulates to find the best
MAX_SAMPLES = 10_000  # of a measurement
MIN_NUMBER, MAX_NUMBER = 1e-60, 1e60  # of numbers
MAX_NESTING = 32
DEVICE_FIGURES = ("step_s", "compute_s", "hidden_s", "exposed_s", "skew_s", "idle_s")
HOP_FIGURES = ("window_s", "hidden_s", "exposed_s", "skew_s")  # of a hop, a list by device
# What the parts of a trace hold: numbers, texts, numbers and texts that may be absent.
TRACE_PARTS = {
    "devices": (DEVICE_FIGURES, ("name",), ("ratio", "stall_s"), ()),
    "hops": (
        ("hop", "sent_bytes", "transfer_s"),
        ("opcode", "axis", "pass"),
        ("bytes_per_s", "of_link"),
        ("cause", "why", "advice", "what"),
    ),
    "axes": (("hidden_s", "exposed_s", "sent_bytes"), ("axis",), ("ratio", "bytes_per_s"), ()),
    "operations": (("self_s", "count"), ("name", "category"), ("share",), ()),
}


def is_number(value: Any) -> TypeGuard[float]:
    """Zero, or what ratios of ratios can be taken of."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and (value == 0 or MIN_NUMBER <= value <= MAX_NUMBER)


def is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_number, value))


def is_shallow(value: Any) -> bool:
    """Whether lists and mappings lie in each other no deeper than DEEPEST; what is deeper, functions that call
    themselves cannot read."""
    level = [value]
    for _ in range(MAX_NESTING):
        parts = [part.values() if isinstance(part, dict) else part for part in level]
        level = [each for part in parts for each in part if isinstance(each, dict | list)]
    return not level


def is_small(value: Any) -> bool:
    """Whether every whole number in nested data is one that a float can hold."""
    if isinstance(value, dict | list):
        return all(map(is_small, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int) or abs(value) <= MAX_NUMBER


def is_counts(value: Any) -> bool:
    """What `tiles` holds: counts and shares, and of a plan that is explained a count for every device and round."""
    if not isinstance(value, dict) or not all(is_number(value.get(n)) for n in ("computed", "useful", "efficiency")):
        return False
    rounds = value.get("per_round", [[]])
    return isinstance(rounds, list) and all(map(is_numbers, rounds)) and len({len(device) for device in rounds}) == 1


def has(part: Any, numbers: Sequence[str], others: Sequence[str]) -> bool:
    """Whether it is a mapping with these fields, the former numbers."""
    return isinstance(part, dict) and all(is_number(part.get(n)) for n in numbers) and part.keys() >= {*others}


def is_compiled_program(value: Any) -> bool:
    """What a compiler said, as far as it is shown: lists of mappings with all their fields."""
    if not isinstance(value, dict):
        return False
    transfers, changes, copied = value.get("collectives") or [], value.get("rewrites") or [], value.get("copies")
    told = ("opcode", "pass", "dtype", "asynchronous", "beside_tiles")
    return (
        isinstance(transfers, list)
        and isinstance(changes, list)
        and all(has(each, ("sent_bytes", "times"), told) for each in transfers)
        and all(has(each, (), ("name",)) and is_plain(each.get("bytes"), int) for each in changes)
        and (not value.get("longest") or has(value["longest"], ("refused",), ("reason",)))
        and (not copied or holds(copied, ("per_round", "bytes_per_round"), (), ("s_per_round",), ()))
    )


def is_profile(value: Any) -> bool:
    """What a profile says: why it says nothing, or figures by device, hop and axis, and the timeline of a step."""
    if not isinstance(value, dict) or not is_plain(value):
        return False
    if not holds(value, (), (), ("steps", "hops_left_out"), ("module", "reason", "profile")):
        return False
    if "devices" not in value:
        return isinstance(value.get("reason"), str)
    if value.get("end") and not holds(value["end"], (), ("cause", "why", "advice"), (), ()):
        return False
    parts = {name: value.get(name) or [] for name in TRACE_PARTS}
    drawn = value.get("timeline") or {"end_s": 1, "devices": []}
    if not all(isinstance(part, list) for part in parts.values()) or not has(drawn, ("end_s",), ("devices",)):
        return False
    rows, count = drawn["devices"], len(parts["devices"])
    return (
        all(holds(each, *TRACE_PARTS[name]) for name, part in parts.items() for each in part)
        and all(is_numbers(hop.get(name)) and len(hop[name]) == count for hop in parts["hops"] for name in HOP_FIGURES)
        and isinstance(rows, list)
        and all(isinstance(row, list) and all(map(is_segment, row)) for row in rows)
    )


def holds(
    part: Any, numbers: Sequence[str], texts: Sequence[str], perhaps: Sequence[str], words: Sequence[str]
) -> bool:
    """Whether it is a mapping with these numbers and texts; `perhaps` (numbers) and `words` (texts) may be absent."""
    return (
        has(part, numbers, texts)
        and all(isinstance(part[name], str) for name in texts)
        and all(part.get(name) is None or is_number(part[name]) for name in perhaps)
        and all(part.get(name) is None or isinstance(part[name], str) for name in words)
    )


def is_check(value: Any) -> bool:
    """An error, which may be infinite or none, what is allowed, and what it is against."""
    numbers = [value.get(name) for name in ("max_rel_error", "tolerance")] if isinstance(value, dict) else [None]
    return all(isinstance(each, int | float) for each in numbers) and isinstance(value.get("reference"), str)


def is_noise(value: Any) -> bool:
    """What was beside samples: the yardstick's seconds, a share, and counts."""
    return has(value, ("others", "throttled", "compiled"), ()) and is_numbers(value.get("yardstick_s"))


def is_overlap(value: Any) -> bool:
    """Seconds, and the share that hides."""
    return isinstance(value, dict) and is_plain(value) and (value.get("ratio") is None or is_number(value["ratio"]))


def is_segment(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and isinstance(value[0], str) and is_numbers(value[1:])


def is_plain(value: Any, kind: type = object) -> bool:
    """Nested data without numbers that no unit can show."""
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    if isinstance(value, list):
        return all(map(is_plain, value))
    return isinstance(value, kind) and (not isinstance(value, int | float) or is_number(abs(value)))


# (test, words) by field of a measurement.
FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **{name: (lambda x: isinstance(x, str), "a text") for name in ("plan", "target", "reason")},
    "method": (lambda x: x in METHODS, "a method"),
    "status": (lambda x: x in ("ok", "refused", "failed"), "a status"),
    "samples_s": (lambda x: is_numbers(x) and len(x) <= MAX_SAMPLES, f"a list of at most {MAX_SAMPLES:,} seconds"),
    "ci95_s": (lambda x: is_numbers(x) and len(x) == 2, "two numbers"),
    **dict.fromkeys(("median_s", "compile_s", "peak_flops_per_s", "peak_bytes", "hbm_bytes"), (is_number, "a number")),
    "tiles": (is_counts, "counts of tiles"),
    "bytes": (lambda x: isinstance(x, dict) and all(map(is_number, x.values())), "bytes by collective"),
    "bound": (lambda x: isinstance(x, dict) and all(v is None or is_number(v) for v in x.values()), "bounds"),
    "check": (is_check, "a check"),
    "overlap": (is_overlap, "an overlap"),
    "noise": (is_noise, "what was beside samples"),
    **dict.fromkeys(
        ("speedup", "cost_source", "flags"),
        (lambda x: isinstance(x, dict) and is_plain(x), "a mapping of plain values"),
    ),
    "compiled_program": (is_compiled_program, "what a compiler said"),
    "profile": (is_profile, "what a profile says"),
    "memory": (lambda x: isinstance(x, dict) and all(map(is_number, x.values())), "bytes by part"),
    "step_parts": (lambda x: isinstance(x, dict) and all(map(is_number, x.values())), "seconds by part"),
    "bottleneck_shares": (
        lambda x: isinstance(x, dict) and all(map(is_number, x.values())),
        "shares by part of the machine",
    ),
    "scaling": (
        lambda x: isinstance(x, list) and all(has(each, ("seq_len", "median_s"), ()) for each in x),
        "times by length",
    ),
}


# Fields by their names in schema `stripectl.run/1`.
RENAMED = {
    "calibration": "cost_source",
    "guards": "noise",
    "limits": "bottleneck_shares",
    "parts": "step_parts",
    "program": "compiled_program",
    "trace": "profile",
}


def check_fields(measurement: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a measurement, by the names that they have in the newest schema.

    Raises:
        TypeError: one is not what it must be.
    """
    measurement = {RENAMED.get(name, name): value for name, value in measurement.items()}
    for name, (fits, what) in FIELDS.items():
        if measurement.get(name) is not None and not fits(measurement[name]):
            raise TypeError(f"{name} is {reprlib.repr(measurement[name])}, not {what}")
    return measurement
