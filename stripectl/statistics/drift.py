"""Drift of samples over their order: its size by the slope of Theil (1950) and Sen (1968), its significance by the rank
correlation of Kendall (1938)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

MIN_SAMPLES = 8  # samples needed to find a drift
MAX_CHANCE = 0.01  # probability of the order by chance, up to which it is a drift


def drift(samples_s: Sequence[float]) -> float:
    """The change of samples from the first to the last, as a share of their median (Theil-Sen); 0 where their order may
    be chance (Kendall's tau)."""
    if len(samples_s) < MIN_SAMPLES:
        return 0.0
    from scipy import stats

    if not is_ordered(samples_s):
        return 0.0
    order = list(range(len(samples_s)))
    line: Any = stats.theilslopes(samples_s, order)
    change = float(line.slope) * order[-1]
    return change / (float(line.intercept) + change / 2)


def is_ordered(values: "Sequence[float] | np.ndarray") -> bool:
    """Whether chance is unlikely to have ordered the values so (Kendall's tau)."""
    from scipy import stats

    ordered: Any = stats.kendalltau(range(len(values)), values)
    return bool(ordered.pvalue <= MAX_CHANCE)
