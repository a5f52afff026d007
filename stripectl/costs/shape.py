"""The shape of a tile: the inputs of its cost other than the machine."""

from typing import NamedTuple

from stripectl.core.kernel import Kernel, kernels
from stripectl.core.layout import Tile
from stripectl.core.mesh import BATCH_AXES, HEAD_AXES
from stripectl.core.plan import Plan
from stripectl.core.workload import Workload


class Heads(NamedTuple):
    """The sizes of key and value heads: written `192/128`, or `128` where they are equal."""

    keys: int
    values: int

    @classmethod
    def read(cls, text: object) -> "Heads":
        """The sizes in a table."""
        keys, _, values = str(text).partition("/")
        return cls(int(keys), int(values or keys))


class TileShape(NamedTuple):
    """A tile of a kernel in a pass, on a device with `kv_heads` key/value heads that `group` query heads each share."""

    kernel: str
    dtype: str
    heads: Heads
    tile: Tile
    recurrence: str = ""
    passes: str = "forward"
    kv_heads: int = 1
    group: int = 1

    @classmethod
    def of(cls, workload: Workload, plan: Plan, passes: str) -> "TileShape":
        """The shape of a plan's tile in a pass."""
        dealt = plan.product((*HEAD_AXES, *BATCH_AXES, "ulysses"))
        return cls(
            kernel=plan.kernel,
            dtype=workload.dtype,
            heads=Heads(workload.head_dim, workload.value_dim),
            tile=kernels[plan.kernel].shortest_name(plan.tiles[passes]),
            recurrence=workload.recurrence if workload.attention == "linear" else "",
            passes=passes,
            kv_heads=max(1, workload.kv_heads * workload.batch // dealt),
            group=workload.heads // workload.kv_heads,
        )

    @property
    def computed_by(self) -> Kernel:
        """The kernel that computes the tile; a kernel that sends hops may compute the tiles of another."""
        return kernels[kernels[self.kernel].computes(self.passes)]

    @property
    def costs_of(self) -> str:
        """The kernel that computes the tile, and the recurrence that it computes."""
        name = self.computed_by.name
        return f"{name}/{self.recurrence}" if self.recurrence else name

    @property
    def head_dim(self) -> int:
        return self.heads.keys

    def with_heads(self, size: int) -> "TileShape":
        return self._replace(heads=Heads(size, size))


def shapes_of(workload: Workload, plan: Plan) -> dict[str, TileShape]:
    """The shapes of a plan's tiles, by pass."""
    return {passes: TileShape.of(workload, plan, passes) for passes in workload.kernel_passes}
