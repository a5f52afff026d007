"""Attention between two shards, as schemes call it, without JAX: a kernel that is bound to a layout and to tiles.

A scheme asks for the smallest protocol that it needs: `Attend` is enough for every ring. `execute` implements all of
them with a kernel, `simulate` with clocks; a new implementation can begin with `Attend`.

Arrays are (batch, heads, rows, head_dim). `me` is the shard of the queries and `src` the shard of the keys and values.
A state says what queries know of the keys that they have attended to so far; `empty` makes the first. It is None if one
call of a library's kernel can hold all scores (`calls_once`), and the result of this call, a `PartialResult`, is the
state after it: final if the scheme makes no other call, otherwise merged with further results.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from stripectl.core.comm import Array, Index
from stripectl.core.layout import Halo, Part


class PartialResult(NamedTuple):
    """The result of queries for some of their keys: the output in the dtype of the queries, and the log-sum-exp."""

    out: Array
    lse: Array


class Attend(Protocol):
    """The part that every scheme needs. A `kv` that is the i-th of n equal parts of its shard's rows comes with
    part=(i, n)."""

    def rounds(self, by: int = 1) -> int:
        """The number of rounds until no device has a live score left. K/V travel forward (1) or backward (-1)."""
        ...

    def empty(self, q: Array) -> Array:
        """Make the state of queries that have not attended to any key."""
        ...

    def query(self, q: Array) -> Array:
        """Queries that stay on their device in all rounds. Where the backward pass is the transpose, their gradient is
        then accumulated in float32 and not in the dtype of q."""
        ...

    def __call__(self, q: Array, kv: Array, me: Index, src: Index, *, into: Array, part: Part = ...) -> Array:
        """The state `into` after the queries q have also attended to kv."""
        ...

    def backward(
        self, saved: Array, kv: Array, me: Index, src: Index, *, into: Array, part: Part = ...
    ) -> tuple[Array, Array]:
        """(`into` plus this pair's dq, this pair's dkv), from what the forward pass saved and the cotangent."""
        ...

    def zeros(self, saved: Array) -> Array:
        """The dq of queries that have not attended to any key."""
        ...

    def add(self, a: Array, b: Array) -> Array:
        """The sum of two contributions to dkv, or to dq."""
        ...


class RowsAttend(Attend, Protocol):
    """For schemes that send or compute a shard's rows in parts."""

    def split(self, kv: Array, parts: int) -> Sequence[Array]:
        """kv in equal parts of its rows."""
        ...

    def join(self, parts: Sequence[Array]) -> Array:
        """The inverse of `split`."""
        ...

    def rotate_rows(self, x: Array, parts: int, places: Index) -> Array:
        """x with its rows in equal parts, each moved by `places` parts, the last parts to the front."""
        ...


class HaloAttend(RowsAttend, Protocol):
    """For schemes that send the ends of runs of adjacent positions. The halos of all runs of queries, joined in their
    order, are a `kv` with part=halo and src=me."""

    def halos(self) -> Sequence[Halo]:
        """The halos that the window reaches, the nearest first."""
        ...

    def adjacent_runs(self, by: int) -> Sequence[Sequence[tuple[int, int] | None]]:
        """For each run of a shard the (shard, run) before it on every shard, or with by=1 behind it."""
        ...

    def ends(self, x: Array, rows: int) -> Sequence[Array]:
        """The last rows of each run, from x with equally many rows of each."""
        ...

    def add_ends(self, x: Array, ends: Sequence[Array]) -> Array:
        """x plus an array for the last rows of each of its runs; x itself where there are none."""
        ...


class PartialAttend(Attend, Protocol):
    """For schemes that combine the results of several devices."""

    def partial(self, q: Array, state: Array) -> Array:
        """A state in a form to be sent, a `PartialResult`."""
        ...

    def merge(self, state: Array, partial: Array) -> Array:
        """Merge a partial result for other keys into the state."""
        ...

    def maximum(self, state: Array) -> Array:
        """The largest score of every query."""
        ...

    def rescale(self, state: Array, maximum: Array) -> Array:
        """A state in a form that can be summed over devices, once all of them use the same maximum."""
        ...

    def from_sum(self, summed: Array, maximum: Array) -> Array:
        """The state of such a sum."""
        ...


class HeadsAttend(Protocol):
    """For schemes that distribute heads over devices."""

    def repeat_kv_heads(self, kv: Array, heads: int) -> Array:
        """kv with at least `heads` heads: where it has fewer, each is repeated equally often."""
        ...

    def take_heads(self, x: Array, index: Index, parts: int) -> Array:
        """The heads of part `index` of `parts` equal parts."""
        ...

    def scatter_heads(self, x: Array, index: Index, parts: int) -> Array:
        """x as part `index` of `parts` parts of the heads, with zeros for the other heads."""
        ...


class ScoresAttend(Attend, Protocol):
    """For schemes that hold whole scores in memory. Their kernel is of the family `scores`."""

    def scores(self, q: Array, k: Array, me: Index, src: Index) -> Array:
        """Every score of q with k."""
        ...

    def weights(self, q: Array, scores: Sequence[Array]) -> tuple[list[Array], Array]:
        """(softmax weights over all scores, not yet divided by their sum, the state of the queries before any value
        is added)."""
        ...

    def weigh(self, weights: Array, v: Array, me: Index, src: Index, *, into: Array) -> Array:
        """The state `into` after the values v have been added with their weights."""
        ...


class LinearAttend(Attend, Protocol):
    """For linear attention, where each head has a state S and the tokens of a shard map it to A S + B. Where A is the
    same for all shards, the array of a map is B."""

    @property
    def sees_future(self) -> bool:
        """Whether queries attend to keys after them."""
        ...

    def local_part(self, q: Array, kv: Array, me: Index, part: tuple[Index, int], *, into: Array) -> Array:
        """The state `into` after the queries q have also attended to kv of their own shard, for the i-th of n parts of
        the heads; `into` itself where `apply` computes that."""
        ...

    def local_part_backward(self, saved: Array, kv: Array, me: Index, part: tuple[Index, int], *, into: Array) -> Array:
        """`into` plus the dq of such a part."""
        ...

    def keys_backward(self, saved: Array, kv: Array, me: Index) -> Array:
        """The dkv that the shard's own queries contribute."""
        ...

    def map_of(self, kv: Array) -> Array:
        """The map of a shard."""
        ...

    def state_of(self, own: Array) -> Array:
        """The state after a shard that has none before it: B of its map."""
        ...

    def advance_state(self, state: Array, own: Array, shards: int = 1) -> Array:
        """A S + B, by the map of `shards` shards."""
        ...

    def compose(self, later: Array, earlier: Array, shards: int = 1) -> Array:
        """The map of earlier shards followed by `shards` later shards."""
        ...

    def state_before(self, maps: Array, me: Index, by: int = 1) -> Array:
        """The state that the stacked maps of all shards before `me` make from zero, or those after it with by=-1; with
        a full mask the sum of all other shards."""
        ...

    def apply(self, q: Array, kv: Array, before: Array, *, into: Array) -> Array:
        """The state `into` after the queries have also attended to all keys before their shard; where gates depend on
        the input, the whole output of the shard."""
        ...

    def saved_state(self, saved: Array) -> Array | None:
        """The argument `before` of `apply`; None where the plan keeps no states for the backward pass."""
        ...

    def transposed_map_of(self, saved: Array, kv: Array) -> Array:
        """The map from the gradient of the state after a shard to the gradient of the state before it, G -> A^T G + C,
        where C is the contribution of the shard's own queries."""
        ...

    def state_backward(
        self, saved: Array, kv: Array, before: Array, behind: Array, *, into: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """(dq, dkv) with the contributions of the state before a shard and of the gradient of the state after it."""
        ...
