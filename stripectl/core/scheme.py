"""A scheme says how shards exchange data: a short program over `attend` and `comm`, without JAX.

`execute` binds them to lax and a kernel, `simulate` to simulated clocks. Written once, a scheme runs, differentiates,
compiles and simulates.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from stripectl.util.files import Catalogue

Array = Any  # a JAX array or, in simulation, a shape and the time at which it is ready
Index = Any  # int, tracer, or in simulation a vector over devices
HEADS, ROWS, ELEMENTS = 1, 2, 3  # dimensions of (batch, heads, rows, head_dim)


class Comm(Protocol):
    """Communication between devices along a named axis of the mesh. Pytrees in, pytrees out; `what` names the data, so
    that a profile can distinguish transfers."""

    @property
    def parts(self) -> int:
        """The number of parts in which the plan wants data gathered."""
        ...

    def size(self, axis: str) -> int: ...

    def index(self, axis: str) -> Index: ...

    def shift(
        self, x: Array, axis: str, what: str = "", by: int = 1, senders: Callable[[int], bool] | None = None
    ) -> Array:
        """Send x to the device `by` places forward round the ring, and receive from `by` places back. Where not all
        devices are `senders`, the others send nothing, and their receivers get zeros."""
        ...

    def all_gather(self, x: Array, axis: str, what: str = "", join: int | None = None) -> Array:
        """Every device's x, stacked along a new leading dimension, or joined along an existing dimension."""
        ...

    def all_to_all(self, x: Array, axis: str, what: str = "", *, split: int, join: int) -> Array:
        """Split x along one dimension, send a part to each device, and join the received parts along another."""
        ...

    def reduce_scatter(self, x: Array, axis: str, what: str = "", *, split: int) -> Array:
        """The sum over devices, split along a dimension: each device keeps its part."""
        ...

    def reduce(self, x: Array, axis: str, what: str = "", *, by: Literal["sum", "max"]) -> Array:
        """The sum or the maximum over devices, on all devices."""
        ...

    def select(self, stacked: Array, index: Index) -> Array:
        """One block of a stack."""
        ...

    def where(self, condition: Index, x: Array, y: Array) -> Array:
        """x on devices for which the condition holds, y on the others."""
        ...

    def loop(self, first: int, last: int, body: Callable[[Index, Array], Array], state: Array) -> Array:
        """`state = body(i, state)` for i in [first, last), rolled or unrolled as the plan says."""
        ...


class Attend(Protocol):
    """A kernel bound to a layout and tiles. `me` and `src` are the shards of the queries and of the keys; with
    part=(i, n), kv is part i of n equal parts of its shard's rows."""

    def rounds(self, by: int = 1) -> int:
        """Rounds of a ring up to the last with a live score on any device, where K/V travel forward (1) or backward."""
        ...

    def empty(self, q: Array) -> Array:
        """The state of queries before any key."""
        ...

    def query(self, q: Array) -> Array:
        """Queries that stay on their device in all rounds. Where the backward pass is the transpose, their gradient is
        then summed in float32, and not in the dtype of q."""
        ...

    def __call__(
        self, q: Array, kv: Array, me: Index, src: Index, *, into: Array, part: tuple[int, int] = ...
    ) -> Array:
        """The state after queries q have attended to kv."""
        ...

    def partial(self, q: Array, state: Array) -> Array:
        """A state in a form to be sent: the output in the dtype of q, and the log-sum-exp."""
        ...

    def merge(self, state: Array, partial: Array) -> Array:
        """The state with the keys of a partial result added."""
        ...

    def split(self, kv: Array, parts: int) -> Sequence[Array]:
        """kv in equal parts by rows."""
        ...

    def join(self, parts: Sequence[Array]) -> Array:
        """The inverse of `split`."""
        ...

    def backward(
        self, saved: Array, kv: Array, me: Index, src: Index, *, into: Array, part: tuple[int, int] = ...
    ) -> tuple[Array, Array]:
        """(dq added to `into`, this pair's contribution to dkv), from the saved forward values and the cotangent."""
        ...

    def zeros(self, saved: Array) -> Array:
        """The dq of queries before any key."""
        ...

    def add(self, a: Array, b: Array) -> Array:
        """The sum of two contributions to dkv, or to dq."""
        ...

    def scores(self, q: Array, k: Array, me: Index, src: Index) -> Array:
        """All scores of q with k, in memory. This and the next two need a kernel of the family `scores`."""
        ...

    def weights(self, q: Array, scores: Sequence[Array]) -> tuple[list[Array], Array]:
        """(weights, the state of queries q with these keys and no values): softmax over all keys, not divided."""
        ...

    def weigh(self, weights: Array, v: Array, me: Index, src: Index, *, into: Array) -> Array:
        """The state with the weighted values v added."""
        ...

    def maximum(self, state: Array) -> Array:
        """The largest score of each query."""
        ...

    def rescale(self, state: Array, maximum: Array) -> Array:
        """The part of a state that can be summed over devices, after all devices use the same maximum."""
        ...

    def from_sum(self, summed: Array, maximum: Array) -> Array:
        """The state from such a sum."""
        ...

    def rotate_rows(self, x: Array, parts: int, places: Index) -> Array:
        """Equal parts of the rows, each moved by `places`; the last parts move to the front."""
        ...

    def repeat_kv_heads(self, kv: Array, heads: int) -> Array:
        """kv with at least `heads` heads: fewer heads are repeated as often as needed."""
        ...

    def take_heads(self, x: Array, index: Index, parts: int) -> Array:
        """The heads of one of `parts` equal parts."""
        ...

    def scatter_heads(self, x: Array, index: Index, parts: int) -> Array:
        """x as one of `parts` parts of the heads, with zeros in the others."""
        ...


class LinearAttend(Attend, Protocol):
    """`attend` for linear attention: it also has states, one per key/value head."""

    @property
    def sees_future(self) -> bool:
        """Whether queries see keys after them."""
        ...

    def local_part(self, q: Array, kv: Array, me: Index, part: tuple[Index, int], *, into: Array) -> Array:
        """The state after queries q have attended to kv of their own shard, for share i of n of the heads."""
        ...

    def local_part_backward(self, saved: Array, kv: Array, me: Index, part: tuple[Index, int], *, into: Array) -> Array:
        """dq of such a share, added to `into`."""
        ...

    def keys_backward(self, saved: Array, kv: Array, me: Index) -> Array:
        """The contribution of a shard's own queries to dkv."""
        ...

    def state(self, kv: Array) -> Array:
        """The state that the keys of a shard sum up to."""
        ...

    def advance_state(self, state: Array, own: Array) -> Array:
        """The state after a shard: the state before it, decayed over its tokens, plus its own."""
        ...

    def state_before(self, states: Array, me: Index, by: int = 1) -> Array:
        """The state before a shard from the stacked states of all shards, or with `by` -1 the gradient after it; under
        a full mask, the sum of all other shards."""
        ...

    def apply(self, q: Array, before: Array, *, into: Array) -> Array:
        """The state of queries with all keys before their shard added."""
        ...

    def saved_state(self, saved: Array) -> Array | None:
        """The argument of `apply`; None where the plan keeps no states for the backward pass."""
        ...

    def dstate(self, saved: Array, kv: Array) -> Array:
        """The gradient of the state before a shard, from the queries of the shard."""
        ...

    def state_backward(
        self, saved: Array, kv: Array, before: Array, behind: Array, *, into: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """(dq, dkv) with the contributions of the state before a shard and of the gradient of the state after it."""
        ...


def identity(x: Any, *_: Any) -> Any:
    return x


@dataclass(frozen=True)
class Scheme:
    """A published way for each shard of queries to attend to every shard of keys and values.

    enter((q, kv), attend, comm) -> (q, kv): how they move before attention; its transpose returns the gradients.
    forward(q, kv, attend, comm) -> state
    backward(saved, kv, attend, comm) -> (dq, dkv), or None: the transpose of forward.
    leave(out, attend, comm) -> out: how the output moves back to the place of the queries.
    why_unsupported(workload, mesh) -> why the scheme cannot run, or None.
    """

    name: str
    paper: str
    axes: tuple[str, ...]
    forward: Callable[[Array, Array, Attend, Comm], Array]
    title: str = ""  # its name in a sentence; by default `name`
    backward: Callable[[Array, Array, Attend, Comm], tuple[Array, Array]] | None = None
    enter: Callable[[tuple[Array, Array], Attend, Comm], tuple[Array, Array]] = identity
    leave: Callable[[Array, Attend, Comm], Array] = identity
    layouts: tuple[str, ...] | None = None  # None: every layout
    # The families of kernels that it supports, the default first.
    kernel_families: tuple[str, ...] = ("softmax", "linear")
    # Axes that make it another scheme when they have one device; `every mesh` skips such meshes.
    degenerate_axes: tuple[str, ...] = ()
    row_axes: tuple[str, ...] = ()  # axes that shard the rows of queries and output, in addition to those of a sequence
    # Queries as many as keys, or fewer: sharded, or whole on each shard.
    query_sharding: Literal["all", "sharded", "whole"] = "all"
    splits_kv: bool = False  # gathers K/V in as many parts as the plan's `parts` says
    chunk: int | None = None  # rows that a step's feed-forward computes at once, unless a plan says otherwise; 0 is all
    why_unsupported: Callable[[Any, Mapping[str, int]], str | None] = lambda workload, mesh: None

    @property
    def default_layout(self) -> str:
        return self.layouts[0] if self.layouts else "striped"


schemes = Catalogue("stripectl.schemes", "scheme", "scheme")
"""The schemes, one file each; `stripectl.core.scheme.schemes` finds them by listing this folder."""
