"""A scheme is a short program over `attend` and `comm`, without JAX.

`execute` binds the two to a kernel and to JAX's collectives, `simulate` to clocks. A scheme that is written once runs,
differentiates, compiles and simulates.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stripectl.core.comm import Array, Comm
from stripectl.util.files import Catalogue


def identity(x: Any, *_: Any) -> Any:
    return x


@dataclass(frozen=True)
class Scheme:
    """A published way for shards of queries to meet every shard of keys and values.

    `attend` is the protocol of `core/attend.py` that the functions name in their signatures.

    enter((q, kv), attend, comm) -> (q, kv): how they move before shards meet; its transpose brings gradients back.
    forward(q, kv, attend, comm) -> state
    backward(saved, kv, attend, comm) -> (dq, dkv), or None: the transpose of forward.
    leave(out, attend, comm) -> out: how the output moves to where the queries were.
    why_unsupported(workload, mesh) -> why the scheme cannot run, or None.
    """

    name: str
    paper: str
    axes: tuple[str, ...]
    forward: Callable[[Array, Array, Any, Comm], Array]
    title: str = ""  # its name in a sentence; empty: its name
    backward: Callable[[Array, Array, Any, Comm], tuple[Array, Array]] | None = None
    enter: Callable[[tuple[Array, Array], Any, Comm], tuple[Array, Array]] = identity
    leave: Callable[[Array, Any, Comm], Array] = identity
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
