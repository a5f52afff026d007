"""Fits a few values on a grid so that linear interpolation between them reproduces many measurements.

Coordinates and values are logarithms, so errors are relative, and a power law needs two nodes. The sum of absolute
errors is least (by least squares with new weights each time), so that an outlier counts no more than its distance and
repeated measurements of one point meet in their median.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression
from scipy.sparse import coo_array, csr_array, eye_array, kron, vstack
from scipy.sparse.linalg import spsolve

Floats = NDArray[np.float64]

REPEATS = 20
LEAST_ERROR = 0.005  # below it, errors count by their squares
SMOOTH = 3e-3  # of a measurement: how much a difference between neighbouring nodes counts


def hats(points: Sequence[ArrayLike], nodes: Sequence[ArrayLike]) -> csr_array:
    """The weights of all nodes at each point, points x nodes (the last coordinate fastest).

    Args:
        points: for each coordinate, its values at all points. Those beyond the nodes take the outermost node.
        nodes: for each coordinate, the ascending values of its nodes.
    """
    count = len(np.asarray(points[0]))
    rows, columns, weights = np.arange(count)[:, None], np.zeros((count, 1), int), np.ones((count, 1))
    for at, raw in zip(points, nodes, strict=True):
        along = np.asarray(raw, float)
        place = np.interp(np.asarray(at, float), along, np.arange(len(along)))
        below = np.minimum(place.astype(int), max(len(along) - 2, 0))
        part = place - below
        above = np.minimum(below + 1, len(along) - 1)
        pairs, shares = np.stack([below, above], 1), np.stack([1 - part, part], 1)
        columns = (columns[:, :, None] * len(along) + pairs[:, None, :]).reshape(count, -1)
        weights = (weights[:, :, None] * shares[:, None, :]).reshape(count, -1)
    size = int(np.prod([len(np.asarray(each)) for each in nodes]))
    rows = np.broadcast_to(rows, columns.shape)
    return csr_array(coo_array((weights.ravel(), (rows.ravel(), columns.ravel())), shape=(count, size)))


def differences(nodes: Sequence[ArrayLike]) -> csr_array:
    """One row for each pair of neighbouring nodes: +1 and -1."""
    sizes, parts = [len(np.asarray(each)) for each in nodes], []
    for axis, size in enumerate(sizes):
        step = eye_array(size - 1, size, k=1) - eye_array(size - 1, size)
        before, after = int(np.prod(sizes[:axis])), int(np.prod(sizes[axis + 1 :]))
        parts.append(kron(kron(eye_array(before), step), eye_array(after)))
    return csr_array(vstack(parts))


def fit(points: Sequence[ArrayLike], values: ArrayLike, nodes: Sequence[ArrayLike]) -> Floats:
    """The values at all nodes, shaped like the grid, with the least sum of absolute errors at the points. A node
    without points near it continues those beside it."""
    basis, wanted, steps = hats(points, nodes), np.asarray(values, float), differences(nodes)
    weights, found = np.ones(len(wanted)), np.zeros(basis.shape[1])
    for _ in range(REPEATS):
        left = basis.T @ basis.multiply(weights[:, None]) + SMOOTH * (steps.T @ steps)
        found = np.asarray(spsolve(csr_array(left).tocsc(), basis.T @ (weights * wanted)))
        weights = LEAST_ERROR / np.maximum(np.abs(basis @ found - wanted), LEAST_ERROR)
    return found.reshape([len(np.asarray(each)) for each in nodes])


def interpolate(points: Sequence[ArrayLike], values: Floats, nodes: Sequence[ArrayLike]) -> Floats:
    """The values at the points."""
    return np.asarray(hats(points, nodes) @ values.ravel())


def fit_curve(at: ArrayLike, values: ArrayLike, worst: float, most: int) -> tuple[Floats, Floats]:
    """The nodes of one coordinate and their values, which never fall: as few of the measured places as bring
    interpolation within `worst` of the rising values nearest to the medians of all places, at most `most`."""
    at, values = np.asarray(at, float), np.asarray(values, float)
    places = np.unique(at)
    rising = isotonic_regression([np.median(values[at == place]) for place in places]).x
    chosen = [0, len(places) - 1]
    while True:
        chosen.sort()
        errors = np.abs(np.interp(places, places[chosen], rising[chosen]) - rising)
        if len(chosen) >= most or errors.max() <= worst:
            return places[chosen], rising[chosen]
        chosen.append(int(errors.argmax()))
