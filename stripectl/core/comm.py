"""Communication between the devices of a mesh, as schemes call it, without JAX.

`execute` implements it with JAX's collectives, `simulate` with clocks.
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar

Array = Any  # a JAX array or, in a simulation, a shape and the time at which it is ready
Index = Any  # an int, a tracer or, in a simulation, a vector over devices
Tree = TypeVar("Tree")  # a pytree of arrays
HEADS, ROWS, ELEMENTS = 1, 2, 3  # dimensions of (batch, heads, rows, head_dim)


class Shifts(Protocol):
    """Shifts along a named axis of the mesh. They take and return pytrees. `what` names the content of a transfer:
    profiles distinguish transfers by this name."""

    def size(self, axis: str) -> int: ...

    def index(self, axis: str) -> Index: ...

    def shift(
        self, x: Tree, axis: str, what: str = "", by: int = 1, senders: Callable[[int], bool] | None = None
    ) -> Tree:
        """Send x to the device `by` places further round the ring and receive from the device as many places before.
        With `senders`, the other devices send nothing, and a device that receives nothing gets zeros."""
        ...

    def where(self, condition: Index, x: Tree, y: Tree) -> Tree:
        """x on the devices for which the condition holds, y on the others."""
        ...


class Comm(Shifts, Protocol):
    """Collectives along a named axis of the mesh, called like shifts."""

    @property
    def parts(self) -> int:
        """The number of parts in which the plan gathers."""
        ...

    def all_gather(self, x: Tree, axis: str, what: str = "", join: int | None = None) -> Tree:
        """The x of every device, stacked along a new leading dimension, or concatenated along the dimension `join`."""
        ...

    def all_to_all(self, x: Tree, axis: str, what: str = "", *, split: int, join: int) -> Tree:
        """Cut x along the dimension `split`, one part per device; concatenate the received parts along `join`."""
        ...

    def reduce_scatter(self, x: Tree, axis: str, what: str = "", split: int | None = None) -> Tree:
        """The sum over devices, of which each device keeps its own part: a block of a stack, or a part along the
        dimension `split`."""
        ...

    def reduce(self, x: Tree, axis: str, what: str = "", *, by: Literal["sum", "max"]) -> Tree:
        """The sum or the maximum over devices, on all of them."""
        ...

    def select(self, stacked: Tree, index: Index) -> Tree:
        """One block of a stack."""
        ...

    def replace(self, stacked: Tree, index: Index, block: Tree) -> Tree:
        """The stack with another block in one place, in the stack's dtype."""
        ...

    def keep(self, x: Any) -> None:
        """Keep x, which no loop has made, from the forward to the backward pass. The backward pass gets a tuple of all
        that was kept in place of kv."""
        ...

    def loop(self, first: int, last: int, body: Callable[[Index, Tree], Tree], state: Tree) -> Tree:
        """`state = body(i, state)` for i in [first, last), rolled or unrolled by the plan."""
        ...
