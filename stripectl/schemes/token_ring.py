"""Token ring: keys stay, queries travel one way, partial outputs the other way home (Wang et al. 2024, TokenRing).

What a device finds for its guests goes straight back to whom it belongs to, h places after h hops: on a switch that is
one hop, on a torus h links. Backward, what the queries need travels the same way, dQ comes home as outputs did, and
dK/dV add up where they stay. Over grouped heads queries and outputs are larger than the K/V that a ring sends. Where a
sliding window ends the ring, queries travel the way that meets their keys first.
"""

from stripectl.core.attend import PartialAttend
from stripectl.core.comm import Array, Comm
from stripectl.core.scheme import Scheme


def journey(attend: PartialAttend):
    """(rounds, the way that results go home: 1 onward, -1 back, where queries came from)."""
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
