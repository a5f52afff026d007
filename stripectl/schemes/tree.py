"""Tree attention: keys stay, every device has all queries, and results are reduced as a tree (Shyam et al. 2024).

For decoding: a query meets each shard of the cache where that lies, then the largest score, the sum of exponentials and
the output are reduced over all shards. What is sent depends on the queries alone, and where a switch joins any two
devices a reduction takes as many steps as the logarithm of them, where a ring takes as many as there are. Along a ring
of a torus the steps cross ever more links, as many in all as there are devices, and three reductions are no faster.
"""

from stripectl.core.attend import PartialAttend
from stripectl.core.comm import Array, Comm
from stripectl.core.scheme import Scheme


def forward(q: Array, kv: Array, attend: PartialAttend, comm: Comm) -> Array:
    state = attend(q, kv, 0, comm.index("ring"), into=attend.empty(q))
    largest = comm.reduce(attend.maximum(state), "ring", "max", by="max")
    return attend.from_sum(comm.reduce(attend.rescale(state, largest), "ring", "sum", by="sum"), largest)


scheme = Scheme(
    "tree",
    title="tree attention",
    paper="https://arxiv.org/abs/2408.04093",
    axes=("ring",),
    forward=forward,
    layouts=("contiguous",),
    query_sharding="whole",
)
