"""How a plan distributes the queries, keys and documents of a workload over its shards.

Queries are the last of the keys' positions: all of them in training, the new positions after a cached prefix in
inference. There the layout shards queries as it shards keys, or, where they are too few, requests are sharded. A
*document* is a range of positions whose queries see only its own keys. A query's position gives its document's first
and last position, so every device knows them from the starts of all documents, and K/V carry nothing about them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from stripectl.core.kernel import Kernel
from stripectl.core.layout import (
    UNBOUNDED,
    WHOLE,
    Documents,
    Halo,
    Index,
    Layout,
    MaskBlock,
    Part,
    Window,
    layouts,
)
from stripectl.core.mask_tiles import count_pairs
from stripectl.core.mesh import BATCH_AXES, HEAD_AXES, RING_AXES, SEQUENCE_AXES
from stripectl.core.plan import Plan
from stripectl.core.scheme import schemes
from stripectl.core.workload import Workload


@dataclass(frozen=True)
class SequenceSharding:
    """`shards` of `rows` keys each. Queries are the last positions. They are sharded by the layout too, `query_rows`
    per shard; otherwise every shard has all of them, in one piece."""

    layout: Layout
    window: Window
    shards: int
    rows: int
    query_rows: int
    shards_queries: bool = True

    @classmethod
    def square(cls, layout: Layout, window: Window, shards: int, rows: int) -> "SequenceSharding":
        """The sharding of as many queries as keys."""
        return cls(layout, window, shards, rows, rows)

    @property
    def runs(self) -> int:
        """The number of runs of adjacent positions of a shard."""
        return self.layout.pieces if self.shards > 1 else 1

    @property
    def query_piece(self) -> int:
        """The number of rows in a piece of queries."""
        return self.query_rows // self.layout.pieces if self.shards_queries else self.query_rows

    @property
    def key_piece(self) -> int:
        return self.rows // self.layout.pieces

    @property
    def one_rectangle(self) -> bool:
        """Whether one rectangle holds all scores: with a causal mask on its diagonal, or without a mask."""
        if self.shards > 1 or self.layout.pieces > 1 or self.window.left is not None:
            return False
        (band,) = self.bands(0, 0)
        return band.high == 0 or band.high >= band.cols - 1

    def orders(self) -> tuple[np.ndarray, np.ndarray]:
        """int64 (queries, keys), such that stored = natural[order]."""
        keys = self.layout.permutation(self.shards, self.shards * self.rows)
        if not self.shards_queries:
            return np.arange(self.query_rows), keys
        return self.layout.permutation(self.shards, self.shards * self.query_rows), keys

    def bands(
        self,
        me: Index,
        src: Index,
        part: Part = WHOLE,
        documents: Documents | None = None,
        rows: Callable[[int], np.ndarray] = np.arange,
    ) -> list[MaskBlock]:
        """The rectangles of queries of shard `me` against keys of shard `src`, or against part i of n equal parts of
        its rows, `part` = (i, n), which must divide every piece evenly; or against a halo of its own queries. With
        documents they hold the limits of the given `rows` of a piece, by default all."""
        if isinstance(part, Halo):
            return self.halo_bands(me, part, documents, rows)
        step, size = self.layout.step(self.shards), self.query_piece
        keys, cols = self.key_firsts(src, part)
        aligned, found = alignment(self, part[1]), list[MaskBlock]()
        for i, query in enumerate(self.query_firsts(me)):
            for j, key in enumerate(keys):
                low = -UNBOUNDED if self.window.left is None else -((key - query + self.window.left) // step)
                high = UNBOUNDED if self.window.right is None else (query - key + self.window.right) // step
                limits = None
                if documents is not None:
                    edges = documents(with_rows(query) + step * rows(size))
                    limits = tuple(-((with_rows(key) - edge) // step) for edge in edges)
                found.append(MaskBlock(i * size, j * cols, size, cols, low, high, limits, aligned))
        return found

    def halo_bands(
        self, me: Index, halo: Halo, documents: Documents | None, rows: Callable[[int], np.ndarray]
    ) -> list[MaskBlock]:
        """The rectangles of the runs of queries of shard `me` against the halos of its runs, which are stored in the
        same order. Only the rectangle of a run and its own halo is live; none before the first position, and none
        where the halo is a run of this shard, which is a part of the shard's own keys."""
        run, places, found = self.key_piece, self.layout.run_places(me, self.shards), list[MaskBlock]()
        before = (halo.distance - 1) * run + halo.rows  # positions from a run's first key to its first query
        for i, query in enumerate(self.query_firsts(me)):
            limits = None
            if documents is not None:
                limits = tuple(edge - with_rows(query - before) for edge in documents(with_rows(query) + rows(run)))
            live = places[i] >= halo.distance
            for place in places:
                live = live & (place != places[i] - halo.distance)
            for j in range(len(places)):
                high = (live * 2 - 1) * UNBOUNDED if i == j else -UNBOUNDED
                low = before - (self.window.left or 0)
                found.append(MaskBlock(i * run, j * halo.rows, run, halo.rows, low, high, limits))
        return found

    def halos(self) -> list[Halo]:
        """The halos that the window reaches, the nearest first; none on one shard."""
        run, left = self.key_piece, self.window.left or 0
        count = -(-left // run) if self.shards > 1 else 0
        return [Halo(n, min(run, left - (n - 1) * run)) for n in range(1, count + 1)]

    def adjacent_runs(self, by: int) -> list[list[tuple[int, int] | None]]:
        """`Layout.adjacent_runs` of each run of a shard."""
        return [self.layout.adjacent_runs(run, self.shards, by) for run in range(self.layout.pieces)]

    def query_firsts(self, me: Index) -> list[Index]:
        """The first position of each piece of the queries."""
        before = self.shards * self.rows - self.query_rows * (self.shards if self.shards_queries else 1)
        firsts = self.layout.firsts(me, self.shards, self.query_rows) if self.shards_queries else (0,)
        return [first + before for first in firsts]

    def key_firsts(self, src: Index, part: tuple[int, int]) -> tuple[list[Index], int]:
        """(the first position of each piece, or part of a piece, of the keys; the number of its keys)."""
        (index, parts), pieces = part, self.layout.pieces
        firsts, size = self.layout.firsts(src, self.shards, self.rows), self.rows // pieces
        if parts <= pieces:
            return list(firsts[index * pieces // parts : (index + 1) * pieces // parts]), size
        each = parts // pieces
        cols = size // each
        return [firsts[index // each] + self.layout.step(self.shards) * (index % each) * cols], cols

    def rounds(self, by: int = 1) -> int:
        """The number of rounds of a ring up to the last with a live score on any device, where keys travel `by` = 1
        place forward or -1 backward per round."""
        me = np.arange(self.shards)
        last_first = reversed(range(self.shards))
        live = (hop for hop in last_first if np.any(count_pairs(self.bands(me, (me - by * hop) % self.shards))))
        return next(live, 0) + 1


@cache
def alignment(sharding: SequenceSharding, parts: int) -> int:
    """`MaskBlock.aligned` of a causal mask's rectangles, for a shard's keys in equal parts; 1 for other masks."""
    if (sharding.window.left, sharding.window.right) != (None, 0):
        return 1
    step, every = sharding.layout.step(sharding.shards), np.arange(sharding.shards)
    keys, cols = zip(*(sharding.key_firsts(every, (part, parts)) for part in range(parts)), strict=True)
    side = math.gcd(sharding.query_piece, cols[0])
    key_firsts = np.unique(np.concatenate([np.ravel(first) for part in keys for first in part]) % (side * step))
    query_firsts = np.unique(
        np.concatenate([np.ravel(first) for first in sharding.query_firsts(every)]) % (side * step)
    )
    high = ((query - key_firsts) // step % side for query in query_firsts)
    return side if all(np.all((each == 0) | (each == side - 1)) for each in high) else 1


def with_rows(first: Index) -> Index:
    """First positions, of one shard or of many, with an added dimension for rows."""
    return first[..., None] if np.ndim(first) else first


def sequence_sharding(workload: Workload, plan: Plan) -> SequenceSharding:
    """The sharding of a plan's attention."""
    dealt, rows = query_sharding(workload, plan) == "rows", workload.seq_len // plan.shards
    queries = workload.queries // plan.shards if dealt else workload.queries
    return SequenceSharding(layouts[plan.layout], workload.window, plan.shards, rows, queries, dealt)


def calls_once(kernel: Kernel, sharding: SequenceSharding) -> bool:
    """Whether one call of the kernel can hold all scores and return the result as its library does."""
    return kernel.returns_result and sharding.one_rectangle


def query_sharding(workload: Workload, plan: Plan) -> str:
    """How queries are distributed: by `rows`, by `requests` of the batch where rows are too few, or `whole`."""
    scheme, each = schemes[plan.scheme], plan.shards * layouts[plan.layout].pieces
    if scheme.query_sharding == "whole":
        return "whole"
    return "requests" if workload.query_len is not None and workload.query_len % each else "rows"


def min_heads(workload: Workload, plan: Plan) -> dict[str, int | None]:
    """The smallest number of heads that the plan needs, in the groups of the workload: a key head per device, or as
    many as the plan repeats."""
    keys = workload.key_heads or workload.kv_heads
    local, ulysses = keys // plan.product(HEAD_AXES), plan.size("ulysses")
    fewest = plan.product(HEAD_AXES) * (local if local % ulysses else ulysses)
    heads = fewest * (workload.heads // keys)
    if workload.key_heads:
        return {"heads": heads, "kv_heads": heads, "key_heads": fewest}
    return {"heads": heads, "kv_heads": fewest}


def axes_of(plan: Plan, how: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The mesh axes that shard batch, heads and positions, of keys and values (`keys`) and of queries and outputs,
    where `how` is a result of `query_sharding` or `keys`."""
    if how == "keys":
        return BATCH_AXES, HEAD_AXES, SEQUENCE_AXES
    if how == "requests":
        return (*BATCH_AXES, *RING_AXES), HEAD_AXES, ()
    rows_over = schemes[plan.scheme].row_axes
    heads = tuple(axis for axis in HEAD_AXES if axis not in rows_over)
    return BATCH_AXES, heads, () if how == "whole" else (*SEQUENCE_AXES, *rows_over)


def document_lookup(starts: np.ndarray, seq_len: int) -> Documents:
    """The lookup of documents in a sequence where documents begin at `starts`, ascending from 0."""
    edges = np.append(starts, seq_len)

    def find(positions: Index) -> tuple[Index, Index]:
        index = np.searchsorted(edges, np.asarray(positions), side="right")
        return edges[index - 1], edges[index]

    return find
