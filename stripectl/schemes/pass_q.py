"""Ring pass-Q: keys stay, queries travel round the ring, and partial outputs return at the end (Yang et al. 2024).

There are N-1 hops of queries, which can hide behind the tiles, then an all-to-all of outputs and log-sum-exps, which
cannot. Queries are sharded as in pass-KV, and travel backward, so that a sliding window ends their ring too; the few
results then return directly. It is the better ring where a cached prefix is long: `pass_rule`.
"""

from typing import Protocol

from stripectl.core.attend import PartialAttend, RowsAttend
from stripectl.core.comm import ROWS, Array, Comm
from stripectl.core.scheme import Scheme


class PassQAttend(PartialAttend, RowsAttend, Protocol):
    pass


def forward(q: Array, kv: Array, attend: PassQAttend, comm: Comm) -> Array:
    shards, me, rounds = comm.size("ring"), comm.index("ring"), attend.rounds()
    found, guest = list[Array](), q
    for hop in range(rounds):
        here = guest
        guest = comm.shift(here, "ring", "q", by=-1) if hop < rounds - 1 else here
        state = attend(here, kv, (me + hop) % shards, me, into=attend.empty(here))
        found.append(attend.partial(here, state))
    if rounds == shards:  # the results of devices me, me+1, ...; rotated they are the results of 0, 1, ...
        by_owner = attend.rotate_rows(attend.join(found), shards, me)
        arrived = attend.split(comm.all_to_all(by_owner, "ring", "out", split=ROWS, join=ROWS), shards)
    else:
        arrived = [comm.shift(result, "ring", "out", by=hop) for hop, result in enumerate(found)]
    state = attend.empty(q)
    for result in arrived:
        state = attend.merge(state, result)
    return state


scheme = Scheme(
    "pass_q",
    title="pass-Q ring attention",
    paper="https://arxiv.org/abs/2411.01783",
    axes=("ring",),
    forward=forward,
    query_sharding="sharded",
)
