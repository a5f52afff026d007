"""`comm` with lax: every collective of a scheme's program, for one device's part inside a shard_map."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from stripectl.core import scopes
from stripectl.core.comm import Index, Tree
from stripectl.core.plan import Plan

REDUCTIONS = {"sum": lax.psum, "max": lax.pmax}


@dataclass(frozen=True)
class JaxComm:
    """The collectives of a scheme over the axes of a mesh. Each call opens a scope, by which a profile recognises the
    transfers that belong together."""

    plan: Plan
    calls: Iterator[int] = field(default_factory=itertools.count)
    kept: list[Any] = field(default_factory=list)

    @property
    def parts(self) -> int:
        return self.plan.parts

    def size(self, axis: str) -> int:
        return self.plan.size(axis)

    def index(self, axis: str) -> Index:
        return lax.axis_index(axis) if self.size(axis) > 1 else 0

    def scope(self, name: str, what: str) -> AbstractContextManager:
        return jax.named_scope(scopes.transfer_scope(name, what, next(self.calls)))

    def shift(
        self, x: Tree, axis: str, what: str = "", by: int = 1, senders: Callable[[int], bool] | None = None
    ) -> Tree:
        size = self.size(axis)
        if by % size == 0:
            return x
        ring = [(i, (i + by) % size) for i in range(size) if senders is None or senders(i)]
        with self.scope(scopes.SHIFT, what):
            return jax.tree.map(lambda leaf: lax.ppermute(leaf, axis, ring), x)

    def all_gather(self, x: Tree, axis: str, what: str = "", join: int | None = None) -> Tree:
        if self.size(axis) == 1:
            return x if join is not None else jax.tree.map(lambda leaf: leaf[None], x)
        gather = partial(lax.all_gather, axis_name=axis, axis=join or 0, tiled=join is not None)
        with self.scope(scopes.ALL_GATHER, what):
            return jax.tree.map(gather, x)

    def all_to_all(self, x: Tree, axis: str, what: str = "", *, split: int, join: int) -> Tree:
        if self.size(axis) == 1:
            return x
        exchange = partial(lax.all_to_all, axis_name=axis, split_axis=split, concat_axis=join, tiled=True)
        with self.scope(scopes.ALL_TO_ALL, what):
            return jax.tree.map(exchange, x)

    def reduce_scatter(self, x: Tree, axis: str, what: str = "", split: int | None = None) -> Tree:
        if self.size(axis) == 1:
            return x if split is not None else jax.tree.map(lambda leaf: leaf[0], x)
        scatter = partial(lax.psum_scatter, axis_name=axis, scatter_dimension=split or 0, tiled=split is not None)
        with self.scope(scopes.REDUCE_SCATTER, what):
            return jax.tree.map(scatter, x)

    def reduce(self, x: Tree, axis: str, what: str = "", *, by: Literal["sum", "max"]) -> Tree:
        if self.size(axis) == 1:
            return x
        with self.scope(scopes.REDUCE, what):
            return jax.tree.map(lambda leaf: REDUCTIONS[by](leaf, axis), x)

    def select(self, stacked: Tree, index: Index) -> Tree:
        return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, index, keepdims=False), stacked)

    def replace(self, stacked: Tree, index: Index, block: Tree) -> Tree:
        def put(leaf: jax.Array, own: jax.Array) -> jax.Array:
            return lax.dynamic_update_index_in_dim(leaf, own.astype(leaf.dtype), index, 0)

        return jax.tree.map(put, stacked, block)

    def keep(self, x: Any) -> None:
        self.kept.append(x)

    def where(self, condition: Index, x: Tree, y: Tree) -> Tree:
        return jax.tree.map(lambda a, b: jnp.where(condition, a, b), x, y)

    def loop(self, first: int, last: int, body: Callable[[Index, Tree], Tree], state: Tree) -> Tree:
        if first >= last:
            return state
        if last - first == 1 and self.plan.shards == 1:
            return body(first, state)
        unroll = min(self.plan.unroll, last - first)

        def apart(i: Index, state: Tree) -> Tree:
            """A round that ends before the next begins, as in a rolled loop. Otherwise a TPU's compiler starts the hops
            of all rounds first, keeps all their data, and has too little compute left to hide some of them."""
            return lax.optimization_barrier(body(i, state))

        return lax.fori_loop(first, last, apart if unroll > 1 else body, state, unroll=unroll)
