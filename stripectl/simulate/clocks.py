"""The clocks of simulated devices, whose compute is in program order, and the tape of transposes that run on them."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from stripectl.costs.cost_model import CostModel
from stripectl.simulate.memory import Allocation, Ledger, TimedArray, latest


class Gradients:
    """The cotangent of each array, by the array's name."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._known: dict[int, tuple[np.ndarray, Allocation]] = {}

    def add(self, primal: TimedArray, ready: np.ndarray, memory: Allocation | None = None) -> None:
        """Add a contribution, in the given `memory`, or else in memory that the first contribution allocates."""
        before, own = self._known.get(primal.name, (ready, memory))
        self._known[primal.name] = np.maximum(before, ready), own or Allocation(self.ledger, primal.nbytes)

    def take(self, primal: TimedArray) -> TimedArray | None:
        known = self._known.pop(primal.name, None)
        return None if known is None else TimedArray(primal.shape, primal.itemsize, *known)


Tape = list[Callable[[Gradients], None]]


class DeviceClocks:
    """A clock and a memory per device, and a tape of their operations.

    Times are (plans, devices): the machine may hold tile costs of several plans, which differ only in their tiles.
    """

    def __init__(self, machine: CostModel, devices: int, arguments: bool = True) -> None:
        self.machine, self.arguments = machine, arguments
        self.ledger, self.recording = Ledger(), True
        self.now = np.zeros((machine.plans, devices))
        self.in_loop = False  # inside a loop
        self.touched: list[tuple[np.ndarray, np.ndarray]] = []  # when memory was read and written outside of tiles
        self.tape: Tape = []

    def argument(self, shape: tuple[int, ...], itemsize: int) -> TimedArray:
        """An array that exists from the start."""
        memory = Allocation(self.ledger, math.prod(shape) * itemsize, self.arguments)
        return TimedArray(shape, itemsize, np.zeros_like(self.now), memory)

    def allocate(self, shape: tuple[int, ...], itemsize: int, ready: np.ndarray) -> TimedArray:
        """A new array."""
        return TimedArray(shape, itemsize, ready, Allocation(self.ledger, math.prod(shape) * itemsize))

    def touch(self, nbytes: float | np.ndarray, *inputs: TimedArray) -> np.ndarray:
        """When `nbytes`, of all plans or by plan, have been read and written in memory, with no compute at the same
        time."""
        start = np.maximum(self.now, latest(inputs)) if inputs else self.now
        self.now = start + nbytes / self.machine.memory_bytes_per_s
        if np.any(nbytes) and math.isfinite(self.machine.memory_bytes_per_s):
            self.touched.append((start, self.now))
        return self.now

    def moved(
        self, shape: tuple[int, ...], itemsize: int, *inputs: TimedArray, times: float, in_place: bool = False
    ) -> TimedArray:
        """The result of an operation whose time, also in its transpose, is `times` reads or writes of the result; in
        its own memory, or `in_place` of the first input."""
        end = self.touch(times * math.prod(shape) * itemsize, *inputs)
        out = inputs[0].shaped(shape, end) if in_place else self.allocate(shape, itemsize, end)
        primals, nbytes = [leaf.bare for leaf in inputs], out.nbytes

        def transpose(given: TimedArray, gradients: Gradients) -> None:
            end = self.touch(times * nbytes, given)
            for primal in primals:
                gradients.add(primal, end)

        self.record(out, transpose)
        return out

    def free(self, shape: tuple[int, ...], itemsize: int, *inputs: TimedArray) -> TimedArray:
        """The result of an operation without cost: ready when all its inputs are."""
        out, primals = self.allocate(shape, itemsize, latest(inputs)), [leaf.bare for leaf in inputs]
        self.record(out, lambda given, gradients: [gradients.add(leaf, given.ready) for leaf in primals])
        return out

    def record(self, out: TimedArray, transpose: Callable[[TimedArray, Gradients], Any]) -> None:
        """Record the transpose of an operation, given the cotangent of its result."""

        result = out.bare

        def operation(gradients: Gradients) -> None:
            if given := gradients.take(result):
                transpose(given, gradients)

        if self.recording:
            self.tape.append(operation)

    def recorded(self) -> Tape:
        """Return the recorded tape and start a new one."""
        tape, self.tape = self.tape, []
        return tape

    def transpose(self, tape: Tape, gradients: Gradients) -> None:
        """Run the transposes on a tape, the last first; they are not recorded themselves."""
        for operation in reversed(tape):
            operation(gradients)
        self.tape = []
