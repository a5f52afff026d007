"""Token ring: keys stay, queries travel one way, partial outputs return the other way (Wang et al. 2024, TokenRing).

A device returns each partial output directly to the queries' device, h places away after h hops: one hop on a switch, h
links on a torus. In the backward pass the arrays that the queries need travel the same way, dQ returns as outputs did,
and dK/dV are summed on their device. With grouped heads, queries and outputs are larger than the K/V that a ring sends.
Where a sliding window ends the ring, queries travel in the direction that reaches their keys first.
"""

from stripectl.core.attend import PartialAttend
from stripectl.core.comm import Array, Comm
from stripectl.core.scheme import Scheme


def journey(attend: PartialAttend) -> tuple[int, int]:
    """(rounds, the direction in which results return: 1 forward, -1 backward, where queries came from)."""
    return min((attend.rounds(back), back) for back in (-1, 1))


def forward(q: Array, kv: Array, attend: PartialAttend, comm: Comm) -> Array:
    shards, me, (rounds, back) = comm.size("ring"), comm.index("ring"), journey(attend)
    arriving = comm.shift(q, "ring", "q", by=-back) if rounds > 1 else q
    state = attend(q, kv, me, me, into=attend.empty(q))
    for hop in range(1, rounds):
        guest = arriving
        arriving = comm.shift(guest, "ring", "q", by=-back) if hop < rounds - 1 else guest
        found = attend(guest, kv, (me + back * hop) % shards, me, into=attend.empty(guest))
        home = comm.shift(attend.partial(guest, found), "ring", "out", by=back * hop)
        state = attend.merge(state, home)
    return state


def backward(saved: Array, kv: Array, attend: PartialAttend, comm: Comm) -> tuple[Array, Array]:
    shards, me, (rounds, back) = comm.size("ring"), comm.index("ring"), journey(attend)
    arriving = comm.shift(saved, "ring", "q", by=-back) if rounds > 1 else saved
    dq, dkv = attend.backward(saved, kv, me, me, into=attend.zeros(saved))
    for hop in range(1, rounds):
        guest = arriving
        arriving = comm.shift(guest, "ring", "q", by=-back) if hop < rounds - 1 else guest
        found, part = attend.backward(guest, kv, (me + back * hop) % shards, me, into=attend.zeros(guest))
        dq, dkv = attend.add(dq, comm.shift(found, "ring", "dq", by=back * hop)), attend.add(dkv, part)
    return dq, dkv


scheme = Scheme(
    "token_ring",
    title="TokenRing attention",
    paper="https://arxiv.org/abs/2412.20501",
    axes=("ring",),
    forward=forward,
    backward=backward,
)
