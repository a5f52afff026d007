"""The parts of a measurement: speed-up, bound, tiles, overlap, check and noise. Times are in seconds and shares are
fractions of 1; None where a figure is unknown."""

import math
from dataclasses import dataclass

from stripectl.core.intervals import Overlap
from stripectl.core.plan import Plan
from stripectl.results.records import Amount, Count, Error, Sparse
from stripectl.statistics.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """The speed-up of a plan over the plan `over`, with its 95 % interval."""

    over: Plan
    value: float
    ci95: tuple[float, float] | None

    @property
    def verdict(self) -> Verdict | None:
        """Whether the plan is faster, by the interval; None where there is no interval."""
        return Verdict.of_interval(*self.ci95, reference=1.0) if self.ci95 else None


@dataclass(frozen=True, kw_only=True)
class Distortion(Sparse):
    """Something that is not as the user asked, as a sentence without its full stop, and the figures that it distorts:
    `time`, `memory`, `bytes` or `speedup`. `factor` is the time of attention divided by the time as it was asked, where
    that is known."""

    fact: str
    figures: tuple[str, ...]
    factor: Amount | None = None


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The best speed-up over the contiguous layout on the same mesh, by the balance of tiles: of attention alone, and
    of a layer of the model."""

    attention_only: float | None = None
    layer: float | None = None


@dataclass(frozen=True, kw_only=True)
class TileTally(Sparse):
    """The number of tiles that a forward pass computes per head on all devices together, the number of useful scores in
    them, and their share; `per_round[device][round]` counts tiles. A kernel that pads rows to its tile adds `padding`
    rows to each device's share of the sequence."""

    computed: Count
    useful: Count
    efficiency: Amount
    tile: str | None = None
    per_round: tuple[tuple[Count, ...], ...] = ()
    padding: Count = 0

    def __post_init__(self) -> None:
        if len({len(device) for device in self.per_round}) > 1:
            raise TypeError("devices have different numbers of rounds")


@dataclass(frozen=True, kw_only=True)
class CommunicationOverlap:
    """The share and the seconds of communication that compute hides, on the device that computes longest; the time that
    a step waits for slower peers (skew); the time in which a device only waits for a transfer (stall). `source` says
    how they are known."""

    ratio: Amount | None
    hidden_s: Amount | None = None
    exposed_s: Amount | None = None
    skew_s: Amount | None = None
    stall_s: Amount | None = None
    source: str | None = None

    @classmethod
    def predicted(cls, found: Overlap | None, source: str) -> "CommunicationOverlap | None":
        """The overlap of a plan that did not run: waiting for peers is unknown. None where nothing is sent."""
        return found and cls(ratio=found.ratio, hidden_s=found.hidden_s, exposed_s=found.exposed_s, source=source)


@dataclass(frozen=True, kw_only=True)
class Check:
    """A plan's results against a reference: the largest error, relative to the largest value, and the tolerance."""

    max_rel_error: Error
    tolerance: Error
    reference: str

    @property
    def error(self) -> float:
        """The error; infinite where it is not a number."""
        return math.inf if math.isnan(self.max_rel_error) else self.max_rel_error

    @property
    def passes(self) -> bool:
        return self.max_rel_error <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Observations during samples: seconds of the yardstick, the share of the cores that other programs took, the
    number of times that the clock was throttled, and the number of samples that were repeated because of a
    compilation."""

    yardstick_s: tuple[Amount, ...] = ()
    others: Amount = 0.0
    throttled: Amount = 0
    compiled: Amount = 0
