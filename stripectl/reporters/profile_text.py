"""The words and cells about a profile, for the terminal and the report."""

from collections.abc import Sequence
from typing import NamedTuple

from stripectl.results.profile import AxisFigures, DeviceFigures, HopFigures, OperationFigures, Profile
from stripectl.util.units import NOTHING, duration, nbytes, plural, rate

DEVICES = ("device", "step", "compute", "hidden", "exposed", "overlap", "skew", "stall", "idle")
HOPS = ("hop", "pass", "axis", "moves", "cause", "hidden", "exposed", "skew", "takes", "sent", "rate", "on")
AXES = ("axis", "sent", "rate", "hidden", "exposed", "overlap")
OPERATIONS = ("operation", "kind", "runs", "self-time", "share")
# Columns without numbers.
TEXT_COLUMNS = ("device", "hop", "pass", "axis", "moves", "on", "cause", "operation", "kind")
PORT = 8791
SLOWED = 0.1  # a profile that costs more is worth a note


def profile_summary(profile: Profile, predicted: float | None) -> str:
    """The overlap, measured and predicted, or why it is not known."""
    if profile.reason or not profile.devices:
        return f"overlap {NOTHING}: {profile.reason or 'the profile holds no device'}"
    share = share_text(profile.devices[profile.busiest].ratio)
    schedule = "" if predicted is None else f" (the compiled schedule predicts {share_text(predicted)})"
    return f"{share} of the communication hides on the device that computes longest{schedule}"


def profile_source(profile: Profile, median_s: float | None) -> str:
    """The number of steps behind the figures, and the cost of the profile where the time without it is known."""
    steps, module = int(profile.steps or 0), (profile.module or "a program").partition("(")[0]
    longest_s = max((device.step_s for device in profile.devices), default=0.0)
    slowed = longest_s / median_s - 1 if median_s else 0.0
    slower = f", {slowed:.0%} slower than without the profile" if slowed > SLOWED else ""
    return f"{plural(steps, 'step')} of {module}{slower}"


def opening(logdir: str) -> str:
    """The command that opens profiles; the folder must be quoted already."""
    return f"xprof --logdir {logdir} --port {PORT}"


def share_text(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.0%}"


def device_cells(device: DeviceFigures) -> tuple[str, ...]:
    times = map(duration, (device.step_s, device.compute_s, device.hidden_s, device.exposed_s))
    waits = map(duration, (device.skew_s, device.stall_s, device.idle_s))
    return (device.name, *times, share_text(device.ratio), *waits)


def axis_cells(axis: AxisFigures) -> tuple[str, ...]:
    moved = nbytes(axis.sent_bytes), rate(axis.bytes_per_s, "B/s")
    return (axis.axis, *moved, duration(axis.hidden_s), duration(axis.exposed_s), share_text(axis.ratio))


def operation_cells(operation: OperationFigures) -> tuple[str, ...]:
    timed = duration(operation.self_s), share_text(operation.share)
    return operation.name, operation.category, f"{operation.count:g}", *timed


def hop_cells(hop: HopFigures, devices: Sequence[DeviceFigures]) -> tuple[str, ...]:
    """The cells of a hop: its duration and its rate on the fastest device, the others on the worst device."""
    at = hop.worst
    share = f" ({share_text(hop.of_link)} of a link)" if hop.of_link else ""
    moved = duration(hop.transfer_s), nbytes(hop.sent_bytes), rate(hop.bytes_per_s, "B/s") + share
    times = map(duration, (hop.hidden_s[at], hop.exposed_s[at], hop.skew_s[at]))
    which = str(hop.hop), hop.passes, hop.axis, hop.what or hop.opcode, hop.cause or "hidden"
    return (*which, *times, *moved, devices[at].name)


class CauseLine(NamedTuple):
    """A cause of exposed communication, its place, the reason, and a remedy."""

    cause: str
    which: str
    why: str
    advice: str


def cause_lines(profile: Profile) -> list[CauseLine]:
    """Why devices wait at the end of a step, and what exposes hops. Similar hops are listed once, with the figures of
    the most exposed hop."""
    groups: dict[tuple[str, str], list[HopFigures]] = {}
    for hop in profile.hops:
        if hop.cause:
            groups.setdefault((hop.cause, hop.advice or ""), []).append(hop)
    end = profile.end
    found = [CauseLine(end.cause, "the end of a step", end.why, end.advice)] if end else []
    for (word, advice), alike in groups.items():
        most = max(alike, key=lambda hop: hop.most_exposed_s)
        which = f"hop {most.hop}" + (f" and {len(alike) - 1} more" if len(alike) > 1 else "")
        found.append(CauseLine(word, which, most.why or NOTHING, advice))
    return found
