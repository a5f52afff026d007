"""The error of a group of predictions, from the ratios of predictions to measurements."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class RatioError(NamedTuple):
    """How far predictions are from measurements: the geometric mean over rows, and the worst; predictions over
    measurements, below 1 where they are too fast: the geometric mean, and how far rows are usually from it (one
    standard deviation of logarithms)."""

    rows: int
    mean: float
    worst: float
    ratio: float
    spread: float
    worst_row: str


def ratio_error(ratios: Sequence[float], rows: Sequence[str]) -> RatioError:
    """The error of predictions with these ratios, whose rows have these names."""
    logs = np.log(np.array(ratios))
    apart = np.abs(logs)
    return RatioError(
        rows=len(logs),
        mean=math.expm1(apart.mean()),
        worst=math.expm1(apart.max()),
        ratio=math.exp(logs.mean()),
        spread=math.expm1(logs.std()),
        worst_row=rows[int(apart.argmax())],
    )
