"""xla: flash-style tile loops in plain JAX, compiled by XLA for any backend (Rabe and Staats 2021; Dao 2023).

Whole tiles run without a mask, boundary tiles apply it, and dead tiles are never visited. The kernel iterates over
heads, so that a tile stays in cache and the cost is linear in heads; grouped-query heads read their key/value head in
place.
"""

from stripectl.core.kernel import MIN_TILE_ROWS, Kernel
from stripectl.core.kernel_costs import KernelCosts
from stripectl.core.layout import Tile

# cpu: fastest for both passes together at head_dim 128, benchmarks/README.md "Tiles of the xla kernel on a CPU core".
# tpu, gpu: from the tile sizes of the striped attention paper, section 3.1.
DEFAULTS = {"cpu": Tile(256, 256), "tpu": Tile(2048, 4096), "gpu": Tile(2048, 2048)}
# On a TPU smaller tiles take up to 17 times as long: benchmarks/README.md "Tiles of the xla kernel on TPUs". On a GPU
# each tile launches several programs.
MIN_DEFAULT_ROWS = {"cpu": MIN_TILE_ROWS, "tpu": 1024, "gpu": 1024}

about = Kernel(
    "xla",
    paper="https://arxiv.org/abs/2112.05682",
    family="softmax",
    default_tile=lambda kind: DEFAULTS[kind],
    caps_scores=True,
    min_default_rows=lambda kind: MIN_DEFAULT_ROWS[kind],
    costs=KernelCosts(
        query_copies={"forward": 1, "backward": 1},  # the scaled queries
        saved_score_tiles={"forward": 2, "backward": 4},  # scores and weights, and their gradients
    ),
)
