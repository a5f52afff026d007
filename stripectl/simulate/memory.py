"""The memory of arrays on clocks: a device holds what the scheme's own variables hold.

A scheme is a pure function, so no later operation reads an array that nothing refers to. An `Allocation` is the memory
of an array: it counts from its creation until the last reference to it is gone, which CPython knows at once. What a
tape refers to is kept for the backward pass.
"""

import itertools
import math
from dataclasses import dataclass, field

import numpy as np


class Ledger:
    """Bytes that a device has in use, and the most that it had, by plan."""

    def __init__(self) -> None:
        self.in_use = self._most = 0
        self._beside: np.ndarray | int = 0

    @property
    def peak(self) -> np.ndarray:
        return np.atleast_1d(np.maximum(self._most, self._beside))

    def take(self, nbytes: int) -> None:
        self.in_use += nbytes
        self._most = max(self._most, self.in_use)

    def beside(self, nbytes: np.ndarray | int) -> None:
        """So much more, of one plan or by plan, for no longer than the operation that needs it."""
        self._beside = np.maximum(self._beside, self.in_use + nbytes)


class Allocation:
    """Memory of an array; that of an argument of the program is there from its start to its end."""

    __slots__ = ("argument", "ledger", "nbytes")

    def __init__(self, ledger: Ledger, nbytes: int, argument: bool = False) -> None:
        self.ledger, self.nbytes, self.argument = ledger, nbytes, argument
        ledger.take(nbytes)

    def hand_over(self) -> int:
        """Its bytes, which are from now on counted elsewhere."""
        nbytes, self.nbytes = self.nbytes, 0
        self.ledger.in_use -= nbytes
        return nbytes

    def __del__(self) -> None:
        self.ledger.in_use -= self.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class TimedArray:
    """An array on clocks: its shape on one device, bytes per element, and when each device has it, (plans, devices).
    Its memory is None where something else counts it, or nothing does."""

    shape: tuple[int, ...]
    itemsize: int
    ready: np.ndarray
    memory: Allocation | None = None
    name: int = field(default_factory=itertools.count().__next__)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * self.itemsize

    @property
    def bare(self) -> "TimedArray":
        """The same array to those who need its name and shape but not what is in it."""
        return TimedArray(self.shape, self.itemsize, self.ready, None, self.name)

    def at(self, ready: np.ndarray) -> "TimedArray":
        """Another array in the same memory."""
        return TimedArray(self.shape, self.itemsize, ready, self.memory)

    def shaped(self, shape: tuple[int, ...], ready: np.ndarray) -> "TimedArray":
        """Another array in the same memory, of as many elements."""
        return TimedArray(shape, self.itemsize, ready, self.memory)

    def sized(self, dimension: int, size: int) -> "TimedArray":
        """As it is, but of another size in a dimension, without memory."""
        shape = (*self.shape[:dimension], size, *self.shape[dimension + 1 :])
        return TimedArray(shape, self.itemsize, self.ready)
