"""A scheme bound to JAX: `attend` is a kernel, for one device's part inside a shard_map; `comm` uses lax.

Arrays are q_BNTH, k_BKSH, v_BKSH, dout_BNTH: batch, heads (or key/value heads), positions in the layout's order,
head_dim. starts_BD holds the first positions of documents, ascending from 0 and padded with the length.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from stripectl.core import scopes
from stripectl.core.attend import PartialResult
from stripectl.core.comm import HEADS, ROWS
from stripectl.core.layout import WHOLE, Documents, Halo, Index, MaskBlock, Part, Tile
from stripectl.core.sequence_sharding import SequenceSharding
from stripectl.execute.derivatives import first_order_only, with_backward

KeysValues = tuple[jax.Array, ...]  # keys, values, and the gates of a recurrence
# Of queries: (out, maximum, sum) in float32; for linear attention (out, the state before the shard, ...).
State = Any


class Saved(NamedTuple):
    """The values on the queries' side that the backward pass needs."""

    q_BNTH: jax.Array
    dout_BNTH: jax.Array
    residual: jax.Array  # from `finish`: lse_BNT, or for linear attention the state before the shard, (B, K, H, H)
    delta_BNT: jax.Array
    out_BNTH: jax.Array | None = None  # where the kernel's library needs it


def starts_of_segments(ids_BT: jax.Array) -> jax.Array:
    """int32 (batch, positions): where documents begin, padded with the length, from the document of each token in the
    order of the text."""
    length = ids_BT.shape[1]
    begins_BT = jnp.pad(ids_BT[:, 1:] != ids_BT[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return jnp.sort(jnp.where(begins_BT, jnp.arange(length, dtype=jnp.int32), length), axis=1)


def document_lookup(starts_BD: jax.Array, seq_len: int) -> Documents:
    """The lookup of documents by position, for every sequence of the batch."""
    edges_BD = jnp.pad(starts_BD, ((0, 0), (0, 1)), constant_values=seq_len)

    def find(positions_T: jax.Array) -> tuple[jax.Array, jax.Array]:
        index_BT = jax.vmap(lambda edges: jnp.searchsorted(edges, positions_T, side="right"))(edges_BD)
        first, end = (jnp.take_along_axis(edges_BD, index_BT + past, axis=1) for past in (-1, 0))
        return first, end

    return find


@dataclass(frozen=True, eq=False)
class JaxAttend:
    """A kernel bound to a layout, a mask and tiles; `starts_BD` where there are documents."""

    kernel: ModuleType
    sharding: SequenceSharding
    tiles: Mapping[str, Tile]
    starts_BD: jax.Array | None = None
    value_dim: int | None = None  # of values and the output, where it differs from the queries'
    soft_cap: float | None = None  # of scores

    gates = 0  # arrays behind keys and values
    saves_output = False  # for its backward pass

    def bands(self, me: Index, src: Index, part: Part = WHOLE) -> list[MaskBlock]:
        seq_len = self.sharding.rows * self.sharding.shards
        documents = None if self.starts_BD is None else document_lookup(self.starts_BD, seq_len)
        if self.sharding.shards == 1 and self.sharding.query_rows < self.sharding.rows:
            me = src = 0  # not traced: a kernel may cut off the cached prefix before the program runs
        return self.sharding.bands(me, src, part, documents)

    def rounds(self, by: int = 1) -> int:
        return self.sharding.rounds(by)

    @property
    def of_scores(self) -> dict[str, float]:
        """The kernel's options for scores."""
        return {} if self.soft_cap is None else {"soft_cap": self.soft_cap}

    def rates(self, kv: KeysValues) -> tuple:
        """The kernel's additional arguments for these keys and values."""
        return ()

    def computed(self, compute: Callable, kv: KeysValues) -> Any:
        """The result of compute(*additional), with the kernel's additional arguments."""
        return compute(*self.rates(kv))

    def with_features(self, q: jax.Array, kv: KeysValues) -> tuple[jax.Array, KeysValues]:
        """Queries and keys after the feature map."""
        return q, kv

    def in_runs(self, q: jax.Array, kv: KeysValues) -> tuple[jax.Array, KeysValues]:
        """Queries and keys as the scheme takes them."""
        return q, kv

    def from_runs(self, out: jax.Array) -> jax.Array:
        """The output of `in_runs`, as queries were given."""
        return out

    def empty(self, q: jax.Array) -> Any:
        sums = jnp.zeros_like(q, jnp.float32, q.shape[:3])
        return self.empty_output(q), jnp.full_like(sums, self.kernel.EMPTY), sums

    def empty_output(self, q: jax.Array) -> jax.Array:
        """An output of zeros."""
        return jnp.zeros_like(q, jnp.float32, (*q.shape[:3], self.value_dim or q.shape[3]))

    def query(self, q: jax.Array) -> jax.Array:
        return q.astype(jnp.float32)

    def __call__(
        self, q: jax.Array, kv: KeysValues, me: Index, src: Index, *, into: State, part: Part = WHOLE
    ) -> State:
        with jax.named_scope(scopes.ATTEND_FORWARD):
            return attend_pair(
                replace(self, starts_BD=None), part, self.starts_BD, q, self.requests_of(q, kv, me), me, src, into
            )

    def requests_of(self, q: jax.Array, kv: KeysValues, me: Index) -> KeysValues:
        """Select the requests of kv whose queries belong to shard `me`, where requests are sharded."""
        requests = q.shape[0]
        if requests == kv[0].shape[0]:
            return kv
        return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, me * requests, requests), kv)

    def partial(self, q: jax.Array, state: State) -> PartialResult:
        out, lse = self.finish(state)
        return PartialResult(out.astype(q.dtype), lse)

    def merge(self, state: State, partial: PartialResult) -> State:
        """The meaning of a state does not depend on its maximum, so the maximum is a constant here."""
        (out, before, total), (found, lse) = state, partial
        before, after = lax.stop_gradient((before, jnp.maximum(before, lse)))
        decay, weight = jnp.exp(before - after), jnp.exp(lse - after)
        return out * decay[..., None] + found * weight[..., None], after, total * decay + weight

    def split(self, kv: Any, parts: int) -> list[Any]:
        def cut(x: jax.Array, i: int) -> jax.Array:
            size = x.shape[ROWS] // parts
            return lax.slice_in_dim(x, i * size, (i + 1) * size, axis=ROWS)

        return [jax.tree.map(partial(cut, i=i), kv) for i in range(parts)]

    def join(self, parts: Sequence[Any]) -> Any:
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=ROWS), *parts)

    def halos(self) -> list[Halo]:
        return self.sharding.halos()

    def adjacent_runs(self, by: int) -> list[list[tuple[int, int] | None]]:
        return self.sharding.adjacent_runs(by)

    def ends(self, x: Any, rows: int) -> list[Any]:
        runs = self.split(x, self.sharding.layout.pieces)
        return [jax.tree.map(lambda leaf: leaf[:, :, leaf.shape[ROWS] - rows :], run) for run in runs]

    def add_ends(self, x: Any, ends: Sequence[Any]) -> Any:
        def add(leaf: jax.Array, *own: jax.Array) -> jax.Array:
            for run, end in enumerate(own, 1):
                last = run * (leaf.shape[ROWS] // len(own))
                leaf = leaf.at[:, :, last - end.shape[ROWS] : last].add(end)
            return leaf

        return jax.tree.map(add, x, *ends)

    def backward(
        self, saved: Saved, kv: KeysValues, me: Index, src: Index, *, into: jax.Array, part: Part = WHOLE
    ) -> tuple[jax.Array, KeysValues]:
        q, dout, lse, delta, _ = saved
        bands = self.bands(me, src, part)

        def compute(*besides: Any) -> tuple[jax.Array, ...]:
            given = dout, lse, delta, into, bands, self.tiles["backward"], *besides
            return self.kernel.backward(q, *kv, *given, **self.of_scores)

        with jax.named_scope(scopes.ATTEND_BACKWARD):
            dq, dk, dv = self.computed(compute, kv)
        return dq, (dk, dv)

    def zeros(self, saved: Saved) -> Any:
        return jnp.zeros_like(saved.q_BNTH, jnp.float32)

    def add(self, a: Any, b: Any) -> Any:
        return jax.tree.map(jnp.add, a, b)

    def scores(self, q: jax.Array, k: jax.Array, me: Index, src: Index) -> jax.Array:
        def compute(starts: jax.Array | None, q: jax.Array, k: jax.Array, me: Index, src: Index) -> jax.Array:
            return self.kernel.scores(q, k, replace(self, starts_BD=starts).bands(me, src), **self.of_scores)

        with jax.named_scope(scopes.ATTEND_FORWARD):
            return recompute_in_backward(compute)(self.starts_BD, q, k, me, src)

    def weights(self, q: jax.Array, scores: Sequence[jax.Array]) -> tuple[list[jax.Array], State]:
        found, most, total = self.kernel.weights(scores)
        return found, (self.empty_output(q), most, total)

    def weigh(self, weights: jax.Array, v: jax.Array, me: Index, src: Index, *, into: State) -> State:
        def compute(starts: jax.Array | None, weights: jax.Array, v: jax.Array, me: Index, src: Index) -> jax.Array:
            return self.kernel.weigh(weights, v, replace(self, starts_BD=starts).bands(me, src))

        out, most, total = into
        with jax.named_scope(scopes.ATTEND_FORWARD):
            return out + recompute_in_backward(compute)(self.starts_BD, weights, v, me, src), most, total

    def maximum(self, state: State) -> jax.Array:
        return state[1]

    def rescale(self, state: State, maximum: jax.Array) -> tuple[jax.Array, jax.Array]:
        out, own, total = state
        decay = jnp.exp(own - maximum)
        return out * decay[..., None], total * decay

    def from_sum(self, summed: tuple[jax.Array, jax.Array], maximum: jax.Array) -> State:
        return summed[0], maximum, summed[1]

    def rotate_rows(self, x: Any, parts: int, places: Index) -> Any:
        return jax.tree.map(lambda leaf: jnp.roll(leaf, places * (leaf.shape[ROWS] // parts), axis=ROWS), x)

    def repeat_kv_heads(self, kv: KeysValues, heads: int) -> KeysValues:
        return jax.tree.map(lambda x: jnp.repeat(x, max(1, heads // x.shape[HEADS]), axis=HEADS), kv)

    def take_heads(self, x: jax.Array, index: Index, parts: int) -> jax.Array:
        size = x.shape[HEADS] // parts
        return lax.dynamic_slice_in_dim(x, index * size, size, axis=HEADS)

    def scatter_heads(self, x: jax.Array, index: Index, parts: int) -> jax.Array:
        zeros = jnp.zeros_like(x, shape=(x.shape[0], x.shape[HEADS] * parts, *x.shape[ROWS:]))
        return lax.dynamic_update_slice_in_dim(zeros, x, index * x.shape[HEADS], axis=HEADS)

    def finish(self, state: State) -> tuple[jax.Array, Any]:
        """(out, log-sum-exp) in float32; queries without keys give 0 and the log of an empty sum."""
        out, maximum, total = state
        total = jnp.where(total > 0, total, 1)
        return out / total[..., None], maximum + jnp.log(total)


def recompute_in_backward(function: Callable) -> Callable:
    """A function that keeps only its arguments for the backward pass, under any policy of a surrounding jax.checkpoint.
    Such a policy would reach into a jax.checkpoint inside and keep the values of every chunk. Values that depend only
    on a device's index are not moved outside either, because a shard_map without an input does not compile."""
    opaque = with_backward(
        function,
        lambda *arguments: (opaque(*arguments), arguments),
        lambda arguments, gradient: jax.vjp(function, *arguments)[1](gradient),
    )
    return opaque


def _attend_pair(
    attend: JaxAttend,
    part: Part,
    starts: jax.Array | None,
    q: jax.Array,
    kv: KeysValues,
    me: Index,
    src: Index,
    state: State,
) -> State:
    bands = replace(attend, starts_BD=starts).bands(me, src, part)
    q = q.astype(kv[0].dtype)
    given = state, bands, attend.tiles["forward"], *attend.rates(kv)
    return attend.kernel.forward(q, *kv, *given, **attend.of_scores)


def _attend_pair_forward(
    attend: JaxAttend,
    part: Part,
    starts: jax.Array | None,
    q: jax.Array,
    kv: KeysValues,
    me: Index,
    src: Index,
    state: State,
) -> tuple[State, tuple]:
    after: Any = attend_pair(attend, part, starts, q, kv, me, src, state)
    return after, (starts, q, kv, me, src, state[1], after[1])


def _attend_pair_backward(attend: JaxAttend, part: Part, residuals: tuple, cotangents: State) -> tuple:
    return None, *first_order_only(partial(_pair_gradients, attend, part))(residuals, cotangents)


def _pair_gradients(attend: JaxAttend, part: Part, residuals: tuple, cotangents: State) -> tuple:
    """The gradients of a state. Its meaning does not depend on its maximum, so the maximum is a constant here: the
    pair's gradients are attention's, with the maximum as the log-sum-exp and minus dsum as delta."""
    starts, q, kv, me, src, before, after = residuals
    dout, _, dsum = cotangents
    saved = Saved(q.astype(kv[0].dtype), dout.astype(kv[0].dtype), after, -dsum)
    attend = replace(attend, starts_BD=starts)
    dq, dkv = attend.backward(saved, kv, me, src, into=jnp.zeros_like(q, jnp.float32), part=part)
    decay = jnp.exp(before - after)
    dkv = jax.tree.map(lambda gradient, x: gradient.astype(x.dtype), dkv, kv)
    return dq.astype(q.dtype), dkv, None, None, (dout * decay[..., None], jnp.zeros_like(before), dsum * decay)


attend_pair = with_backward(_attend_pair, _attend_pair_forward, _attend_pair_backward, (0, 1))
