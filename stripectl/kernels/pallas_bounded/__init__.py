"""pallas_bounded: pallas_tpu whose forward pass needs no maxima of scores while these are bounded.

Where the norms of queries and keys bound the scores of a call, their powers of two neither overflow nor vanish in
float32, so tiles have no maximum, and nothing is rescaled. Where they do not, the call runs as in pallas_tpu. Both are
exact. The backward pass has no maxima.
"""

from dataclasses import replace
from functools import partial

from stripectl.core.kernel_costs import PallasKernel
from stripectl.kernels import pallas_tpu

FORWARD = "stripectl_bounded"  # the name of its kernel

about = replace(
    pallas_tpu.about,
    name="pallas_bounded",
    why_unsupported=partial(pallas_tpu.why_unsupported, "pallas_bounded"),
    # The scaled queries, and the weight of a query's only key, which is 1 where the maximum is subtracted.
    roundings=lambda head_dim: 3,
    costs=replace(
        pallas_tpu.about.costs,
        # The scaled queries, and the norms of queries and keys.
        moved_bytes_per_element={"forward": 6, "backward": 4},
        tile_costs_of={"backward": "pallas_tpu"},
        bundles={
            **pallas_tpu.about.costs.bundles,
            "forward": (PallasKernel(FORWARD, matmuls=2, only_live=True, blocks=2),),
        },
    ),
)
