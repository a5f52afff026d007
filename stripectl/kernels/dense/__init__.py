"""dense: all scores of a pair of shards in memory at once, as attention was before tiles (Vaswani et al. 2017).

It takes no tile: its tile is a whole piece of a shard. A pair with no live score is not computed.
"""

from stripectl.core.kernel import Kernel
from stripectl.core.kernel_costs import KernelCosts
from stripectl.core.layout import Tile

about = Kernel(
    "dense",
    paper="https://arxiv.org/abs/1706.03762",
    family="scores",
    default_tile=lambda kind: Tile(2**20, 2**20),
    caps_scores=True,
    costs=KernelCosts(
        # Scores, exponentials and weights are written and read; backward weights, dP and dS, and dS is read twice.
        score_touches={"forward": 4, "backward": 6},
    ),
)
