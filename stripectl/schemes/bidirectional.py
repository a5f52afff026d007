"""Bidirectional ring: half of each shard's keys and values travels forward, half backward (Wang et al. 2023).

A full-duplex link carries both directions at once, so a hop takes half the time of a ring's hop; there are N-1 hops in
each direction. The halves are rows of a shard, forward and backward; every round computes one half from either side.
Where a sliding window ends the ring for keys that travel forward, keys that travel backward would have to go all the
way round, so this scheme is then a plain ring.
"""

from collections.abc import Mapping

from stripectl.core.attend import RowsAttend
from stripectl.core.comm import Array, Comm, Index
from stripectl.core.reason import Reason
from stripectl.core.scheme import Scheme
from stripectl.core.workload import Workload
from stripectl.schemes import ring
from stripectl.schemes.ring import Move, mover, ring_rounds, ring_rounds_backward

WAYS = (1, -1)


def both(comm: Comm) -> Move:
    """How keys travel: each half in its own direction."""
    ways = [mover(comm, "ring", by) for by in WAYS]

    def move(halves: Array, what: str, places: int = 1) -> Array:
        return tuple(way(x, what, places) for way, x in zip(ways, halves, strict=True))

    return move


def one_way(attend: RowsAttend) -> bool:
    return attend.rounds(1) < attend.rounds(-1)


def forward(q: Array, kv: Array, attend: RowsAttend, comm: Comm) -> Array:
    if one_way(attend):
        return ring.forward(q, kv, attend, comm)
    shards, me = comm.size("ring"), comm.index("ring")

    def meet(hop: Index, halves: tuple[Array, Array], state: Array) -> Array:
        for i, (by, half) in enumerate(zip(WAYS, halves, strict=True)):
            state = attend(q, half, me, (me - by * hop) % shards, into=state, part=(i, len(WAYS)))
        return state

    return ring_rounds(comm, attend.rounds(), both(comm), meet, tuple(attend.split(kv, len(WAYS))), attend.empty(q))


def backward(saved: Array, kv: Array, attend: RowsAttend, comm: Comm) -> tuple[Array, Array]:
    if one_way(attend):
        return ring.backward(saved, kv, attend, comm)
    shards, me = comm.size("ring"), comm.index("ring")

    def meet(hop: Index, halves: tuple[Array, Array], dq: Array) -> tuple[Array, tuple[Array, ...]]:
        found = list[Array]()
        for i, (by, half) in enumerate(zip(WAYS, halves, strict=True)):
            dq, part = attend.backward(saved, half, me, (me - by * hop) % shards, into=dq, part=(i, len(WAYS)))
            found.append(part)
        return dq, tuple(found)

    halves, zeros = tuple(attend.split(kv, len(WAYS))), attend.zeros(saved)
    dq, found = ring_rounds_backward(comm, attend.rounds(), both(comm), meet, attend.add, halves, zeros)
    return dq, attend.join(found)


def why_unsupported(workload: Workload, mesh: Mapping[str, int]) -> Reason | None:
    shards = mesh.get("ring", 1)
    rows = workload.seq_len // shards
    hint = f"Try --seqlen {(rows + 1) * shards}."
    return Reason.unsupported(f"the {rows} rows of a shard do not divide into two halves", hint) if rows % 2 else None


scheme = Scheme(
    "bidirectional",
    title="bidirectional ring attention",
    paper="https://doi.org/10.1145/3567955.3567959",
    axes=("ring",),
    forward=forward,
    backward=backward,
    why_unsupported=why_unsupported,
)
