"""A ring whose kernel sends the hops: a shift waits for the next pair of shards, and runs while this pair is
computed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

from stripectl.core import scopes
from stripectl.core.kernel import FusedHop
from stripectl.core.layout import WHOLE, Index, Part
from stripectl.execute.attend import JaxAttend, KeysValues, State
from stripectl.execute.comm import JaxComm


@dataclass(eq=False)
class PendingTransfer:
    """The data of a hop, once a kernel has sent it."""

    x: Any
    axis: str
    brought: Any = None


def resolve_pending(tree: Any) -> Any:
    """The tree with arrived arrays in place of pending transfers."""

    def brought(x: Any) -> Any:
        if not isinstance(x, PendingTransfer):
            return x
        assert x.brought is not None, "no pair of shards was computed after the shift"
        return x.brought

    return jax.tree.map(brought, tree, is_leaf=lambda x: isinstance(x, PendingTransfer))


@dataclass(frozen=True)
class FusedHopComm(JaxComm):
    waiting: list[PendingTransfer] = field(default_factory=list)

    def shift(
        self, x: Any, axis: str, what: str = "", by: int = 1, senders: Callable[[int], bool] | None = None
    ) -> Any:
        if by != 1 or self.size(axis) == 1 or senders:
            return super().shift(x, axis, what, by, senders)
        self.waiting.append(PendingTransfer(x, axis))
        return self.waiting[-1]

    def loop(self, first: int, last: int, body: Callable, state: Any) -> Any:
        return super().loop(first, last, lambda i, state: resolve_pending(body(i, state)), resolve_pending(state))

    def along(self, compute: Callable) -> Any:
        """The first part of compute(hop)'s result, where `hop` is the pending transfer, if any."""
        coming = [*self.waiting]
        self.waiting.clear()
        if not coming:
            return compute(None)
        (axis,) = {each.axis for each in coming}
        leaves, tree = jax.tree.flatten([each.x for each in coming])
        found, brought = compute(FusedHop(axis, self.size(axis), leaves))
        for each, arrays in zip(coming, jax.tree.unflatten(tree, brought), strict=True):
            each.brought = arrays
        return found


@dataclass(frozen=True, eq=False)
class FusedHopAttend(JaxAttend):
    comm: FusedHopComm = field(kw_only=True)

    def __call__(
        self, q: jax.Array, kv: KeysValues, me: Index, src: Index, *, into: State, part: Part = WHOLE
    ) -> State:
        bands = self.bands(me, src, part)

        def compute(hop: FusedHop | None) -> tuple:
            given = into, bands, self.tiles["forward"], hop
            return self.kernel.forward(q.astype(kv[0].dtype), *kv, *given, **self.of_scores)

        with jax.named_scope(scopes.ATTEND_FORWARD):
            return self.computed(compute, kv)

    def computed(self, compute: Callable, kv: KeysValues) -> Any:
        return self.comm.along(compute)

    def add(self, a: Any, b: Any) -> Any:
        return super().add(resolve_pending(a), resolve_pending(b))
