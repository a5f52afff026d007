"""The contents of a profile: the communication of a step that hides, by device, hop and axis of the mesh; seconds."""

from collections.abc import Mapping
from dataclasses import dataclass

from stripectl.results.findings import CommunicationOverlap
from stripectl.results.records import Amount, Count


@dataclass(frozen=True, kw_only=True)
class DeviceFigures:
    """A device in a step, medians over steps; `by_step` holds each of them."""

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
    """Why devices wait, and what to do about it; `cause` is one word."""

    cause: str
    why: str
    advice: str


@dataclass(frozen=True, kw_only=True)
class HopFigures:
    """A hop; `window_s`, `hidden_s`, `exposed_s`, `skew_s` and `round_compute_s` by device, `transfer_s` of the device
    that needs least for it. `of_link` is the share of a link's rate."""

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
        """The device on which the hop is exposed longest."""
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
    """An operation of the program: how often it ran, on all devices, and its own time, without operations inside it."""

    name: str
    category: str
    count: Count
    self_s: Amount
    share: Amount | None = None


@dataclass(frozen=True, kw_only=True)
class StepTimeline:
    """A step as (kind, start, end) of every device."""

    end_s: Amount
    devices: tuple[tuple[tuple[str, Amount, Amount], ...], ...]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The contents of a profile, or the reason why there are none. `profile` is its folder, below the run's;
    `overlap` moves to the measurement that the profile is of."""

    reason: str | None = None
    module: str | None = None
    steps: Count | None = None
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
    def busiest(self) -> int:
        """The device that computes longest, so that others wait for it; in a tie, the device with most exposed time."""
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
            raise TypeError("a hop of a profile has not a figure for each device")
        if any(len(hop.skew_s) != count for hop in self.hops):
            raise TypeError("a hop of a profile has not a figure for each device")
