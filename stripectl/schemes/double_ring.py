"""Double ring: rings within a ring (Gu et al. 2024, LoongTrain, section 4.3), with heads as a third axis.

Keys and values travel round the devices of `inner`, the fast links, and after each inner circle one place along
`outer`, the slow links; this hop can hide behind the whole inner circle. With N = outer x inner shards there are
outer (inner - 1) inner hops and outer - 1 outer hops. In the backward pass dK/dV return after every inner circle before
they continue: outer x inner inner hops, and outer outer hops. A sliding window skips the circles that it does not
reach, and the hops of the last circle likewise. With an axis `ulysses`, all-to-alls first exchange rows for heads of
queries, keys and values: the paper's 2D attention.
"""

from collections.abc import Callable

from stripectl.core.attend import Attend
from stripectl.core.comm import Array, Comm, Index
from stripectl.core.scheme import Scheme
from stripectl.schemes import ulysses
from stripectl.schemes.ring import Meet, mover, ring_rounds, ring_rounds_backward


def places(comm: Comm) -> tuple[Index, Callable[[Index, Index], Index]]:
    """(this shard, source(turn, hop): the shard whose keys are here at that time)."""
    outers, inners = comm.size("outer"), comm.size("inner")
    outer, inner = comm.index("outer"), comm.index("inner")

    def source(turn: Index, hop: Index) -> Index:
        return (outer - turn) % outers * inners + (inner - hop) % inners

    return outer * inners + inner, source


def circles(attend: Attend, comm: Comm) -> tuple[int, int, int]:
    """(number of circles, rounds per circle, rounds of the last circle). Turn t and hop h bring keys from t inner + h
    places before, or, where the inner ring has wrapped round, from (t - 1) inner + h."""
    reach, inners = attend.rounds(), comm.size("inner")
    turns = min(1 + -(-(reach - 1) // inners), comm.size("outer"))
    return turns, min(reach, inners), min(reach - max(turns - 2, 0) * inners, inners)


def forward(q: Array, kv: Array, attend: Attend, comm: Comm) -> Array:
    (me, source), (turns, rounds, last) = places(comm), circles(attend, comm)

    def circle(rounds: int) -> Callable[[Index, Array, Array], Array]:
        def turned(turn: Index, kv: Array, state: Array) -> Array:
            def meet(hop: Index, kv: Array, state: Array) -> Array:
                return attend(q, kv, me, source(turn, hop), into=state)

            return ring_rounds(comm, rounds, mover(comm, "inner"), meet, kv, state)

        return turned

    return ring_rounds(comm, turns, mover(comm, "outer"), circle(rounds), kv, attend.empty(q), last=circle(last))


def backward(saved: Array, kv: Array, attend: Attend, comm: Comm) -> tuple[Array, Array]:
    (me, source), (turns, rounds, last) = places(comm), circles(attend, comm)

    def circle(rounds: int) -> Meet:
        def turned(turn: Index, kv: Array, dq: Array) -> tuple[Array, Array]:
            def meet(hop: Index, kv: Array, dq: Array) -> tuple[Array, Array]:
                return attend.backward(saved, kv, me, source(turn, hop), into=dq)

            return ring_rounds_backward(comm, rounds, mover(comm, "inner"), meet, attend.add, kv, dq)

        return turned

    move, zeros = mover(comm, "outer"), attend.zeros(saved)
    return ring_rounds_backward(comm, turns, move, circle(rounds), attend.add, kv, zeros, last=circle(last))


scheme = Scheme(
    "double_ring",
    title="double-ring attention",
    paper="https://arxiv.org/abs/2406.18485",
    axes=("outer", "inner", "ulysses"),
    degenerate_axes=("outer", "inner"),
    forward=forward,
    backward=backward,
    enter=ulysses.enter,
    leave=ulysses.leave,
    why_unsupported=ulysses.why_unsupported,
)
