"""How much communication hides behind compute, from intervals of one device: one definition for simulator and profiles.

C is the union of its compute intervals and M the union of its communication windows: hidden = |C and M|,
exposed = |M minus C|, overlap = hidden / |M|. Intervals are (start, end); arrays of intervals have the shape (n, 2).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

NONE = np.empty((0, 2))


class Overlap(NamedTuple):
    """Seconds of communication that are hidden behind compute, and seconds that are exposed."""

    hidden_s: float
    exposed_s: float

    @property
    def ratio(self) -> float | None:
        """The hidden share; None where there is no communication."""
        total = self.hidden_s + self.exposed_s
        return self.hidden_s / total if total > 0 else None


def union(*parts: Any) -> np.ndarray:
    """The union of intervals, as ordered intervals that do not touch."""
    every = np.concatenate([np.asarray(part, float).reshape(-1, 2) for part in parts] or [NONE])
    every = every[every[:, 1] > every[:, 0]]
    if not len(every):
        return NONE
    starts, ends = every[np.argsort(every[:, 0], kind="stable")].T
    reached = np.maximum.accumulate(ends)
    first = np.concatenate([[True], starts[1:] > reached[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([starts[first], reached[last]], axis=1)


def length(intervals: np.ndarray) -> float:
    """The sum of the lengths of intervals that do not overlap."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def minus(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The part of `a` that is outside `b`; both as `union` makes them."""
    if not len(a) or not len(b):
        return a
    gaps = np.stack([np.concatenate([[-np.inf], b[:, 1]]), np.concatenate([b[:, 0], [np.inf]])], axis=1)
    return common(a, gaps)


def common(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The intersection; both as `union` makes them."""
    if not len(a) or not len(b):
        return NONE
    first = np.searchsorted(b[:, 1], a[:, 0], side="right")
    count = np.maximum(0, np.searchsorted(b[:, 0], a[:, 1], side="left") - first)
    of_a = np.repeat(np.arange(len(a)), count)
    before = np.concatenate([[0], np.cumsum(count)[:-1]])
    of_b = np.arange(int(count.sum())) + np.repeat(first - before, count)
    return np.stack([np.maximum(a[of_a, 0], b[of_b, 0]), np.minimum(a[of_a, 1], b[of_b, 1])], axis=1)


def union_s(intervals: Sequence[Sequence[float]]) -> float:
    """The length of the union of intervals."""
    return length(union(intervals))


def overlap(compute: Any, windows: Any) -> Overlap:
    """The overlap on one device, from its intervals, each (start, end)."""
    busy, moving = union(compute), union(windows)
    hidden = length(common(busy, moving))
    return Overlap(hidden, max(0.0, length(moving) - hidden))
