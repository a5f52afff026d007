"""Ring pass-KV: the ring for inference, where new queries meet a cached prefix too (Yang et al. 2024).

Keys and values travel as in training, the cache's with the new ones. Queries are dealt to the shards, or where they are
few, as when decoding, the requests of the batch are. The better one of the two where queries are many: `pass_rule`.
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
