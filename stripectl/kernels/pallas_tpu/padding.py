"""Rows of a shard's pieces, padded with zeros to the tile, and cut off again from the results."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from stripectl.core.kernel import FusedHop
from stripectl.core.layout import Bands, MaskBlock, Tile

ROWS = 2  # the axis of rows in (B, N, T, H) and (B, N, T)


class Padding(NamedTuple):
    """`pieces` of `rows` rows, each padded to `padded` rows, and all of them to `end` rows."""

    pieces: int
    rows: int
    padded: int
    end: int

    def pad(self, x: Array) -> Array:
        """(B, N, T, ...) with padded rows."""
        if self.end == self.pieces * self.rows:
            return x
        behind = [(0, 0)] * (x.ndim - ROWS - 1)
        if self.padded > self.rows:
            each = x.reshape(*x.shape[:ROWS], self.pieces, self.rows, *x.shape[ROWS + 1 :])
            each = jnp.pad(each, [(0, 0)] * (ROWS + 1) + [(0, self.padded - self.rows), *behind])
            x = each.reshape(*x.shape[:ROWS], self.pieces * self.padded, *x.shape[ROWS + 1 :])
        return jnp.pad(x, [(0, 0)] * ROWS + [(0, self.end - x.shape[ROWS]), *behind])

    def unfolded(self, found: Iterable, likes: Sequence) -> tuple:
        """Padded arrays, which may have other dimensions in front of their rows, in the shapes of `likes`."""
        shapes = [(*like.shape[:ROWS], self.end, *like.shape[ROWS + 1 :]) for like in likes]
        return tuple(self.cut(x.reshape(shape)) for x, shape in zip(found, shapes, strict=True))

    def cut(self, x: Array) -> Array:
        """The inverse of `pad`."""
        if self.end == self.pieces * self.rows:
            return x
        each = x[:, :, : self.pieces * self.padded]
        each = each.reshape(*x.shape[:ROWS], self.pieces, self.padded, *x.shape[ROWS + 1 :])[:, :, :, : self.rows]
        return each.reshape(*x.shape[:ROWS], self.pieces * self.rows, *x.shape[ROWS + 1 :])


def padding_of(
    bands: Bands, stripes: MaskBlock, tile: Tile, hop: FusedHop | None
) -> tuple[Padding, Padding, FusedHop | None]:
    """(padding of the queries, of the keys, the hop) of a pair of shards whose queries are computed in stripes."""
    (rows, cols), (count, together, _) = (bands[0].rows, bands[0].cols), stripes.low.shape
    padded_rows, padded_cols = (-(-size // side) * side for size, side in zip((rows, cols), tile.sides, strict=True))
    down, across = (len({(b.row, b.col)[axis] for b in bands}) for axis in (0, 1))
    queries = Padding(down, rows, padded_rows, count * together * stripes.rows)
    keys = Padding(across, cols, padded_cols, across * padded_cols)
    return queries, keys, hop and hop._replace(padded=queries.end != down * rows)
