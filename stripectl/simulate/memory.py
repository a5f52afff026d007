"""The memory of simulated arrays: a device holds the values of the scheme's own variables.

A scheme is a pure function, so no later operation reads an array without references. An `Allocation` is the memory of
an array: it counts from its creation until its last reference is gone, which CPython notices at once. Arrays that a
tape refers to are kept for the backward pass.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class Ledger:
    """Bytes in use on a device, and their maximum so far, by plan."""

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
        """Add bytes, of one plan or by plan, only during the operation that needs them."""
        self._beside = np.maximum(self._beside, self.in_use + nbytes)


class Allocation:
    """Memory of an array. The memory of a program's argument exists from the program's start to its end."""

    __slots__ = ("argument", "ledger", "nbytes")

    def __init__(self, ledger: Ledger, nbytes: int, argument: bool = False) -> None:
        self.ledger, self.nbytes, self.argument = ledger, nbytes, argument
        ledger.take(nbytes)

    def hand_over(self) -> int:
        """Return its bytes, which another allocation counts from now on."""
        nbytes, self.nbytes = self.nbytes, 0
        self.ledger.in_use -= nbytes
        return nbytes

    def __del__(self) -> None:
        self.ledger.in_use -= self.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class TimedArray:
    """A simulated array: its shape on one device, bytes per element, and when each device has it, (plans, devices). Its
    memory is None where another array counts it, or nothing does."""

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
        """The same array for a user that needs its name and shape but not its content."""
        return TimedArray(self.shape, self.itemsize, self.ready, None, self.name)

    def at(self, ready: np.ndarray) -> "TimedArray":
        """Another array in the same memory."""
        return TimedArray(self.shape, self.itemsize, ready, self.memory)

    def shaped(self, shape: tuple[int, ...], ready: np.ndarray) -> "TimedArray":
        """Another array in the same memory, of as many elements."""
        return TimedArray(shape, self.itemsize, ready, self.memory)

    def sized(self, dimension: int, size: int) -> "TimedArray":
        """The same array with another size in one dimension, without memory."""
        shape = (*self.shape[:dimension], size, *self.shape[dimension + 1 :])
        return TimedArray(shape, self.itemsize, self.ready)


def map_leaves(function: Callable[..., Any], *trees: Any) -> Any:
    """`function` over the leaves of equally nested tuples."""
    if isinstance(trees[0], TimedArray) or not isinstance(trees[0], tuple):
        return function(*trees)
    return tuple(map_leaves(function, *branches) for branches in zip(*trees, strict=True))


def latest(arrays: Sequence[TimedArray]) -> np.ndarray:
    """The time at which all of them are ready."""
    ready = arrays[0].ready
    for array in arrays[1:]:
        ready = np.maximum(ready, array.ready)
    return ready


def leaves(tree: Any) -> list[TimedArray]:
    """The arrays in nested tuples, in order."""
    return [tree] if isinstance(tree, TimedArray) else [leaf for branch in tree for leaf in leaves(branch)]


def bytes_held(arrays: Sequence[TimedArray]) -> int:
    """The bytes of arrays that have memory, of which several may share one allocation."""
    return sum({array.memory: array.nbytes for array in arrays if array.memory}.values())
