"""Ring pass-KV: the ring for inference, where new queries also attend to a cached prefix (Yang et al. 2024).

Keys and values travel as in training, cached and new together. Queries are sharded; where there are too few, as in
decoding, the batch's requests are sharded instead. It is the better ring where queries are many: `pass_rule`.
"""

from stripectl.core.scheme import Scheme
from stripectl.schemes import ring

scheme = Scheme(
    "pass_kv",
    title="pass-KV ring attention",
    paper="https://arxiv.org/abs/2411.01783",
    axes=("ring",),
    forward=ring.forward,
    query_sharding="sharded",
)
