"""Tree attention: keys stay, every device has all queries, and a tree reduces results (Shyam et al. 2024).

For decoding: each device attends to its shard of the cache; then the maximum score, the sum of exponentials and the
output are reduced over all shards. The bytes sent depend only on the queries. Where a switch joins any two devices, a
reduction takes log2(devices) steps, and a ring one step per device. On a ring of a torus the steps cross more and more
links, as many in total as there are devices, and three reductions are no faster than a ring.
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
