"""Small tiles: the loop of xla with small default tiles (an example of a kernel)."""

from dataclasses import replace

from stripectl.core.layout import Tile
from stripectl.kernels.xla import about as xla

about = replace(
    xla,
    name="small_tiles",
    paper="https://nowhere.example/kernel",
    default_tile=lambda kind: Tile(64, 64),
    costs=replace(xla.costs, tile_costs_of={"forward": "xla", "backward": "xla"}),
)
