"""Costs of tokamax's splash on TPU7x, backward, fitted to its published times; each length is predicted from the
others.

Each pair of a query and a key in a computed tile takes a time that depends on the head size. Each row of a query head
takes the time of the work before and after the kernel: rowsum(dout * out), the log-sum-exp repeated over sublanes, the
sum of partial dQ. seconds = row x query heads x rows + pair[head sizes] x pairs. Constants are fitted by least squares
of relative errors (`scipy.optimize.nnls`), without the rows of the length that is predicted. This form was chosen among
ten by these errors, so they are somewhat smaller than errors on new rows.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from stripectl.analysis.accuracy.attention import (
    AttentionAccuracy,
    Prediction,
    PublishedTime,
    attention_error,
    attention_rows,
)

HARDWARE, KERNEL, PASS = "tpu7x", "tokamax splash", "backward"


class KernelFit(NamedTuple):
    """The constants, fitted to all rows, in seconds; and the errors of rows that were held out of their fit."""

    constants: dict[str, float]
    left_out: AttentionAccuracy


def kernel_rows() -> list[PublishedTime]:
    return [r for r in attention_rows() if (r.hardware, r.measured, r.passes) == (HARDWARE, KERNEL, PASS)]


def pairs_in_tiles(row: PublishedTime) -> float:
    """Pairs of a query and a key in the tiles of a causal mask that hold a live pair, over all query heads."""
    assert row.tile and row.q_len == row.kv_len
    down, across = row.tile.sides
    computed = sum(-(-(top + down) // across) for top in range(0, row.q_len, down))
    return float(row.batch * row.heads * computed * down * across)


def head_sizes(row: PublishedTime) -> str:
    return f"{row.head_dim}/{row.v_dim}"


def design(own: list[PublishedTime], heads: list[str]) -> np.ndarray:
    """float64[rows, constants]: the factor of each constant in each row."""
    rows = [row.batch * row.heads * row.q_len for row in own]
    area = [[pairs_in_tiles(row) * (head_sizes(row) == each) for each in heads] for row in own]
    return np.column_stack([rows, area]).astype(float)


def fit_constants(own: list[PublishedTime], heads: list[str]) -> np.ndarray:
    seconds = np.array([row.seconds for row in own])
    scaled = design(own, heads) / seconds[:, None]
    norm = np.linalg.norm(scaled, axis=0)
    return nnls(scaled / norm, np.ones(len(own)))[0] / norm


@cache
def fit_measured_kernel() -> KernelFit:
    every = kernel_rows()
    heads, found = sorted({head_sizes(row) for row in every}), list[Prediction]()
    for length in sorted({row.q_len for row in every}):
        known, asked = ([r for r in every if (r.q_len == length) == own] for own in (False, True))
        predicted = design(asked, heads) @ fit_constants(known, heads)
        found += [Prediction(row, float(each)) for row, each in zip(asked, predicted, strict=True)]
    names = ["row", *(f"pair {each}" for each in heads)]
    return KernelFit(dict(zip(names, fit_constants(every, heads).tolist(), strict=True)), attention_error(found))
