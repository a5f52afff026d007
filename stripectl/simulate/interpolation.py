"""Costs of a tile or head size that no entry of a table is for: those of the nearest entry, scaled by a polynomial in
the sides of the tile that is fitted to all entries, and by the matrix units that a head fills."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from stripectl.core.layout import Tile
from stripectl.simulate.cost_entries import CostEntry
from stripectl.simulate.waves import Wave

MATRIX_UNIT = 128  # rows of a matrix unit up to v5; heads are padded to a multiple
# The share of a tile's matmuls that keys' heads take part in; values' heads take part in the others: of the forward
# pass S = QK, and PV; of the backward pass S, dQ and dK, and dV and dP.
KEY_GROWTH = {"forward": 1 / 2, "backward": 3 / 5}


def mean_of_heads(own: CostEntry | Wave, other: CostEntry | Wave, passes: str) -> CostEntry | Wave:
    """The entry where value heads have another size than key heads: of each matmul its own."""
    share, names = KEY_GROWTH[passes], own._fields if isinstance(own, CostEntry) else ("tile_s",)
    return own._replace(**{n: getattr(own, n) * share + getattr(other, n) * (1 - share) for n in names})


def padded(head_dim: int, unit: int = MATRIX_UNIT) -> int:
    return -(-head_dim // unit) * unit


def nearest_head(head_dim: int, known: Iterable[int]) -> int:
    """The smallest head that is no smaller, or else the largest."""
    larger = [each for each in known if each >= head_dim]
    return min(larger) if larger else max(known)


def interpolated_entry(known: Mapping[Tile, CostEntry], nearest: Tile, tile: Tile) -> CostEntry:
    """An entry for a tile that none is for: each of its costs as it goes along the sides of the tiles there are."""

    def along(name: str) -> float:
        costs = {each: getattr(entry, name) for each, entry in known.items()}
        here = costs[nearest]
        model = polynomial(costs, ("row", "column").index(name) if name in ("row", "column") else None)
        there = model(nearest)
        return here * model(tile) / there if there else here

    return known[nearest]._replace(**{name: along(name) for name in CostEntry._fields})


def polynomial(costs: Mapping[Tile, float], side: int | None) -> Callable[[Tile], float]:
    """tile -> cost: of a tile a + b q + c k + d q k, of a row a + b q, of a column a + b k, with no part below zero
    (least squares of relative errors)."""
    from scipy.optimize import nnls

    def terms(tile: Tile) -> list[float]:
        q, kv = tile
        return [1.0, float(q), float(kv), float(q) * kv] if side is None else [1.0, float(tile[side])]

    above = {tile: cost for tile, cost in costs.items() if cost > 0}
    if not above:
        return lambda tile: 0.0
    weights = 1 / np.array(list(above.values()))
    found, _ = nnls(np.array([terms(tile) for tile in above]) * weights[:, None], np.ones(len(above)))
    return lambda tile: float(np.dot(found, terms(tile)))
