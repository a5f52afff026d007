"""Costs of a tile or head size without a table entry: the costs of the nearest entry, scaled by a polynomial in the
sides of the tile that is fitted to all entries, and by the matrix units that a head fills."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from stripectl.core.layout import Tile
from stripectl.results.tile_cost import SECONDS, TileCost

MATRIX_UNIT = 128  # rows of a matrix unit up to v5; heads are padded to a multiple
# The share of a tile's matmuls that involve the heads of keys; the others involve the heads of values. Forward: S = QK,
# then PV; backward: S, dQ and dK, then dV and dP.
KEY_GROWTH = {"forward": 1 / 2, "backward": 3 / 5}
LINES = {"row_s": 0, "column_s": 1}  # the side of a tile on which its cost depends alone


def mean_of_heads(own: TileCost, other: TileCost, passes: str) -> TileCost:
    """The cost where value heads and key heads have different sizes: each matmul has its own size."""
    share = KEY_GROWTH[passes]
    return replace(own.combined(other, lambda mine, theirs: mine * share + theirs * (1 - share)), call_s=own.call_s)


def padded(head_dim: int, unit: int = MATRIX_UNIT) -> int:
    return -(-head_dim // unit) * unit


def nearest_head(head_dim: int, known: Iterable[int]) -> int:
    """The smallest known head that is at least as large, or else the largest known."""
    larger = [each for each in known if each >= head_dim]
    return min(larger) if larger else max(known)


def interpolated_cost(known: Mapping[Tile, TileCost], nearest: Tile, tile: Tile) -> TileCost:
    """The cost of a tile without an entry: each part follows its trend along the sides of the known tiles."""

    def along(name: str) -> float:
        costs = tuple((each, getattr(cost, name)) for each, cost in known.items())
        model = polynomial(costs, LINES.get(name))
        here, there = getattr(known[nearest], name), model(nearest)
        return here * model(tile) / there if there else here

    return replace(known[nearest], **{name: along(name) for name in SECONDS})


@lru_cache(2**8)  # a search asks for many tiles of few tables
def polynomial(costs: tuple[tuple[Tile, float], ...], side: int | None) -> Callable[[Tile], float]:
    """tile -> cost: of a tile a + b q + c k + d q k, of a row a + b q, of a column a + b k, with no negative term
    (least squares of relative errors)."""
    from scipy.optimize import nnls

    def terms(tile: Tile) -> list[float]:
        q, kv = tile.sides
        return [1.0, float(q), float(kv), float(q) * kv] if side is None else [1.0, float(tile.sides[side])]

    above = {tile: cost for tile, cost in costs if cost > 0}
    if not above:
        return lambda tile: 0.0
    weights = 1 / np.array(list(above.values()))
    found, _ = nnls(np.array([terms(tile) for tile in above]) * weights[:, None], np.ones(len(above)))
    return lambda tile: float(np.dot(found, terms(tile)))
