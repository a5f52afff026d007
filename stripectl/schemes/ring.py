"""Ring attention: queries stay, keys and values travel once round the ring (Liu, Zaharia, Abbeel 2023).

With the contiguous layout this is ring attention, with the striped layout striped attention (Brandon et al. 2023), and
with the zigzag layout the second balanced form. The forward pass makes N-1 hops, because the last block need not
travel on; neither does a block outside the sliding window. In the backward pass dK/dV travel with K/V, and one more hop
returns them. A device adds its contribution after they have arrived, so both hops of a round can hide behind its tiles.

Packed documents do not end a ring early: their boundaries differ between batches, and a program is compiled once. A
window on the zigzag layout does not either, because its shards hold both ends of the sequence.
"""

from collections.abc import Callable

from stripectl.core.attend import Attend
from stripectl.core.comm import Array, Comm, Index
from stripectl.core.scheme import Scheme

Move = Callable[..., Array]  # move(x, what, by) sends to the next device of a ring, or with by = -1 to the previous one
Meet = Callable[[Index, Array, Array], tuple[Array, Array]]  # (hop, kv, dq) -> (dq, contribution to dkv)


def mover(comm: Comm, axis: str, by: int = 1) -> Move:
    """How keys travel along an axis."""

    def move(x: Array, what: str, places: int = 1) -> Array:
        return comm.shift(x, axis, what, by=by * places)

    return move


def ring_rounds(
    comm: Comm,
    rounds: int,
    move: Move,
    meet: Callable[[Index, Array, Array], Array],
    kv: Array,
    state: Array,
    *,
    last: Callable[[Index, Array, Array], Array] | None = None,
) -> Array:
    """The state after `meet(hop, kv, state)` in every round, on the arrays that `move` brings; `last` replaces `meet`
    in the last round."""

    def round(hop: Index, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        kv, state = carry
        return move(kv, "kv"), meet(hop, kv, state)

    kv, state = comm.loop(0, rounds - 1, round, (kv, state))
    return (last or meet)(rounds - 1, kv, state)


def ring_rounds_backward(
    comm: Comm,
    rounds: int,
    move: Move,
    meet: Meet,
    add: Callable[[Array, Array], Array],
    kv: Array,
    dq: Array,
    *,
    last: Meet | None = None,
) -> tuple[Array, Array]:
    """(dq, dkv), dkv on the device of kv, from (dq, contribution to dkv) = `meet(hop, kv, dq)` in every round; `last`
    replaces `meet` in the last round."""

    def later(meet: Meet, hop: Index, kv: Array, dq: Array, dkv: Array) -> tuple[Array, Array]:
        dkv = move(dkv, "dkv")
        dq, part = meet(hop, kv, dq)
        return dq, add(dkv, part)

    def round(hop: Index, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        kv, dq, dkv = carry
        return move(kv, "kv"), *later(meet, hop, kv, dq, dkv)

    last = last or meet
    if rounds == 1:
        return last(0, kv, dq)
    arriving = move(kv, "kv")
    dq, dkv = meet(0, kv, dq)
    kv, dq, dkv = comm.loop(1, rounds - 1, round, (arriving, dq, dkv))
    dq, dkv = later(last, rounds - 1, kv, dq, dkv)
    return dq, move(dkv, "dkv", 1 - rounds)


def forward(q: Array, kv: Array, attend: Attend, comm: Comm) -> Array:
    shards, me = comm.size("ring"), comm.index("ring")

    def meet(hop: Index, kv: Array, state: Array) -> Array:
        return attend(q, kv, me, (me - hop) % shards, into=state)

    return ring_rounds(comm, attend.rounds(), mover(comm, "ring"), meet, kv, attend.empty(q))


def backward(saved: Array, kv: Array, attend: Attend, comm: Comm) -> tuple[Array, Array]:
    shards, me = comm.size("ring"), comm.index("ring")

    def meet(hop: Index, kv: Array, dq: Array) -> tuple[Array, Array]:
        return attend.backward(saved, kv, me, (me - hop) % shards, into=dq)

    rounds, zeros = attend.rounds(), attend.zeros(saved)
    return ring_rounds_backward(comm, rounds, mover(comm, "ring"), meet, attend.add, kv, zeros)


scheme = Scheme(
    "ring",
    title="ring attention",
    paper="https://arxiv.org/abs/2310.01889",
    axes=("ring",),
    forward=forward,
    backward=backward,
)
