"""A scheme is a short program over `attend` and `comm`, without JAX.

`execute` binds them to a kernel and to JAX's collectives, `simulate` to simulated clocks. A scheme that is written once
runs, differentiates, compiles and simulates.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stripectl.core.comm import Array, Comm
from stripectl.core.mesh import AXES
from stripectl.core.reason import Reason
from stripectl.util.catalogue import Catalogue

# The arguments of a scheme's functions. `Scheme` says what they return.
ARGUMENTS = {
    "enter": ("(q, kv)", "attend", "comm"),
    "forward": ("q", "kv", "attend", "comm"),
    "backward": ("saved", "kv", "attend", "comm"),
    "leave": ("out", "attend", "comm"),
    "why_unsupported": ("workload", "mesh"),
}


def identity(x: Any, *_: Any) -> Any:
    return x


@dataclass(frozen=True)
class Scheme:
    """A published way for each shard of queries to attend to every shard of keys and values.

    `attend` is the protocol of `core/attend.py` that the functions name in their signatures.

    enter((q, kv), attend, comm) -> (q, kv): how they move before attention; its transpose returns the gradients.
    forward(q, kv, attend, comm) -> state
    backward(saved, kv, attend, comm) -> (dq, dkv), or None: the transpose of forward. In place of kv it gets what
        forward gave to `comm.keep`, if anything.
    leave(out, attend, comm) -> out: how the output moves back to the place of the queries.
    why_unsupported(workload, mesh) -> why the scheme cannot run (`Reason.unsupported`), or None.
    """

    name: str
    paper: str
    axes: tuple[str, ...]
    forward: Callable[[Array, Array, Any, Comm], Array]
    title: str = ""  # its name in a sentence; by default `name`
    backward: Callable[[Array, Array, Any, Comm], tuple[Array, Array]] | None = None
    enter: Callable[[tuple[Array, Array], Any, Comm], tuple[Array, Array]] = identity
    leave: Callable[[Array, Any, Comm], Array] = identity
    layouts: tuple[str, ...] | None = None  # None: every layout
    # The families of kernels that it supports, the default first.
    kernel_families: tuple[str, ...] = ("softmax", "linear")
    # Axes without which it is another scheme; `every mesh` skips meshes where they have one device.
    degenerate_axes: tuple[str, ...] = ()
    row_axes: tuple[str, ...] = ()  # axes that shard the rows of queries and output, in addition to the sequence axes
    # As many queries as keys, or fewer: sharded, or whole on each shard.
    query_sharding: Literal["all", "sharded", "whole"] = "all"
    sends_halos: bool = False  # only keys that a window reaches, from runs of adjacent positions
    splits_kv: bool = False  # gathers K/V in as many parts as the plan's `parts` says
    chunk: int | None = None  # rows that a step's feed-forward computes at once, unless a plan says otherwise; 0 is all
    why_unsupported: Callable[[Any, Mapping[str, int]], Reason | None] = lambda workload, mesh: None

    def __post_init__(self) -> None:
        if isinstance(self.axes, str):
            raise TypeError(f"axes must be a tuple of mesh axes, such as ('ring',), not {self.axes!r}")
        for axis in self.axes:
            if axis not in AXES:
                raise ValueError(f"axes has {axis!r}, but the axes of a mesh are {', '.join(AXES)}")
        for name, arguments in ARGUMENTS.items():
            check_arguments(name, getattr(self, name), arguments)

    @property
    def sends_states(self) -> bool:
        """Whether all that shards tell each other are states of linear attention."""
        return self.kernel_families[0] == "linear"

    @property
    def default_layout(self) -> str:
        return self.layouts[0] if self.layouts else "striped"


def check_arguments(name: str, function: Callable[..., Any] | None, arguments: tuple[str, ...]) -> None:
    """Check that a function of a scheme can be called with these arguments.

    Raises:
        TypeError: it takes others.
    """
    if function is None:
        return
    signature = inspect.signature(function)
    try:
        signature.bind(*arguments)
    except TypeError:
        takes = ", ".join(signature.parameters)
        raise TypeError(f"{name} must take ({', '.join(arguments)}), but takes ({takes})") from None


schemes: Catalogue[Scheme] = Catalogue("stripectl.schemes", "scheme", "scheme")
"""The schemes, one file each; `stripectl.core.scheme.schemes` finds them by listing this folder."""
