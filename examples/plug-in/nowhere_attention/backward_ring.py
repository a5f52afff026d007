"""Backward ring: a ring whose keys and values go one place back (an example of a scheme)."""

from stripectl.core.scheme import Scheme


def forward(q, kv, attend, comm):
    shards, me, state = comm.size("ring"), comm.index("ring"), attend.empty(q)
    for hop in range(shards):
        following = comm.shift(kv, "ring", "kv", by=-1) if hop < shards - 1 else kv
        state = attend(q, kv, me, (me + hop) % shards, into=state)
        kv = following
    return state


scheme = Scheme("backward_ring", paper="https://nowhere.example/ring", axes=("ring",), forward=forward)
