"""Double ring: rings within a ring (Gu et al. 2024, LoongTrain, section 4.3), with heads as a third axis.

Keys and values go round the devices of `inner`, the fast links, and after each such circle one place along `outer`,
the slow ones; that hop can hide behind the whole inner circle. Over N = outer x inner shards outer (inner - 1) hops are
inner ones and outer - 1 outer ones; backward, dK/dV come home from every inner circle before they go on, outer x inner
hops and outer. With an axis `ulysses` queries, keys and values first change rows for heads, the paper's 2D attention.
"""

from stripectl.scheme import Scheme
from stripectl.schemes import ulysses
from stripectl.schemes.ring import around, around_and_home, onward


def places(comm):
    """(this shard, source(turn, hop): the shard whose keys are here then)."""
    outers, inners = comm.size("outer"), comm.size("inner")
    outer, inner = comm.index("outer"), comm.index("inner")

    def source(turn, hop):
        return (outer - turn) % outers * inners + (inner - hop) % inners

    return outer * inners + inner, source


def forward(q, kv, attend, comm):
    me, source = places(comm)

    def circle(turn, kv, state):
        def meet(hop, kv, state):
            return attend(q, kv, me, source(turn, hop), into=state)

        return around(comm, comm.size("inner"), onward(comm, "inner"), meet, kv, state)

    return around(comm, comm.size("outer"), onward(comm, "outer"), circle, kv, attend.empty(q))


def backward(saved, kv, attend, comm):
    me, source = places(comm)

    def circle(turn, kv, dq):
        def meet(hop, kv, dq):
            return attend.backward(saved, kv, me, source(turn, hop), into=dq)

        return around_and_home(comm, comm.size("inner"), onward(comm, "inner"), meet, attend.add, kv, dq)

    zeros = attend.zeros(saved)
    return around_and_home(comm, comm.size("outer"), onward(comm, "outer"), circle, attend.add, kv, zeros)


scheme = Scheme(
    "double_ring",
    paper="https://arxiv.org/abs/2406.18485",
    axes=("outer", "inner", "ulysses"),
    itself=("outer", "inner"),
    forward=forward,
    backward=backward,
    enter=ulysses.enter,
    leave=ulysses.leave,
    unsupported=ulysses.unsupported,
)
