"""All-gather: every device gathers all keys and values at once, then attends (Llama 3, section 3.3.2).

One collective instead of N-1 hops, at the price of the whole K/V in memory. The backward pass is the transpose: the
gather becomes a reduce-scatter of dK/dV.
"""

from stripectl.scheme import Scheme


def forward(q, kv, attend, comm):
    shards, me = comm.size("ring"), comm.index("ring")
    q, everything = attend.query(q), comm.all_gather(kv, "ring", "kv")

    def round(hop, state):
        src = (me - hop) % shards
        return attend(q, comm.select(everything, src), me, src, into=state)

    return comm.loop(0, shards, round, attend.empty(q))


scheme = Scheme(
    "all_gather",
    paper="https://arxiv.org/abs/2407.21783",
    axes=("ring",),
    forward=forward,
)
