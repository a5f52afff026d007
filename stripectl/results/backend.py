"""A backend finds out what plans take, by one method, and says what it finds as events: to the file of a run, to a
display, to the caller.

Progress is not among the events, because a call that waits for a worker cannot yield one: it goes to `progress.Say`.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stripectl.results.measurement import Measurement
from stripectl.results.search_table import SearchTable


@dataclass(frozen=True)
class DevicesFound:
    """Devices that a command uses, as `environment["devices"]` of a run has them."""

    devices: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Partial:
    """A measurement that is still being sampled."""

    measurement: Measurement


@dataclass(frozen=True)
class Final:
    """A measurement that is done."""

    measurement: Measurement


@dataclass(frozen=True)
class SearchResult:
    """All plans that were simulated to find the best for a workload; of them only the notable ones are `Final`."""

    table: SearchTable


@dataclass(frozen=True)
class Notice:
    """A sentence for whoever reads the table."""

    text: str


Event = DevicesFound | Partial | Final | SearchResult | Notice


class Backend(Protocol):
    """Simulates, compiles or measures plans of one target."""

    def prepare(self, cases: Sequence[Measurement]) -> None:
        """Fail before anything runs where these cannot.

        Raises:
            Missing: the devices or the compiler are not here.
        """
        ...

    def run(self, cases: Sequence[Measurement], budget_s: float = math.inf) -> Iterator[Event]:
        """A `Final` of every case, in their order; one that is refused or failed already as it is. Sampling ends after
        `budget_s`. An interrupt goes on after all that is known was yielded."""
        ...


def finals(events: Iterable[Event]) -> list[Measurement]:
    """The measurements that are done."""
    return [event.measurement for event in events if isinstance(event, Final)]
