"""A scheme says how shards meet: a short program over `attend` and `comm`, without JAX.

`execute` binds the two to lax and a kernel, `simulate` to clocks. Written once, a scheme runs, differentiates,
compiles and simulates.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from stripectl.util.files import Catalogue

Array = Any  # a JAX array or, on clocks, a shape and the time it is ready
Index = Any  # int, tracer, or on clocks a vector over devices
HEADS, ROWS, ELEMENTS = 1, 2, 3  # dimensions of (batch, heads, rows, head_dim)


class Comm(Protocol):
    """What devices say to each other, along a named axis of the mesh. Pytrees in, pytrees out; `what` is a word for
    them, by which a profile tells transfers apart."""

    @property
    def parts(self) -> int:
        """In how many parts the plan wants what is gathered."""
        ...

    def size(self, axis: str) -> int: ...

    def index(self, axis: str) -> Index: ...

    def shift(
        self, x: Array, axis: str, what: str = "", by: int = 1, senders: Callable[[int], bool] | None = None
    ) -> Array:
        """To the device `by` places onward round the ring; what comes from as far back comes back. Where not all are
        `senders`, the others send nothing, and who gets nothing gets zeros."""
        ...

    def all_gather(self, x: Array, axis: str, what: str = "", join: int | None = None) -> Array:
        """Every device's x, stacked along a new leading dimension, or joined along one that there is."""
        ...

    def all_to_all(self, x: Array, axis: str, what: str = "", *, split: int, join: int) -> Array:
        """x cut along one dimension, a part for each device; what they send is joined along another."""
        ...

    def reduce_scatter(self, x: Array, axis: str, what: str = "", *, split: int) -> Array:
        """The sum over devices, cut along a dimension: each keeps its part."""
        ...

    def reduce(self, x: Array, axis: str, what: str = "", *, by: Literal["sum", "max"]) -> Array:
        """The sum or the maximum over devices, on all of them."""
        ...

    def select(self, stacked: Array, index: Index) -> Array:
        """One block of a stack."""
        ...

    def where(self, condition: Index, x: Array, y: Array) -> Array:
        """x on devices that the condition holds on, y on the others."""
        ...

    def loop(self, first: int, last: int, body: Callable[[Index, Array], Array], state: Array) -> Array:
        """`state = body(i, state)` for i in [first, last), rolled or unrolled as the plan says."""
        ...


class Attend(Protocol):
    """A kernel bound to a layout and tiles. `me` and `src` are the shards of the queries and of the keys; a kv that is
    the i-th of n equal parts of its shard's rows comes with part=(i, n)."""

    def rounds(self, by: int = 1) -> int:
        """Rounds of a ring up to the last that any device has a live score in, where K/V travel onward, or back."""
        ...

    def empty(self, q: Array) -> Array:
        """The state of queries that have met no key."""
        ...

    def query(self, q: Array) -> Array:
        """Queries that stay where they are for all rounds: where the backward pass is the transpose, their gradient
        then adds up in float32 and not in the dtype of q."""
        ...

    def __call__(
        self, q: Array, kv: Array, me: Index, src: Index, *, into: Array, part: tuple[int, int] = ...
    ) -> Array:
        """The state after queries q have also met kv."""
        ...

    def partial(self, q: Array, state: Array) -> Array:
        """What a state says of its keys, in a form to be sent: the output in the dtype of q, and the log-sum-exp."""
        ...

    def merge(self, state: Array, partial: Array) -> Array:
        """The state after it has also met the keys of a partial result."""
        ...

    def split(self, kv: Array, parts: int) -> Sequence[Array]:
        """kv in equal parts of its rows."""
        ...

    def join(self, parts: Sequence[Array]) -> Array:
        """What `split` made, as it was."""
        ...

    def backward(
        self, saved: Array, kv: Array, me: Index, src: Index, *, into: Array, part: tuple[int, int] = ...
    ) -> tuple[Array, Array]:
        """(dq added to `into`, what this pair contributes to dkv), from what forward saved and the cotangent."""
        ...

    def zeros(self, saved: Array) -> Array:
        """The dq of queries that have met no key."""
        ...

    def add(self, a: Array, b: Array) -> Array:
        """The sum of two contributions to dkv, or to dq."""
        ...

    def scores(self, q: Array, k: Array, me: Index, src: Index) -> Array:
        """Every score of q with k, in memory; for these three the kernel is of the family `scores`."""
        ...

    def weights(self, q: Array, scores: Sequence[Array]) -> tuple[list[Array], Array]:
        """(weights, the state of queries q that have met these keys and no values): softmax over all, undivided."""
        ...

    def weigh(self, weights: Array, v: Array, me: Index, src: Index, *, into: Array) -> Array:
        """The state after values v were added by their weights."""
        ...

    def maximum(self, state: Array) -> Array:
        """The largest score of every query."""
        ...

    def rescale(self, state: Array, maximum: Array) -> Array:
        """What of a state adds up over devices, once all take the same maximum."""
        ...

    def from_sum(self, summed: Array, maximum: Array) -> Array:
        """The state of such a sum."""
        ...

    def rotate_rows(self, x: Array, parts: int, places: Index) -> Array:
        """Equal parts of the rows, each moved so many places on, the last ones to the front."""
        ...

    def repeat_kv_heads(self, kv: Array, heads: int) -> Array:
        """kv with at least so many heads: where it has fewer, each is there as often as that takes."""
        ...

    def take_heads(self, x: Array, index: Index, parts: int) -> Array:
        """The heads of one of so many equal parts."""
        ...

    def scatter_heads(self, x: Array, index: Index, parts: int) -> Array:
        """x as one of so many parts of the heads, zeros in place of the others."""
        ...


class LinearAttend(Attend, Protocol):
    """`attend` of linear attention: states besides, of which there is one a key/value head."""

    @property
    def sees_future(self) -> bool:
        """Whether queries see keys behind them."""
        ...

    def local_part(self, q: Array, kv: Array, me: Index, part: tuple[Index, int], *, into: Array) -> Array:
        """The state after queries q have also met kv of their own shard, of the i-th of n shares of the heads; as it
        was where `apply` does that."""
        ...

    def local_part_backward(self, saved: Array, kv: Array, me: Index, part: tuple[Index, int], *, into: Array) -> Array:
        """dq added to `into` of such a share."""
        ...

    def keys_backward(self, saved: Array, kv: Array, me: Index) -> Array:
        """What a shard's own queries contribute to dkv."""
        ...

    def map_of(self, kv: Array) -> Array:
        """What a shard does to a state, S -> A S + B: where A is the same for all shards, B."""
        ...

    def state_of(self, own: Array) -> Array:
        """The state behind a shard that has none before it: B."""
        ...

    def advance_state(self, state: Array, own: Array, shards: int = 1) -> Array:
        """The state behind so many shards, A S + B by their map."""
        ...

    def compose(self, later: Array, earlier: Array, shards: int = 1) -> Array:
        """The map of earlier shards and then of so many later ones."""
        ...

    def state_before(self, maps: Array, me: Index, by: int = 1) -> Array:
        """What the stacked maps of all shards before one make of no state, or with `by` -1 those behind it; under a
        full mask those of all others."""
        ...

    def apply(self, q: Array, kv: Array, before: Array, *, into: Array) -> Array:
        """The state of queries that have also met all keys before their shard, and where gates depend on the input
        their own, which nothing can be said of before."""
        ...

    def saved_state(self, saved: Array) -> Array | None:
        """What `apply` was given; None where the plan keeps no states for the backward pass."""
        ...

    def transposed_map_of(self, saved: Array, kv: Array) -> Array:
        """The gradient of the state before a shard by that of the state behind it, G -> A^T G + C, where C is what the
        shard's own queries give; as `map_of`."""
        ...

    def state_backward(
        self, saved: Array, kv: Array, before: Array, behind: Array, *, into: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """(dq, dkv) with what came by the state before a shard and by the gradient of the state behind it."""
        ...


def identity(x: Any, *_: Any) -> Any:
    return x


@dataclass(frozen=True)
class Scheme:
    """A published way for shards of queries to meet every shard of keys and values.

    enter((q, kv), attend, comm) -> (q, kv): how they move before shards meet; its transpose brings gradients back.
    forward(q, kv, attend, comm) -> state
    backward(saved, kv, attend, comm) -> (dq, dkv), or None: the transpose of forward.
    leave(out, attend, comm) -> out: how the output moves to where the queries were.
    why_unsupported(workload, mesh) -> why the scheme cannot run, or None.
    """

    name: str
    paper: str
    axes: tuple[str, ...]
    forward: Callable[[Array, Array, Attend, Comm], Array]
    title: str = ""  # its name in a sentence; empty: its name
    backward: Callable[[Array, Array, Attend, Comm], tuple[Array, Array]] | None = None
    enter: Callable[[tuple[Array, Array], Attend, Comm], tuple[Array, Array]] = identity
    leave: Callable[[Array, Attend, Comm], Array] = identity
    layouts: tuple[str, ...] | None = None  # None: every layout
    # The families of kernels that it computes with, its usual first.
    kernel_families: tuple[str, ...] = ("softmax", "linear")
    # Axes on which it is another scheme with one device; `every mesh` leaves such out.
    degenerate_axes: tuple[str, ...] = ()
    row_axes: tuple[str, ...] = ()  # axes that cut the rows of queries and output, beside those of a sequence
    # As many as keys, or fewer, dealt to shards or whole on each.
    query_sharding: Literal["all", "sharded", "whole"] = "all"
    splits_kv: bool = False  # takes K/V in parts, as many as the plan's `parts` says
    chunk: int | None = None  # rows of a step's feed-forward at once where a plan does not say; 0 is all
    why_unsupported: Callable[[Any, Mapping[str, int]], str | None] = lambda workload, mesh: None

    @property
    def sends_states(self) -> bool:
        """Whether all that shards tell each other are states of linear attention."""
        return self.kernel_families[0] == "linear"

    @property
    def default_layout(self) -> str:
        return self.layouts[0] if self.layouts else "striped"


schemes = Catalogue("stripectl.schemes", "scheme", "scheme")
"""The schemes, one file each; `stripectl.core.scheme.schemes` finds them by listing this folder."""
