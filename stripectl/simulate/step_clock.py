"""The clock of a training step on one device: its matrices follow one another, and its collectives occupy the links of
their axes.

Outside attention all devices do the same. A program that runs many times, like a layer or a chunk of rows, is simulated
once: its transfers end before it runs again, as in a loop of XLA. Times are numbers, or vectors of plans whose
attention has different tiles.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from stripectl.core.plan import Plan
from stripectl.costs.cost_model import CostModel
from stripectl.costs.matrices import MatrixProduct, MatrixRate
from stripectl.simulate.part_ledger import PartLedger
from stripectl.simulate.transfers import StepTransfer, seconds_sent

Seconds = float | np.ndarray  # of one plan, or by plan
TO_HOST, FROM_HOST = "to the host", "from the host"  # the directions of the link to the host's memory


class AttentionTime(NamedTuple):
    """A pass of a layer's attention: its seconds, the part of them in which it waits for transfers, the seconds of
    transfers that it hides, and the bytes that a device sends, by (axis, opcode)."""

    seconds: Seconds
    exposed_s: Seconds = 0.0
    hidden_s: Seconds = 0.0
    along: Mapping[tuple[str, str], float] = {}


class StepClock:
    """The time of a device, and its work in all runs of repeated programs: seconds and products of matrices by part of
    the step, transfers outside attention, and the seconds of transfers that are exposed and hidden.

    `rate` is of matrices, which take no time without it; they run `speed` times as fast. With `hides_parameters`
    matrices run while parameters and their gradients are transferred. Copies over the link to the host's memory take no
    time without its rate."""

    def __init__(
        self,
        plan: Plan,
        machine: CostModel,
        rate: MatrixRate | None,
        speed: float,
        hides_parameters: bool,
        host_bytes_per_s: float | None,
    ) -> None:
        self.plan, self.machine, self.rate, self.speed = plan, machine, rate, speed
        self.host_bytes_per_s = host_bytes_per_s
        self.host_bytes = 0.0  # that wait in the host's memory
        self.ledger = PartLedger()
        self.hides_parameters = hides_parameters
        self.now: Seconds = 0.0
        self.begun: Seconds = 0.0  # when the program that is repeated begins
        self.times = 1.0  # that the present program runs
        self.section = ""
        self.parts = defaultdict[str, Seconds](float)
        self.products = defaultdict[str, list[MatrixProduct]](list)
        self.sent = list[StepTransfer]()
        self.exposed_s: Seconds = 0.0
        self.hidden_s: Seconds = 0.0
        self._free = defaultdict[str, Seconds](float)  # when the links of an axis are free
        self._copied = defaultdict[str, Seconds](float)  # when the directions of the host's link are free
        self._issued = set[tuple[str, tuple[str, ...]]]()  # collectives of parameters of the present program
        self._seconds = functools.cache(lambda transfer: seconds_sent(transfer, plan, machine))

    @contextmanager
    def repeated(self, times: float) -> Iterator[None]:
        """A program that runs `times` in sequence."""
        self.finish_transfers()
        before = self.begun, self.times, self._issued
        self.begun, self.times, self._issued = self.now, self.times * times, set()
        yield
        self.finish_transfers()
        self.now = self.begun + times * (self.now - self.begun)
        self.begun, self.times, self._issued = before

    def finish_transfers(self) -> None:
        """Wait for all transfers."""
        self.wait(last(self._free.values()))

    def wait(self, until: Seconds) -> None:
        """Wait for a transfer."""
        waits_s = np.maximum(0.0, until - self.now)
        self.now = self.now + waits_s
        self.exposed_s += self.times * waits_s
        self.hidden_s -= self.times * waits_s

    def compute(self, seconds: Seconds) -> None:
        self.now = self.now + seconds
        self.parts[self.section] += self.times * seconds

    def multiply(self, rows: float, inner: float, cols: float) -> None:
        """A product of matrices."""
        product = MatrixProduct(rows, inner, cols)
        self.compute(self.rate.seconds(product) / self.speed if self.rate else 0.0)
        self.products[self.section].append(product._replace(times=self.times))

    def attend(self, time: AttentionTime) -> None:
        """A pass of attention. The links of its axes are busy with its bytes."""
        begin = self.now
        self.compute(time.seconds - time.exposed_s)
        self.now = self.now + time.exposed_s
        self.exposed_s += self.times * time.exposed_s
        self.hidden_s += self.times * time.hidden_s
        for (axis, opcode), nbytes in time.along.items():
            busy_s = nbytes / self.machine.received_bytes_per_s(opcode, {axis: self.plan.size(axis)})
            self._free[axis] = np.minimum(self.now, np.maximum(begin, self._free[axis]) + busy_s)

    def send(self, opcode: str, axes: tuple[str, ...], nbytes: float, links: float = 1.0) -> None:
        """A collective that the device waits for."""
        self.wait(self._sent(StepTransfer(opcode, axes, nbytes, self.times, links), self.now))

    def send_parameters(self, opcode: str, axes: tuple[str, ...], nbytes: float) -> Seconds:
        """A collective of parameters or of their gradients; return when it ends. Parameters are known before the
        program begins. Compilers for TPUs issue a program's transfers between slices together, so the network's latency
        passes once (benchmarks/slices.json)."""
        follows = self.machine.torus and (opcode, axes) in self._issued
        self._issued.add((opcode, axes))
        gathers, gradients = opcode == "all-gather", opcode == "reduce-scatter"
        end = self._sent(
            StepTransfer(opcode, axes, nbytes, self.times, gradients=gradients, follows=follows),
            self.begun if gathers and self.hides_parameters else self.now,
        )
        if not self.hides_parameters:
            self.wait(end)
        return end

    def copy(self, direction: str, nbytes: float) -> Seconds:
        """A copy over the link to the host's memory, which begins now if the link is free; return when it ends."""
        seconds = nbytes / self.host_bytes_per_s if self.host_bytes_per_s else 0.0
        self.hidden_s += self.times * seconds
        self._copied[direction] = np.maximum(self.now, self._copied[direction]) + seconds
        return self._copied[direction]

    def finish_copies(self) -> None:
        """Wait for all copies to and from the host's memory, which run on while a program repeats."""
        self.wait(last(self._copied.values()))

    def _sent(self, transfer: StepTransfer, ready: Seconds) -> Seconds:
        """When a transfer ends that can begin when it is `ready` and its links are free."""
        self.sent.append(transfer)
        seconds = self._seconds(transfer._replace(times=1))
        self.hidden_s += self.times * seconds
        end = last([ready, *(self._free[axis] for axis in transfer.axes)]) + seconds
        self._free |= dict.fromkeys(transfer.axes, end)
        return end

    @property
    def flops(self) -> dict[str, float]:
        """FLOPs of each part's products."""
        return {name: math.fsum(each.flops for each in products) for name, products in self.products.items()}


def last(times: Iterable[Seconds]) -> Seconds:
    """The last of some times."""
    return functools.reduce(np.maximum, times, 0.0)
