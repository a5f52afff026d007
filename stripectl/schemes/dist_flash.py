"""DistFlashAttn: devices that a causal mask leaves idle compute for loaded devices (Li et al. 2023, LightSeq).

In step t = 1 to N/2 a device attends to the keys of the device t places before it. The first t devices have no such
keys: each instead takes the queries of the device N-t places after it, computes them with its own keys, and returns the
result. This gives N/2 steps, not N, and all devices are busy in every step, except half of them in the last step when N
is even. The backward pass mirrors it: dK/dV return to the source of K/V and dQ to the source of the queries. In every
step some devices send keys and the others queries; both are counted, because a program contains both. A sliding window
skips the steps that it does not reach.
"""

from collections.abc import Iterator, Mapping

from stripectl.core.attend import PartialAttend
from stripectl.core.comm import Array, Comm, Index
from stripectl.core.reason import Reason
from stripectl.core.scheme import Scheme
from stripectl.core.workload import Workload


def steps(
    attend: PartialAttend, comm: Comm, kv: Array, queries: Array
) -> Iterator[tuple[int, bool, Index, Array, Index, Array, Index]]:
    """Each step as (step, whether any device helps, whether this device helps, the queries it computes, their shard,
    the keys, their shard)."""
    shards, me, rounds = comm.size("ring"), comm.index("ring"), attend.rounds()
    last = min(shards // 2, rounds - 1)

    def helped(step: int) -> bool:
        return shards / 2 < shards - step < rounds

    def fetch(step: int) -> tuple[Array, Array]:
        kvs = comm.shift(kv, "ring", "kv", by=step, senders=lambda i: i + step < shards)
        if not helped(step):
            return kvs, queries
        return kvs, comm.shift(queries, "ring", "q", by=step, senders=lambda i: i + step >= shards)

    here = kv, queries
    for step in range(last + 1):
        arriving = fetch(step + 1) if step < last else here
        (keys, guest), helps, other = here, (me < step) & helped(step), (me - step) % shards
        if step == 0:
            yield 0, False, helps, queries, me, kv, me
        else:
            met = comm.where(helps, guest, queries), comm.where(helps, other, me)
            yield step, helped(step), helps, *met, comm.where(helps, kv, keys), comm.where(helps, me, other)
        here = arriving


def forward(q: Array, kv: Array, attend: PartialAttend, comm: Comm) -> Array:
    shards, me = comm.size("ring"), comm.index("ring")
    state = attend.empty(q)
    for step, helped, helps, queries, who, keys, which in steps(attend, comm, kv, q):
        if step == 0:
            state = attend(q, kv, me, me, into=state)
            continue
        found = attend(queries, keys, who, which, into=comm.where(helps, attend.empty(q), state))
        state = comm.where(helps, state, found)
        if helped:
            result = attend.partial(queries, found)
            home = comm.shift(result, "ring", "out", by=-step, senders=lambda i, step=step: i < step)
            state = comm.where(me >= shards - step, attend.merge(state, home), state)
    return state


def backward(saved: Array, kv: Array, attend: PartialAttend, comm: Comm) -> tuple[Array, Array]:
    me = comm.index("ring")
    dq, dkv = attend.zeros(saved), None
    for step, helped, helps, queries, who, keys, which in steps(attend, comm, kv, saved):
        if step == 0:
            dq, dkv = attend.backward(saved, kv, me, me, into=dq)
            continue
        found, part = attend.backward(queries, keys, who, which, into=comm.where(helps, attend.zeros(saved), dq))
        home = comm.shift(part, "ring", "dkv", by=-step, senders=lambda i, step=step: i >= step)
        dkv = attend.add(comm.where(helps, attend.add(dkv, part), dkv), home)
        dq = comm.where(helps, dq, found)
        if helped:
            dq = attend.add(dq, comm.shift(found, "ring", "dq", by=-step, senders=lambda i, step=step: i < step))
    return dq, dkv


def why_unsupported(workload: Workload, mesh: Mapping[str, int]) -> Reason | None:
    if workload.window.right == 0:
        return None
    return Reason.unsupported(
        "dist_flash balances causal masks; without one, all devices have equal loads", "Try --scheme ring."
    )


scheme = Scheme(
    "dist_flash",
    title="DistFlashAttn",
    paper="https://arxiv.org/abs/2310.03294",
    axes=("ring",),
    forward=forward,
    backward=backward,
    layouts=("contiguous",),
    why_unsupported=why_unsupported,
)
