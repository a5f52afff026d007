"""The words and cells about a profile, for the terminal and the report."""

from collections.abc import Sequence
from typing import NamedTuple

from stripectl.results.profile import AxisFigures, DeviceFigures, HopFigures, OperationFigures, Profile
from stripectl.util.units import NOTHING, duration, nbytes, plural, rate

HOPS = ("hop", "pass", "axis", "moves", "cause", "hidden", "exposed", "skew", "takes", "sent", "rate", "on")
AXES = ("axis", "sent", "rate", "hidden", "exposed", "overlap")
OPERATIONS = ("operation", "kind", "runs", "self-time", "share")
# Columns without numbers.
TEXT_COLUMNS = ("device", "hop", "pass", "axis", "moves", "on", "cause", "operation", "kind")
PORT = 8791
MARK = 'jax.profiler.StepTraceAnnotation("train", step_num=number)'
SLOWED = 0.1  # a profile that costs more is worth a note


def profile_summary(profile: Profile, predicted: float | None) -> str:
    """The overlap, measured and predicted, or why it is not known."""
    if profile.reason or not profile.devices:
        return f"overlap {NOTHING}: {profile.reason or 'the profile holds no device'}"
    share = share_text(profile.devices[profile.busiest].ratio)
    schedule = "" if predicted is None else f" (the compiled schedule predicts {share_text(predicted)})"
    return f"{share} of the communication hides on the device that computes longest{schedule}"


def profile_source(profile: Profile, median_s: float | None) -> str:
    """The number of steps or calls behind the figures, and the cost of the profile where the time without it is
    known."""
    program = program_name(profile.module)
    if profile.unit == "step":
        counted = f"{plural(profile.count, 'step')} of {program}"
    else:
        marks = f" in {plural(profile.steps, 'marked step')}" if profile.steps else "; steps are not marked"
        whole = profile.unit == "profile"
        counted = f"the whole profile of {program}" if whole else f"{plural(profile.count, 'call')} of {program}"
        counted += marks
    longest_s = max((device.step_s for device in profile.devices), default=0.0)
    slowed = longest_s / median_s - 1 if median_s and profile.unit != "profile" else 0.0
    slower = f", {slowed:.0%} slower than without the profile" if slowed > SLOWED else ""
    return f"{counted}{slower}"


def program_name(module: str | None) -> str:
    """The name of a program without its number."""
    return (module or "a program").partition("(")[0]


def other_programs_text(profile: Profile) -> str | None:
    """The programs in a profile that no figure is of, with their calls."""
    others = [
        f"{program_name(other.module)} ({NOTHING if other.calls is None else plural(other.calls, 'call')})"
        for other in profile.other_programs
    ]
    return f"The profile has other programs, which no figure includes: {', '.join(others)}." if others else None


def device_columns(profile: Profile) -> tuple[str, ...]:
    """The titles of the columns of `device_cells`."""
    return ("device", profile.unit, "compute", "hidden", "exposed", "overlap", "skew", "stall", "idle")


def part_name(profile: Profile, article: str = "a") -> str:
    """The part of the profile that figures are of, with its article."""
    return "the whole profile" if profile.unit == "profile" else f"{article} {profile.unit}"


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
    moved = nbytes(axis.sent_bytes or None), rate(axis.bytes_per_s, "B/s")
    return (axis.axis, *moved, duration(axis.hidden_s), duration(axis.exposed_s), share_text(axis.ratio))


def operation_cells(operation: OperationFigures) -> tuple[str, ...]:
    timed = duration(operation.self_s), share_text(operation.share)
    return operation.name, operation.category, f"{operation.count:g}", *timed


def hop_cells(hop: HopFigures, devices: Sequence[DeviceFigures]) -> tuple[str, ...]:
    """The cells of a hop: its duration and its rate on the fastest device, the others on the worst device. Bytes are 0
    where the profile does not say how many are sent."""
    at = hop.worst
    share = f" ({share_text(hop.of_link)} of a link)" if hop.of_link else ""
    moved = duration(hop.transfer_s), nbytes(hop.sent_bytes or None), rate(hop.bytes_per_s, "B/s") + share
    times = map(duration, (hop.hidden_s[at], hop.exposed_s[at], hop.skew_s[at]))
    which = str(hop.hop), hop.passes, hop.axis, hop.what or hop.opcode, hop.cause or "hidden"
    return (*which, *times, *moved, devices[at].name)


class CauseLine(NamedTuple):
    """A cause of exposed communication or of figures that are not per step, its place, the reason, and a remedy."""

    cause: str
    which: str
    why: str
    advice: str


def cause_lines(profile: Profile) -> list[CauseLine]:
    """Why figures are not per step, why devices wait at the end of a step, and why hops are exposed. Similar hops are
    listed once, with the figures of the most exposed hop."""
    groups: dict[tuple[str, str], list[HopFigures]] = {}
    for hop in profile.hops:
        if hop.cause:
            groups.setdefault((hop.cause, hop.advice or ""), []).append(hop)
    end = profile.end
    found = [CauseLine(end.cause, f"the end of {part_name(profile)}", end.why, end.advice)] if end else []
    for (word, advice), alike in groups.items():
        most = max(alike, key=lambda hop: hop.most_exposed_s)
        which = f"hop {most.hop}" + (f" and {len(alike) - 1} more" if len(alike) > 1 else "")
        found.append(CauseLine(word, which, most.why or NOTHING, advice))
    return [*unmarked_lines(profile), *found]


def unmarked_lines(profile: Profile) -> list[CauseLine]:
    """Why figures are of calls or of the whole profile, and how to get figures of steps."""
    why = {
        "call": "figures are per call",
        "profile": "figures are of the whole profile, with the time between calls",
    }.get(profile.unit, "")
    if profile.unit != "step" and not profile.steps:
        return [CauseLine("not marked", "the steps", why, f"run each step under {MARK}")]
    if profile.unit == "profile":
        why = f"they do not divide the work of the devices; {why}"
        return [CauseLine("early", "the marks of steps", why, "call jax.block_until_ready under the mark of each step")]
    return []
