"""How much communication hides behind compute, from intervals of one device: one definition for clocks and profiles.

With C the union of its compute intervals and M the union of its communication windows: hidden = |C and M|,
exposed = |M minus C|, overlap = hidden / |M|.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Overlap(NamedTuple):
    """Seconds of communication beside compute, and beside none."""

    hidden_s: float
    exposed_s: float

    @property
    def ratio(self) -> float | None:
        """The share that is hidden; None where there is no communication."""
        total = self.hidden_s + self.exposed_s
        return self.hidden_s / total if total > 0 else None


def union_s(intervals: Sequence[Sequence[float]]) -> float:
    """The length of the union of intervals [start, end)."""
    if not len(intervals):
        return 0.0
    starts, ends = np.asarray(sorted(map(tuple, intervals))).T
    before = np.maximum.accumulate(np.concatenate([[-np.inf], ends[:-1]]))
    return float(np.maximum(0.0, ends - np.maximum(starts, before)).sum())


def overlap(compute: Sequence[Sequence[float]], windows: Sequence[Sequence[float]]) -> Overlap:
    """Of one device's intervals, each (start, end)."""
    alone, busy = union_s(windows), union_s(compute)
    exposed = max(0.0, union_s([*compute, *windows]) - busy)
    return Overlap(max(0.0, alone - exposed), min(alone, exposed))
