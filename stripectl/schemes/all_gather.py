"""All-gather: every device gathers all keys and values, then attends (Llama 3, section 3.3.2).

It uses a few collectives instead of N-1 hops, and holds the whole K/V in memory. The K/V are gathered at once, or with
`parts=n` in n parts of every shard's rows; the gather of each part can hide behind the tiles of the part before. The
backward pass reads a block of the gathered K/V once, then writes the block's gradient in its place, so it holds no
second array of this size; a reduce-scatter returns dK/dV, in the dtype of K/V. All K/V are gathered, including keys
that a window leaves unread.
"""

from stripectl.core.attend import RowsAttend
from stripectl.core.comm import Array, Comm, Index
from stripectl.core.scheme import Scheme


def forward(q: Array, kv: Array, attend: RowsAttend, comm: Comm) -> Array:
    shards, me, state = comm.size("ring"), comm.index("ring"), attend.empty(q)
    pieces = [*attend.split(kv, comm.parts), None]
    arriving = comm.all_gather(pieces[0], "ring", "kv")
    for i, following in enumerate(pieces[1:]):
        everything = arriving
        arriving = following and comm.all_gather(following, "ring", "kv")

        def round(hop: Index, state: Array, i: int = i, everything: Array = everything) -> Array:
            src = (me - hop) % shards
            return attend(q, comm.select(everything, src), me, src, into=state, part=(i, comm.parts))

        state = comm.loop(0, shards, round, state)
        comm.keep(everything)
    return state


def backward(saved: Array, gathered: Array, attend: RowsAttend, comm: Comm) -> tuple[Array, Array]:
    shards, me, dq = comm.size("ring"), comm.index("ring"), attend.zeros(saved)
    found = list[Array]()
    for i, everything in enumerate(gathered):

        def round(hop: Index, state: tuple[Array, Array], i: int = i) -> tuple[Array, Array]:
            (dq, everything), src = state, (me - hop) % shards
            kv = comm.select(everything, src)
            dq, dkv = attend.backward(saved, kv, me, src, into=dq, part=(i, comm.parts))
            return dq, comm.replace(everything, src, dkv)

        dq, dkv = comm.loop(0, shards, round, (dq, everything))
        found.append(comm.reduce_scatter(dkv, "ring", "dkv"))
    return dq, attend.join(found)


scheme = Scheme(
    "all_gather",
    title="all-gather attention",
    paper="https://arxiv.org/abs/2407.21783",
    axes=("ring",),
    forward=forward,
    backward=backward,
    splits_kv=True,
)
