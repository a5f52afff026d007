"""The memory of arrays on clocks: a device holds what the scheme's own variables hold.

A scheme is a pure function, so an array that nothing refers to any more is one that no later operation reads. `Held` is
the memory of an array: it counts from when it is made until the last reference to it is gone. What a tape refers to is
kept for the backward pass.
"""

import itertools
import math
from dataclasses import dataclass, field, replace

import numpy as np


class Ledger:
    """Bytes that a device holds, and the most that it has held, by plan."""

    def __init__(self) -> None:
        self.held = self._most = 0
        self._beside: np.ndarray | int = 0

    @property
    def peak(self) -> np.ndarray:
        return np.atleast_1d(np.maximum(self._most, self._beside))

    def take(self, nbytes: int) -> None:
        self.held += nbytes
        self._most = max(self._most, self.held)

    def beside(self, nbytes: np.ndarray | int) -> None:
        """So much more, of one plan or by plan, for no longer than the operation that needs it."""
        self._beside = np.maximum(self._beside, self.held + nbytes)


class Held:
    """Memory of an array; that of an argument of the program is there from its start to its end."""

    __slots__ = ("argument", "ledger", "nbytes")

    def __init__(self, ledger: Ledger, nbytes: int, argument: bool = False) -> None:
        self.ledger, self.nbytes, self.argument = ledger, nbytes, argument
        ledger.take(nbytes)

    def given_up(self) -> int:
        """Its bytes, which are from now on counted elsewhere."""
        nbytes, self.nbytes = self.nbytes, 0
        self.ledger.held -= nbytes
        return nbytes

    def __del__(self) -> None:
        self.ledger.held -= self.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """An array on clocks: its shape on one device, bytes per element, and when each device has it, (plans, devices).
    Its memory is None where something else counts it, or nothing does."""

    shape: tuple[int, ...]
    itemsize: int
    ready: np.ndarray
    held: Held | None = None
    name: int = field(default_factory=itertools.count().__next__)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * self.itemsize

    @property
    def bare(self) -> "Timed":
        """The same array to those who need its name and shape but not what is in it."""
        return replace(self, held=None)

    def at(self, ready: np.ndarray) -> "Timed":
        """Another array in the same memory."""
        return Timed(self.shape, self.itemsize, ready, self.held)

    def shaped(self, shape: tuple[int, ...], ready: np.ndarray) -> "Timed":
        """Another array in the same memory, of as many elements."""
        return Timed(shape, self.itemsize, ready, self.held)

    def sized(self, dimension: int, size: int) -> "Timed":
        """As it is, but of another size in a dimension, without memory."""
        shape = (*self.shape[:dimension], size, *self.shape[dimension + 1 :])
        return Timed(shape, self.itemsize, self.ready)
