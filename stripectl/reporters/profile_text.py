"""The words and cells about a profile, for the terminal and the report."""

from collections.abc import Mapping, Sequence
from typing import Any

from stripectl.core.intervals import busiest_device
from stripectl.util.units import NOTHING, duration, nbytes, plural, rate

DEVICES = ("device", "step", "compute", "hidden", "exposed", "overlap", "skew", "stall", "idle")
HOPS = ("hop", "pass", "axis", "moves", "cause", "hidden", "exposed", "skew", "takes", "sent", "rate", "on")
AXES = ("axis", "sent", "rate", "hidden", "exposed", "overlap")
OPERATIONS = ("operation", "kind", "runs", "self-time", "share")
# Columns without numbers.
TEXT_COLUMNS = ("device", "hop", "pass", "axis", "moves", "on", "cause", "operation", "kind")
PORT = 8791
SLOWED = 0.1  # a profile that costs more is worth a note


def profile_summary(trace: Mapping[str, Any], predicted: float | None) -> str:
    """The overlap, measured and predicted, or why it is not known."""
    if trace.get("reason") or not trace.get("devices"):
        return f"overlap {NOTHING}: {trace.get('reason') or 'the profile holds no device'}"
    share = share_text(trace["devices"][longest_device(trace)].get("ratio"))
    schedule = "" if predicted is None else f" (the compiled schedule predicts {share_text(predicted)})"
    return f"{share} of the communication hides on the device that computes longest{schedule}"


def longest_device(trace: Mapping[str, Any]) -> int:
    """The device that computes longest."""
    return busiest_device(trace["devices"])


def profile_source(trace: Mapping[str, Any], median_s: float | None) -> str:
    """The number of steps behind the figures, and the cost of the profile where the time without it is known."""
    steps, module = trace.get("steps") or 0, str(trace.get("module") or "a program").partition("(")[0]
    longest_s = max((device["step_s"] for device in trace.get("devices") or ()), default=0.0)
    slowed = longest_s / median_s - 1 if median_s else 0.0
    slower = f", {slowed:.0%} slower than without the profile" if slowed > SLOWED else ""
    return f"{plural(steps, 'step')} of {module}{slower}"


def opening(logdir: str) -> str:
    """The command that opens profiles; the folder must be quoted already."""
    return f"xprof --logdir {logdir} --port {PORT}"


def share_text(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.0%}"


def device_cells(device: Mapping[str, Any]) -> tuple[str, ...]:
    times = {name: duration(device.get(f"{name}_s")) for name in DEVICES[1:]}
    return (device["name"], *(times | {"overlap": share_text(device.get("ratio"))}).values())


def axis_cells(axis: Mapping[str, Any]) -> tuple[str, ...]:
    moved = nbytes(axis["sent_bytes"]), rate(axis.get("bytes_per_s"), "B/s")
    return (
        axis["axis"],
        *moved,
        duration(axis["hidden_s"]),
        duration(axis["exposed_s"]),
        share_text(axis.get("ratio")),
    )


def operation_cells(operation: Mapping[str, Any]) -> tuple[str, ...]:
    timed = duration(operation["self_s"]), share_text(operation.get("share"))
    return operation["name"], operation["category"], str(operation["count"]), *timed


def worst_hop_share(hop: Mapping[str, Any]) -> int:
    """The device on which most of a hop is exposed."""
    return max(range(len(hop["exposed_s"])), key=lambda at: hop["exposed_s"][at])


def hop_cells(hop: Mapping[str, Any], devices: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The cells of a hop: its duration and its rate on the fastest device, the others on the worst device."""
    at = worst_hop_share(hop)
    share = f" ({share_text(hop['of_link'])} of a link)" if hop.get("of_link") else ""
    moved = duration(hop["transfer_s"]), nbytes(hop["sent_bytes"]), rate(hop.get("bytes_per_s"), "B/s") + share
    times = (duration(hop[name][at]) for name in ("hidden_s", "exposed_s", "skew_s"))
    what = hop.get("what") or hop["opcode"]
    which = str(hop["hop"]), hop["pass"], hop["axis"], what, hop.get("cause") or "hidden"
    return (*which, *times, *moved, devices[at]["name"])


def cause_lines(trace: Mapping[str, Any]) -> list[dict[str, str]]:
    """Why devices wait at the end of a step, and what exposes hops: {cause, which, why, advice}. Similar hops are
    listed once, with the figures of the most exposed hop."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for hop in trace.get("hops") or ():
        if hop.get("cause"):
            groups.setdefault((hop["cause"], hop.get("advice") or ""), []).append(hop)
    found = [{"which": "the end of a step", **trace["end"]}] if trace.get("end") else []
    for (word, advice), alike in groups.items():
        most = max(alike, key=lambda hop: max(hop["exposed_s"]))
        which = f"hop {most['hop']}" + (f" and {len(alike) - 1} more" if len(alike) > 1 else "")
        found.append({"cause": word, "which": which, "why": most.get("why") or NOTHING, "advice": advice})
    return found
