"""Which scores of a shard of queries and a shard of keys are live: the layout of both, the mask, and documents.

Queries are the last of the keys' positions: all of them in training, the new ones behind a cached prefix in inference.
A *document* is a stretch of positions whose queries see its own keys alone. Its first and last position follow from a
query's, so every device knows them from the starts of all documents, and nothing about them travels with K/V.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stripectl.layout import UNBOUNDED, Index, Layout, Rectangle, Window, count_pairs, layouts
from stripectl.plan import Plan
from stripectl.workload import Workload

WHOLE = (0, 1)
Documents = Callable[[Index], tuple[Index, Index]]  # positions -> first position of their documents, and past the last


@dataclass(frozen=True)
class Pairing:
    """`shards` of keys of `rows` each, and `query_shards` of queries of `query_rows` each, whose first position is
    `first`; shards of queries are as many as of keys, or one."""

    layout: Layout
    window: Window
    shards: int
    rows: int
    query_shards: int
    query_rows: int
    first: int = 0

    @classmethod
    def square(cls, layout: Layout, window: Window, shards: int, rows: int) -> "Pairing":
        """As many queries as keys."""
        return cls(layout, window, shards, rows, shards, rows)

    @classmethod
    def of(cls, workload: Workload, plan: Plan) -> "Pairing":
        """Of a plan's attention."""
        return cls.square(layouts[plan.layout], workload.window, plan.shards, workload.seq_len // plan.shards)

    def bands(
        self, me: Index, src: Index, part: tuple[int, int] = WHOLE, documents: Documents | None = None
    ) -> list[Rectangle]:
        """The rectangles of queries of shard `me` against keys of shard `src`, or against the i-th of n equal parts of
        its rows, `part` = (i, n), which cuts no piece but evenly."""
        step, size = self.layout.step(self.shards), self.query_rows // self.layout.pieces
        queries = self.layout.firsts(me, self.query_shards, self.query_rows)
        keys, cols = self._keys(src, part)
        found = []
        for i, query in enumerate(queries):
            query = query + self.first
            for j, key in enumerate(keys):
                low = -UNBOUNDED if self.window.left is None else -((key - query + self.window.left) // step)
                high = UNBOUNDED if self.window.right is None else (query - key + self.window.right) // step
                limits = None
                if documents is not None:
                    edges = documents(deep(query) + step * np.arange(size))
                    limits = tuple(-((deep(key) - edge) // step) for edge in edges)
                found.append(Rectangle(i * size, j * cols, size, cols, low, high, limits))
        return found

    def _keys(self, src: Index, part: tuple[int, int]) -> tuple[list[Index], int]:
        """(the first position of each piece, or part of one, of the keys; how many keys it has)."""
        (index, parts), pieces = part, self.layout.pieces
        firsts, size = self.layout.firsts(src, self.shards, self.rows), self.rows // pieces
        if parts <= pieces:
            return list(firsts[index * pieces // parts : (index + 1) * pieces // parts]), size
        each = parts // pieces
        cols = size // each
        return [firsts[index // each] + self.layout.step(self.shards) * (index % each) * cols], cols

    def rounds(self, by: int = 1) -> int:
        """How many rounds of a ring hold a live score on any device, up to the last, where keys travel `by` = 1 place
        onward or -1 back each round."""
        me = np.arange(self.shards)
        live = [hop for hop in me if np.any(count_pairs(self.bands(me, (me - by * hop) % self.shards)))]
        return int(max(live, default=0)) + 1


def deep(first: Index) -> Index:
    """First positions, of one shard or of many, with a dimension for rows."""
    return first[..., None] if np.ndim(first) else first


def among(starts: np.ndarray, seq_len: int) -> Documents:
    """The documents of a sequence whose documents begin at `starts`, ascending from 0."""
    edges = np.append(starts, seq_len)

    def find(positions: Index) -> tuple[Index, Index]:
        index = np.searchsorted(edges, positions, side="right")
        return edges[index - 1], edges[index]

    return find
