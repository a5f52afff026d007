"""The parts of a measurement: speed-up, bound, tiles, overlap, check and noise. Times are in seconds, shares are parts
of 1; None where a figure is not known."""

import math
from dataclasses import dataclass

from stripectl.core.intervals import Overlap
from stripectl.core.plan import Plan
from stripectl.results.records import Amount, Count, Error, Sparse
from stripectl.statistics.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """How many times faster a plan is than the plan `over`, with the 95 % interval of that."""

    over: Plan
    value: float
    ci95: tuple[float, float] | None

    @property
    def verdict(self) -> Verdict | None:
        """Whether the plan is faster than the other, by the interval; None where there is no interval."""
        return Verdict.of_interval(*self.ci95, reference=1.0) if self.ci95 else None


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The best speed-up over the contiguous layout on the same mesh, by the balance of tiles: of attention alone, and
    of a layer of the model."""

    attention_only: float | None = None
    layer: float | None = None


@dataclass(frozen=True, kw_only=True)
class TileTally(Sparse):
    """How many tiles a forward pass computes for a head, all devices together; how many scores of them are useful, and
    their share; `per_round[device][round]` are tiles."""

    computed: Count
    useful: Count
    efficiency: Amount
    tile: str | None = None
    per_round: tuple[tuple[Count, ...], ...] = ()

    def __post_init__(self) -> None:
        if len({len(device) for device in self.per_round}) > 1:
            raise TypeError("tiles by round are not as many on each device")


@dataclass(frozen=True, kw_only=True)
class CommunicationOverlap:
    """How much of the communication hides behind compute, the share and seconds, on the device that computes longest;
    what of a step waits for slower peers (skew), and where a device does nothing but wait for a transfer (stall).
    `source` says who knows it."""

    ratio: Amount | None
    hidden_s: Amount | None = None
    exposed_s: Amount | None = None
    skew_s: Amount | None = None
    stall_s: Amount | None = None
    source: str | None = None

    @classmethod
    def predicted(cls, found: Overlap | None, source: str) -> "CommunicationOverlap | None":
        """The overlap of a plan that did not run, without waits for peers; None where the plan sends nothing."""
        return found and cls(ratio=found.ratio, hidden_s=found.hidden_s, exposed_s=found.exposed_s, source=source)


@dataclass(frozen=True, kw_only=True)
class Check:
    """The numbers of a plan against a reference: the largest error, relative to the largest value, and what is
    allowed."""

    max_rel_error: Error
    tolerance: Error
    reference: str

    @property
    def error(self) -> float:
        """The error, the larger the worse: one that is no number is infinite."""
        return math.inf if math.isnan(self.max_rel_error) else self.max_rel_error

    @property
    def passes(self) -> bool:
        return self.max_rel_error <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Disturbances of samples: seconds of the yardstick, the share of the cores that other programs took, how often
    the clock was throttled, and samples that held a compilation and were taken again."""

    yardstick_s: tuple[Amount, ...] = ()
    others: Amount = 0.0
    throttled: Amount = 0
    compiled: Amount = 0
