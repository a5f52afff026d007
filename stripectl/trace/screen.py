"""What a terminal shows of a profile: devices, hops, mesh axes, operations, and a step drawn in characters."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from stripectl.units import NOTHING, duration, nbytes, rate

SIGNS = {"compute": "█", "hidden": "▓", "exposed": "░", "skew": "~", "idle": "·"}
NARROW, WIDE = 20, 100  # characters of a drawn step
SHOWN_HOPS, SHOWN_OPERATIONS = 16, 5
DEVICE_COLUMNS = ("step", "compute", "hidden", "exposed", "overlap", "skew", "stall", "idle")


def screen_parts(trace: Mapping[str, Any], title: str, predicted: float | None, width: int) -> Iterator[Table | Text]:
    """A profile, part by part; where it says nothing, why."""
    yield Text(title, style="bold")
    if not trace.get("devices"):
        yield Text(f"  overlap {NOTHING}: {trace.get('reason', 'the profile holds no device')}", style="yellow")
        return
    yield Text(f"  {trace['steps']} steps of {trace['module']}; {summary(trace, predicted)}")
    yield table(("", *DEVICE_COLUMNS), map(device_cells, trace["devices"]))
    yield from drawn(trace, width)
    if trace["hops"]:
        yield from hops(trace)
    if len(trace["axes"]) > 1:
        yield table(("axis", "sent", "rate", "hidden", "exposed", "overlap"), map(axis_cells, trace["axes"]))
    yield table(
        ("operation", "kind", "runs", "self-time", "share"),
        map(operation_cells, trace["operations"][:SHOWN_OPERATIONS]),
    )


def summary(trace: Mapping[str, Any], predicted: float | None) -> str:
    """The share that hides, measured and predicted."""
    if trace.get("reason"):
        return f"overlap {NOTHING}: {trace['reason']}"
    busiest = max(trace["devices"], key=lambda device: device["compute_s"])
    schedule = "" if predicted is None else f" (the compiled schedule predicts {percent(predicted)})"
    return f"{percent(busiest.get('ratio'))} of the communication hides on the device that computes longest{schedule}"


def percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.0%}"


def device_cells(device: Mapping[str, Any]) -> tuple[str, ...]:
    times = {name: duration(device.get(f"{name}_s")) for name in DEVICE_COLUMNS}
    return (device["name"], *(times | {"overlap": percent(device.get("ratio"))}).values())


def axis_cells(axis: Mapping[str, Any]) -> tuple[str, ...]:
    moved = nbytes(axis["sent_bytes"]), rate(axis.get("bytes_per_s"), "B/s")
    return (axis["axis"], *moved, duration(axis["hidden_s"]), duration(axis["exposed_s"]), percent(axis.get("ratio")))


def operation_cells(operation: Mapping[str, Any]) -> tuple[str, ...]:
    timed = duration(operation["self_s"]), percent(operation.get("share"))
    return operation["name"], operation["category"], str(operation["count"]), *timed


def hops(trace: Mapping[str, Any]) -> Iterator[Table | Text]:
    """A row for each hop, on the device where most of it is exposed, and what exposes those that are."""
    shown = trace["hops"][:SHOWN_HOPS]
    names = ("hop", "pass", "axis", "sent", "takes", "rate", "hidden", "exposed", "skew", "on", "cause")
    yield table(names, (hop_cells(hop, trace["devices"]) for hop in shown))
    left = len(trace["hops"]) - len(shown) + (trace.get("hops_left_out") or 0)
    if left:
        yield Text(f"  {left} more hops stand in the report", style="dim")
    causes: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for hop in trace["hops"]:
        if hop.get("cause"):
            causes.setdefault((hop["cause"], hop["advice"]), []).append(hop)
    for (word, advice), alike in causes.items():
        worst = max(alike, key=lambda hop: max(hop["exposed_s"]))
        which = f"hop {worst['hop']}" + (f" and {len(alike) - 1} more" if len(alike) > 1 else "")
        yield Text(f"  {word}: {which}: {worst['why']}.")
        yield Text(f"    Try: {advice}.")


def hop_cells(hop: Mapping[str, Any], devices: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    worst = max(range(len(devices)), key=lambda at: hop["exposed_s"][at])
    achieved = rate(hop.get("bytes_per_s"), "B/s") + (
        f" ({percent(hop['of_link'])} of a link)" if hop.get("of_link") else ""
    )
    moved = nbytes(hop["sent_bytes"]), duration(hop["transfer_s"]), achieved
    times = (duration(hop[name][worst]) for name in ("hidden_s", "exposed_s", "skew_s"))
    ends = devices[worst]["name"], hop.get("cause") or "hidden"
    return str(hop["hop"]), hop["pass"], hop["axis"], *moved, *times, *ends


def drawn(trace: Mapping[str, Any], width: int) -> Iterator[Text]:
    """A step of every device, a line each."""
    timeline = trace.get("timeline")
    if not timeline:
        return
    names = [device["name"] for device in trace["devices"]]
    room = max(map(len, names)) + 1
    size = max(NARROW, min(WIDE, width - room))
    legend = "  ".join(f"{sign} {kind}" for kind, sign in SIGNS.items())
    yield Text(f"one step, {duration(timeline['end_s'])}: {legend}", style="dim")
    for name, row in zip(names, timeline["devices"], strict=False):
        kinds = ["idle"] * size
        for kind, start, end in row:
            for at in range(round(size * start / timeline["end_s"]), round(size * end / timeline["end_s"])):
                kinds[min(at, size - 1)] = kind
        yield Text(f"{name:{room}}" + "".join(SIGNS.get(kind, "?") for kind in kinds), no_wrap=True)


def table(names: Sequence[str], rows: Iterator[tuple[str, ...]] | map) -> Table:
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for at, name in enumerate(names):
        words = at == 0 or name in ("pass", "axis", "on", "cause", "kind")
        made.add_column(name, justify="left" if words else "right", no_wrap=True)
    for row in rows:
        made.add_row(*map(Text, row))
    return made
