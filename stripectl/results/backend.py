"""A backend finds the times of plans by one method, and reports its results as events: for the file of a run, for a
display, and for the caller.

A call that waits for a worker cannot yield an event. So progress goes to `progress.Say`, and the listener of a command
(`Tell`) gets devices as soon as they are found.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from stripectl.results.case import Case
from stripectl.results.devices import DeviceGroup
from stripectl.results.measurement import Measurement
from stripectl.results.search_table import SearchTable


@dataclass(frozen=True)
class DevicesFound:
    """Devices that a command uses."""

    devices: Sequence[DeviceGroup]


@dataclass(frozen=True)
class Partial:
    """A measurement that is still being sampled."""

    measurement: Measurement


@dataclass(frozen=True)
class Final:
    """A finished measurement."""

    measurement: Measurement


@dataclass(frozen=True)
class SearchResult:
    """All plans that were simulated to find the best for a workload; only the notable plans among them are `Final`."""

    table: SearchTable


@dataclass(frozen=True)
class Notice:
    """A sentence for the reader of the table. It `warns` where the run is not what the user may expect; the run then
    keeps it among its warnings."""

    text: str
    warns: bool = False


Event = DevicesFound | Partial | Final | SearchResult | Notice
Tell = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Do nothing with an event."""


class Backend(Protocol):
    """Simulates, compiles or measures plans of one target. Rates of the machine itself, which `topology --measure`
    saves, are not found here, because they are figures of no plan."""

    def prepare(self, cases: Sequence[Case]) -> None:
        """Fail before anything runs where the cases cannot run.

        Raises:
            Missing: the devices or the compiler are not available here.
        """
        ...

    def run(self, cases: Sequence[Case], budget_s: float = math.inf) -> Iterator[Event]:
        """A `Final` for every case, in order; a case that is not ready keeps its reason. Sampling ends
        after `budget_s`. An interrupt continues after all results were yielded."""
        ...


class Arms(Protocol):
    """Candidates of a search, which it runs one sample at a time."""

    @property
    def prior_s(self) -> Sequence[float | None]:
        """By candidate, a time that is known before it runs, in any unit, or None."""
        ...

    @property
    def spent_s(self) -> float:
        """Seconds that devices have run so far, including warm-up."""
        ...

    def pull_short(self, index: int) -> float | None:
        """The time of a full run by a short run, the first of which is the warm-up; None: it is refused or fails."""
        ...

    def pull_full(self, index: int) -> float | None:
        """Seconds of a full run, after a warm-up run; None: it is refused or fails."""
        ...


class Sampler(Arms, Protocol):
    """Ready cases that differ in the tile of one pass, as the candidates of a search."""

    def result(self, index: int) -> Measurement | None:
        """The latest result of a case; None if it has not run."""
        ...

    def release(self) -> None:
        """Forget the cases: no sample follows."""
        ...


class SamplingBackend(Backend, Protocol):
    """A backend that also runs cases one sample at a time."""

    def sampler(self, cases: Sequence[Case]) -> Sampler:
        """A sampler of ready cases, with the samples of a resumed run."""
        ...


def finals(events: Iterable[Event]) -> list[Measurement]:
    """The finished measurements."""
    return [event.measurement for event in events if isinstance(event, Final)]
