"""One step of one device: when it computes, when each hop is on its way, and how long the device waits for it."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stripectl.core.intervals import NONE, minus, union
from stripectl.profiling.events import HOST_COPY, Device, Events, Execution
from stripectl.profiling.program import ProfiledProgram, Role, Site


class HopKey(NamedTuple):
    """A hop of a step: its site, and how often the site has run."""

    site: Site
    turn: int


@dataclass
class DeviceStep:
    """Intervals in seconds since the step began in this process. `stall` is when the device only waits for a transfer;
    None where its profile does not show this."""

    compute: np.ndarray
    hops: dict[HopKey, np.ndarray]
    sent_bytes: dict[HopKey, int]
    stall: np.ndarray | None
    end_s: float

    @property
    def windows(self) -> np.ndarray:
        """When any transfer is on its way."""
        return union(*self.hops.values())


class Transfer(NamedTuple):
    """One transfer of one instruction."""

    name: str
    role: Role
    start_s: float
    end_s: float


def device_step(device: Device, execution: Execution, program: ProfiledProgram, base_s: float) -> DeviceStep:
    """A device's part of one run of the program."""
    events = device.operations.between(execution.start_s, execution.end_s)
    roles = roles_of(device, events, program)
    kinds = np.array([role.kind for role in roles])[events.which] if len(roles) else np.empty(0, str)
    found = list(transfers(device, events, roles, kinds, execution, program))
    hops: dict[HopKey, list[tuple[float, float]]] = defaultdict(list)
    sent: Counter[HopKey] = Counter()
    turns: Counter[str] = Counter()
    for each in sorted(found, key=lambda transfer: transfer.start_s):
        assert each.role.site
        key = HopKey(each.role.site, turns[each.name])
        turns[each.name] += 1
        hops[key].append((each.start_s - base_s, each.end_s - base_s))
        sent[key] += each.role.sent_bytes
    busy = compute_of(events, roles, kinds)
    waits = np.isin(kinds, ["done", "move"])
    return DeviceStep(
        compute=busy - base_s,
        hops={key: lasting for key, windows in hops.items() if len(lasting := union(windows))},
        sent_bytes=dict(sent),
        stall=None if device.kind == "gpu" else minus(union(intervals(events, waits)), busy) - base_s,
        end_s=max([end_of(device, events, execution), *(each.end_s for each in found)]) - base_s,
    )


def end_of(device: Device, events: Events, execution: Execution) -> float:
    last = events.end_s.max() if len(events.end_s) else execution.start_s
    return float(last if device.kind == "gpu" else max(last, execution.end_s))


def roles_of(device: Device, events: Events, program: ProfiledProgram) -> list[Role]:
    """The role of each event's name. On a GPU, kernels that the program does not know are compute, except copies to and
    from the host and kernels of its communication library."""
    compute, none = Role("compute"), Role("none")

    def role(name: str) -> Role:
        known = program.role(name)
        if name in device.peers and (known is None or known.site is None):
            return Role("move", Site(("", name), "peer copy", "forward", "unknown axis", "", True, True))
        if known is None and device.kind == "gpu":
            return none if name.startswith(HOST_COPY) else compute
        return known or none

    return [role(name) for name in events.names]


def intervals(events: Events, chosen: np.ndarray) -> np.ndarray:
    return np.stack([events.start_s[chosen], events.end_s[chosen]], axis=1)


def compute_of(events: Events, roles: list[Role], kinds: np.ndarray) -> np.ndarray:
    """When a line computes, without communication inside: the union of self-times, without containers."""
    fused = np.array([role.computes for role in roles], bool)[events.which] if len(roles) else np.empty(0, bool)
    computes, moves = (kinds == "compute") | fused, np.isin(kinds, ["move", "start", "done"]) & ~fused
    busy = []
    for line in np.unique(events.lines):
        here = events.lines == line
        own, inside = union(intervals(events, here & computes)), union(intervals(events, here & moves))
        busy.append(minus(own, inside))
    return union(*busy) if busy else NONE


def transfers(
    device: Device, events: Events, roles: list[Role], kinds: np.ndarray, execution: Execution, program: ProfiledProgram
) -> Iterator[Transfer]:
    """Every transfer: on a GPU an event of its stream, elsewhere a blocking event, a window on the line of asynchronous
    operations, or the time from a start to its done."""
    for at in np.flatnonzero(np.isin(kinds, ["move", "start"] if device.kind == "gpu" else ["move"])):
        which = events.which[at]
        yield Transfer(events.names[which], roles[which], events.start_s[at], events.end_s[at])
    if device.kind == "gpu":
        return
    aside = device.asynchronous.between(execution.start_s, execution.end_s)
    known = [program.role(name) or Role("none") for name in aside.names]
    if any(role.kind == "done" for role in known):
        yield from start_done_pairs(aside, known)
        return
    seen = set()
    for which, start, end in zip(aside.which, aside.start_s, aside.end_s, strict=True):
        if known[which].kind == "start":
            seen.add(instruction_name(aside.names[which]))
            yield Transfer(aside.names[which], known[which], start, end)
    yield from (each for each in start_done_pairs(events, roles) if instruction_name(each.name) not in seen)


def instruction_name(name: str) -> str:
    return name.lstrip("%").partition(" ")[0]


def start_done_pairs(events: Events, roles: list[Role]) -> Iterator[Transfer]:
    """From each start to its done, first come first served; a start without a done is dropped."""
    opened: dict[str, list[tuple[str, Role, float]]] = defaultdict(list)
    for which, start, end in zip(events.which, events.start_s, events.end_s, strict=True):
        role = roles[which]
        if role.kind == "start":
            opened[instruction_name(events.names[which])].append((events.names[which], role, start))
        elif role.kind == "done" and opened[role.start]:
            name, begun, since = opened[role.start].pop(0)
            yield Transfer(name, begun, since, end)
