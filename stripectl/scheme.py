"""A scheme says how shards meet: a short program over `attend` and `comm`, without JAX.

`execute` binds the two to lax and a kernel, `simulate` to clocks. Written once, a scheme runs, differentiates,
compiles and simulates.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from stripectl.files import Catalogue

Array = Any  # a JAX array or, on clocks, a shape and the time it is ready
Index = Any  # int, tracer, or on clocks a vector over devices


class Comm(Protocol):
    """What devices say to each other, along a named axis of the mesh. Pytrees in, pytrees out; `what` is a word for
    them, by which a profile tells transfers apart."""

    def size(self, axis: str) -> int: ...

    def index(self, axis: str) -> Index: ...

    def shift(self, x: Array, axis: str, what: str = "") -> Array:
        """To the next device of the ring; what the previous one sent comes back."""
        ...

    def all_gather(self, x: Array, axis: str, what: str = "") -> Array:
        """Every device's x, stacked along a new leading dimension."""
        ...

    def select(self, stacked: Array, index: Index) -> Array:
        """One block of a stack."""
        ...

    def loop(self, first: int, last: int, body: Callable[[Index, Array], Array], state: Array) -> Array:
        """`state = body(i, state)` for i in [first, last), rolled or unrolled as the plan says."""
        ...


class Attend(Protocol):
    """A kernel bound to a layout and tiles. `me` and `src` are the shards of the queries and of the keys."""

    def empty(self, q: Array) -> Array:
        """The state of queries that have met no key."""
        ...

    def query(self, q: Array) -> Array:
        """Queries that stay where they are for all rounds: where the backward pass is the transpose, their gradient
        then adds up in float32 and not in the dtype of q."""
        ...

    def __call__(self, q: Array, kv: Array, me: Index, src: Index, *, into: Array) -> Array:
        """The state after queries q have also met kv."""
        ...

    def backward(self, saved: Array, kv: Array, me: Index, src: Index, *, into: Array) -> tuple[Array, Array]:
        """(dq added to `into`, what this pair contributes to dkv), from what forward saved and the cotangent."""
        ...

    def zeros(self, saved: Array) -> Array:
        """The dq of queries that have met no key."""
        ...

    def add(self, a: Array, b: Array) -> Array:
        """The sum of two contributions to dkv."""
        ...


@dataclass(frozen=True)
class Scheme:
    """A published way for shards of queries to meet every shard of keys and values.

    forward(q, kv, attend, comm) -> state
    backward(saved, kv, attend, comm) -> (dq, dkv), or None: the transpose of forward.
    unsupported(workload, mesh) -> why the scheme cannot run, or None.
    """

    name: str
    paper: str
    axes: tuple[str, ...]
    forward: Callable[[Array, Array, Attend, Comm], Array]
    backward: Callable[[Array, Array, Attend, Comm], tuple[Array, Array]] | None = None
    layouts: tuple[str, ...] | None = None  # None: every layout
    default_layout: str = "striped"
    kernels: Literal["softmax", "linear"] = "softmax"
    unsupported: Callable[[Any, Mapping[str, int]], str | None] = lambda workload, mesh: None


schemes = Catalogue("stripectl.schemes", "scheme", "scheme")
