"""The profile of a step: the communication that compute hides, by device, hop and mesh axis, in seconds. Where steps
are not marked, a step in a name of a field is a call of the program, or the whole profile (`Profile.per`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stripectl.core.reason import Reason
from stripectl.results.findings import CommunicationOverlap
from stripectl.results.records import Amount, Count


@dataclass(frozen=True, kw_only=True)
class DeviceFigures:
    """A device in a step: medians over steps, and every step in `by_step`."""

    name: str
    step_s: Amount
    compute_s: Amount
    hidden_s: Amount
    exposed_s: Amount
    skew_s: Amount
    idle_s: Amount
    ratio: Amount | None = None
    stall_s: Amount | None = None
    by_step: Mapping[str, tuple[float, ...]] | None = None


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Why devices wait, and a remedy; `cause` is one word."""

    cause: str
    why: str
    advice: str


@dataclass(frozen=True, kw_only=True)
class HopFigures:
    """A hop; `window_s`, `hidden_s`, `exposed_s`, `skew_s` and `round_compute_s` by device, `transfer_s` of the device
    with the shortest transfer. `of_link` is the share of a link's rate."""

    hop: int
    opcode: str
    passes: str
    axis: str
    sent_bytes: Count
    transfer_s: Amount
    window_s: tuple[Amount, ...]
    hidden_s: tuple[Amount, ...]
    exposed_s: tuple[Amount, ...]
    skew_s: tuple[Amount, ...]
    round_compute_s: tuple[Amount, ...] = ()
    start_s: float | None = None
    what: str | None = None
    turn: int | None = None
    asynchronous: bool | None = None
    bytes_per_s: Amount | None = None
    of_link: Amount | None = None
    cause: str | None = None
    why: str | None = None
    advice: str | None = None

    @property
    def most_exposed_s(self) -> float:
        return max(self.exposed_s)

    @property
    def worst(self) -> int:
        """The device with the most exposed communication."""
        return max(range(len(self.exposed_s)), key=self.exposed_s.__getitem__)


@dataclass(frozen=True, kw_only=True)
class AxisFigures:
    """Communication along an axis of the mesh, on one device."""

    axis: str
    hidden_s: Amount
    exposed_s: Amount
    sent_bytes: Count
    ratio: Amount | None = None
    bytes_per_s: Amount | None = None


@dataclass(frozen=True, kw_only=True)
class OperationFigures:
    """An operation of the program: the number of runs on all devices, and the time during which nothing else ran."""

    name: str
    category: str
    count: Count
    self_s: Amount
    share: Amount | None = None


@dataclass(frozen=True, kw_only=True)
class StepTimeline:
    """A step as (kind, start, end) for every device."""

    end_s: Amount
    devices: tuple[tuple[tuple[str, Amount, Amount], ...], ...]


@dataclass(frozen=True, kw_only=True)
class ProgramCalls:
    """How often a device called a program; None where the profile does not show where a call begins."""

    module: str
    calls: Count | None = None


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The figures of a profile, or the reason why it has none. `profile` is the folder that holds it, below the run's;
    `overlap` moves to the measurement that was profiled.

    Figures are per step (also in older runs, which lack `per`), per call of the program or, where nothing divides the
    profile, for the whole profile. `steps` counts marked steps. Where figures are per call, `calls` counts the calls of
    the program."""

    reason: Reason | None = None
    module: str | None = None
    steps: Count | None = None
    per: Literal["step", "call", "profile"] | None = None
    calls: Count | None = None
    other_programs: tuple[ProgramCalls, ...] = ()
    profile: str | None = None
    overlap: CommunicationOverlap | None = None
    devices: tuple[DeviceFigures, ...] = ()
    hops: tuple[HopFigures, ...] = ()
    hops_left_out: Count | None = None
    axes: tuple[AxisFigures, ...] = ()
    operations: tuple[OperationFigures, ...] = ()
    operations_by: str | None = None
    timeline: StepTimeline | None = None
    end: Diagnosis | None = None

    @property
    def unit(self) -> str:
        """The noun for the part of the profile that figures are of."""
        return self.per or "step"

    @property
    def count(self) -> int:
        """The number of steps, calls or whole profiles of which figures are medians."""
        return int({"step": self.steps, "call": self.calls}.get(self.unit, 1) or 0)

    @property
    def busiest(self) -> int:
        """The device that computes longest, so that others wait for it; among several, the device with the most exposed
        communication."""
        devices = self.devices
        return max(
            range(len(devices)),
            key=lambda at: (devices[at].compute_s, devices[at].exposed_s, devices[at].hidden_s),
        )

    def __post_init__(self) -> None:
        if not self.devices and self.reason is None:
            raise TypeError("a profile without devices has no reason")
        count = len(self.devices)
        if any(len(each) != count for hop in self.hops for each in (hop.window_s, hop.hidden_s, hop.exposed_s)):
            raise TypeError("a hop of a profile lacks a figure for some devices")
        if any(len(hop.skew_s) != count for hop in self.hops):
            raise TypeError("a hop of a profile lacks a figure for some devices")
