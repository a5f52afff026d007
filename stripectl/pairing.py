"""Which scores of a shard of queries and a shard of keys are live: the layout of both, the mask, and documents.

Queries are the last of the keys' positions: all of them in training, the new ones behind a cached prefix in inference.
There the layout deals them to shards as it does keys, or where they are too few, requests are dealt.
A *document* is a stretch of positions whose queries see its own keys alone. Its first and last position follow from a
query's, so every device knows them from the starts of all documents, and nothing about them travels with K/V.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stripectl.layout import UNBOUNDED, Index, Layout, Rectangle, Window, count_pairs, layouts
from stripectl.plan import BATCH_AXES, HEAD_AXES, MEETING_AXES, SEQUENCE_AXES, Plan
from stripectl.scheme import schemes
from stripectl.workload import Workload

WHOLE = (0, 1)
Documents = Callable[[Index], tuple[Index, Index]]  # positions -> first position of their documents, and past the last


@dataclass(frozen=True)
class Pairing:
    """`shards` of `rows` keys each; queries are the last positions, dealt by the layout too, `query_rows` a shard, or
    not dealt: then every shard has so many, in one piece."""

    layout: Layout
    window: Window
    shards: int
    rows: int
    query_rows: int
    dealt: bool = True

    @classmethod
    def square(cls, layout: Layout, window: Window, shards: int, rows: int) -> "Pairing":
        """As many queries as keys."""
        return cls(layout, window, shards, rows, rows)

    @classmethod
    def of(cls, workload: Workload, plan: Plan) -> "Pairing":
        """Of a plan's attention."""
        dealt, rows = dealing(workload, plan) == "rows", workload.seq_len // plan.shards
        queries = workload.queries // plan.shards if dealt else workload.queries
        return cls(layouts[plan.layout], workload.window, plan.shards, rows, queries, dealt)

    @property
    def query_piece(self) -> int:
        """Rows of a piece of queries."""
        return self.query_rows // self.layout.pieces if self.dealt else self.query_rows

    @property
    def key_piece(self) -> int:
        return self.rows // self.layout.pieces

    def orders(self) -> tuple[np.ndarray, np.ndarray]:
        """int64: (queries, keys) as they are stored = natural[order]."""
        keys = self.layout.permutation(self.shards, self.shards * self.rows)
        if not self.dealt:
            return np.arange(self.query_rows), keys
        return self.layout.permutation(self.shards, self.shards * self.query_rows), keys

    def bands(
        self, me: Index, src: Index, part: tuple[int, int] = WHOLE, documents: Documents | None = None
    ) -> list[Rectangle]:
        """The rectangles of queries of shard `me` against keys of shard `src`, or against the i-th of n equal parts of
        its rows, `part` = (i, n), which cuts no piece but evenly."""
        step, size = self.layout.step(self.shards), self.query_piece
        before = self.shards * self.rows - self.query_rows * (self.shards if self.dealt else 1)
        queries = self.layout.firsts(me, self.shards, self.query_rows) if self.dealt else (0,)
        keys, cols = self._keys(src, part)
        found = []
        for i, query in enumerate(queries):
            query = query + before
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


def dealing(workload: Workload, plan: Plan) -> str:
    """How queries lie on the shards: `rows` of them, `requests` of the batch where those are too few, or `whole`."""
    scheme, each = schemes[plan.scheme], plan.shards * layouts[plan.layout].pieces
    if scheme.queries == "whole":
        return "whole"
    return "requests" if workload.query_len is not None and workload.query_len % each else "rows"


def lie(plan: Plan, how: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The axes of the mesh that batch, heads and positions lie over, of keys and values (`keys`) and of queries and
    outputs, by how these are dealt."""
    if how == "keys":
        return BATCH_AXES, HEAD_AXES, SEQUENCE_AXES
    if how == "requests":
        return (*BATCH_AXES, *MEETING_AXES), HEAD_AXES, ()
    rows_over = schemes[plan.scheme].rows_over
    heads = tuple(axis for axis in HEAD_AXES if axis not in rows_over)
    return BATCH_AXES, heads, () if how == "whole" else (*SEQUENCE_AXES, *rows_over)


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
