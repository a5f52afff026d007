"""All-gather: every device gathers all keys and values, then attends (Llama 3, section 3.3.2).

It uses a few collectives instead of N-1 hops, and holds the whole K/V in memory. The K/V are gathered at once, or with
`parts=n` in n parts of every shard's rows; the gather of each part can hide behind the tiles of the part before. The
backward pass is the transpose: gathers become reduce-scatters of dK/dV. All K/V are gathered, including keys that a
window leaves unread.
"""

from stripectl.core.attend import RowsAttend
from stripectl.core.comm import Array, Comm, Index
from stripectl.core.scheme import Scheme


def forward(q: Array, kv: Array, attend: RowsAttend, comm: Comm) -> Array:
    shards, me = comm.size("ring"), comm.index("ring")
    q, state = attend.query(q), attend.empty(q)
    pieces = [*attend.split(kv, comm.parts), None]
    arriving = comm.all_gather(pieces[0], "ring", "kv")
    for i, following in enumerate(pieces[1:]):
        everything = arriving
        arriving = following and comm.all_gather(following, "ring", "kv")

        def round(hop: Index, state: Array, i: int = i, everything: Array = everything) -> Array:
            src = (me - hop) % shards
            return attend(q, comm.select(everything, src), me, src, into=state, part=(i, comm.parts))

        state = comm.loop(0, shards, round, state)
    return state


scheme = Scheme(
    "all_gather",
    title="all-gather attention",
    paper="https://arxiv.org/abs/2407.21783",
    axes=("ring",),
    forward=forward,
    splits_kv=True,
)
