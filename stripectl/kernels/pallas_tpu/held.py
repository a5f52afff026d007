"""What a line of tiles adds to, in VMEM from its first tile to its last, and copied beside the tiles of other lines."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from stripectl.kernels.pallas_tpu.lines import Place


class Held(NamedTuple):
    """Arrays of a head that lines add to, each its own `size` rows along the axis of an array. They come to VMEM while
    the line before is computed, and go back while the next one is; each has two slots."""

    head: Any
    size: int
    place: Place
    axes: Sequence[int]
    sources: Sequence[Any]
    targets: Sequence[Any]
    slots: Sequence[Any]
    arrivals: Any
    departures: Any

    def copies(self, line, *, come: bool) -> list[Any]:
        slot, rows = line & 1, pl.ds((self.place.line + line) * self.size, self.size)
        arrays, semaphores = (self.sources, self.arrivals) if come else (self.targets, self.departures)
        found = []
        for array, held, axis in zip(arrays, self.slots, self.axes, strict=True):
            there = array.at[(self.head, *(slice(None),) * (axis - 1), rows)]
            ends = (there, held.at[slot]) if come else (held.at[slot], there)
            found.append(pltpu.make_async_copy(*ends, semaphores.at[slot]))
        return found

    def start(self, line, *, come: bool) -> None:
        for copy in self.copies(line, come=come):
            copy.start()

    def wait(self, line, *, come: bool) -> None:
        for copy in self.copies(line, come=come):
            copy.wait()

    def begin(self, line) -> None:
        pl.when(line == self.place.first)(partial(self.start, line, come=True))
        self.wait(line, come=True)
        pl.when(line > self.place.first)(partial(self.wait, line - 1, come=False))
        pl.when(line + 1 < self.place.last)(partial(self.start, line + 1, come=True))

    def end(self, line) -> None:
        self.start(line, come=False)
        pl.when(line + 1 == self.place.last)(partial(self.wait, line, come=False))
