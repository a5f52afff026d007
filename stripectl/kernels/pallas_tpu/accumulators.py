"""Accumulators of a line of tiles: in VMEM from its first tile to its last, copied while other lines are computed."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from stripectl.core.layout import Index

Ref = Any  # an array in memory, or a block or accumulator in VMEM, as a kernel reads and writes it


class Accumulators(NamedTuple):
    """Arrays of a head that lines add to; each line has its own `size` rows along one axis of an array. These rows come
    to VMEM while the line before is computed, and return while the next line is computed; each array has two slots."""

    head: Any
    size: int
    lines: Any
    axes: Sequence[int]
    sources: Sequence[Any]
    targets: Sequence[Any]
    slots: Sequence[Any]
    arrivals: Any
    departures: Any

    def copies(self, number: Index, *, come: bool) -> list[Any]:
        slot, rows = number & 1, pl.ds(self.lines[number] * self.size, self.size)
        arrays, semaphores = (self.sources, self.arrivals) if come else (self.targets, self.departures)
        found = []
        for array, held, axis in zip(arrays, self.slots, self.axes, strict=True):
            there = array.at[(self.head, *(slice(None),) * (axis - 1), rows)]
            ends = (there, held.at[slot]) if come else (held.at[slot], there)
            found.append(pltpu.make_async_copy(*ends, semaphores.at[slot]))
        return found

    def start(self, number: Index, *, come: bool) -> None:
        for copy in self.copies(number, come=come):
            copy.start()

    def wait(self, number: Index, *, come: bool) -> None:
        for copy in self.copies(number, come=come):
            copy.wait()

    def another(self, number: Index) -> Index:
        """Whether another line follows this line."""
        return self.lines[number + 1] > self.lines[number]

    def begin(self, number: Index) -> None:
        pl.when(number == 0)(partial(self.start, number, come=True))
        self.wait(number, come=True)
        pl.when(number > 0)(partial(self.wait, number - 1, come=False))
        pl.when(self.another(number))(partial(self.start, number + 1, come=True))

    def end(self, number: Index) -> None:
        self.start(number, come=False)
        pl.when(~self.another(number))(partial(self.wait, number, come=False))
