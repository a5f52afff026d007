"""A ring's hop inside a kernel: while tiles are computed, remote DMA sends this device's rows to a separate buffer of
the next device. One core of a device starts the copies and waits for them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from stripectl.core.layout import Index

COLLECTIVE = 7  # an id that no other kernel uses; all hops share it, because all synchronise with the same neighbours


class RemoteHop(NamedTuple):
    """A kernel's part in a hop, if it has one: `rows` of each array (L, S, H), and how many copies have left and
    arrived."""

    axis: str
    size: int
    rows: tuple
    takes_part: Any
    sources: Sequence[Any]
    targets: Sequence[Any]
    gone: Any
    come: Any

    def device(self, by: int) -> dict[Any, Any]:
        return {self.axis: lax.rem(lax.axis_index(self.axis) + self.size + by, self.size)}

    def copies(self) -> list[Any]:
        onward = partial(pltpu.make_async_remote_copy, device_id=self.device(1))
        found = enumerate(zip(self.sources, self.targets, strict=True))
        return [onward(x.at[self.rows], y.at[self.rows], self.gone.at[i], self.come.at[i]) for i, (x, y) in found]

    def beside(self, lives: Index, compute: Callable) -> None:
        """Run compute() in every step of a grid (cores, heads, steps, group) while the copies are on their way, if
        there are tiles at all."""
        (core, h, step, g), (_, heads, steps, group) = map(pl.program_id, range(4)), map(pl.num_programs, range(4))
        done = (h * steps + step) * group + g
        own = self.takes_part & (core == 0)
        first, last = own & (done == 0), own & (done == heads * steps * group - 1)
        pl.when(first)(self.offer)
        pl.when(lives)(compute)
        pl.when(first)(self.send)
        pl.when(last)(self.end)

    def offer(self) -> None:
        """Signal the previous device that its data has a buffer here."""
        pl.semaphore_signal(pltpu.get_barrier_semaphore(), 1, device_id=self.device(-1))

    def send(self) -> None:
        """Send once the next device has a buffer; computing the first tile gave it time to signal."""
        pl.semaphore_wait(pltpu.get_barrier_semaphore(), 1)
        for copy in self.copies():
            copy.start()

    def end(self) -> None:
        for copy in self.copies():
            copy.wait()
