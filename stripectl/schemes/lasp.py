"""LASP: the state of linear attention travels from shard to shard (Sun et al. 2024).

The tokens of a shard map a state S of key size x value size per head to A S + B, however many tokens there are. The
state before its shard reaches each device in N-1 hops, one after another. During each hop a device computes a part of
its own queries and keys, which needs no state. Where gates depend on the input there is no such part: outputs wait for
the state. In the backward pass the gradient of the state travels the other way, and the state before a shard is either
kept from the forward pass or sent again. Because all devices run one program, all of them send in every hop, including
states that are not complete yet. Under a full mask states go around the whole ring.
"""

from collections.abc import Callable

from stripectl.core.attend import LinearAttend
from stripectl.core.comm import Array, Comm, Index
from stripectl.core.scheme import Scheme

# exchange(own map, attend, comm, by, work, made) -> (the state that the maps of all shards before this one make, or all
# shards after it with by=-1; the last result of work(part, made), which computes a part of this device's own work).
Work = Callable[[tuple[Index, int], Array], Array]
Exchange = Callable[[Array, LinearAttend, Comm, int, Work, Array], tuple[Array, Array]]


def nothing(part: tuple[Index, int], made: Array) -> Array:
    """No work during an exchange."""
    return made


def chain(own: Array, attend: LinearAttend, comm: Comm, by: int, work: Work, made: Array) -> tuple[Array, Array]:
    """An exchange in N-1 hops, with one part of the work during each."""
    shards = comm.size("ring")
    senders: Callable[[int], bool] | None = None if attend.sees_future else lambda i: 0 <= i + by < shards

    def hop(index: Index, sent: Array, made: Array) -> tuple[Array, Array]:
        arriving = comm.shift(sent, "ring", "state", by=by, senders=senders)
        return arriving, work((index, shards - 1), made)

    def round(index: Index, carried: tuple[Array, Array]) -> tuple[Array, Array]:
        arriving, made = hop(index, *carried)
        return attend.advance_state(arriving, own), made

    return hop(shards - 2, *comm.loop(0, shards - 2, round, (attend.state_of(own), made)))


def forward(q: Array, kv: Array, attend: LinearAttend, comm: Comm, exchange: Exchange = chain) -> Array:
    me = comm.index("ring")
    if comm.size("ring") == 1:
        return attend(q, kv, me, me, into=attend.empty(q))

    def local(part: tuple[Index, int], state: Array) -> Array:
        return attend.local_part(q, kv, me, part, into=state)

    before, state = exchange(attend.map_of(kv), attend, comm, 1, local, attend.empty(q))
    return attend.apply(q, kv, before, into=state)


def backward(
    saved: Array, kv: Array, attend: LinearAttend, comm: Comm, exchange: Exchange = chain
) -> tuple[Array, Array]:
    me = comm.index("ring")
    if comm.size("ring") == 1:
        return attend.backward(saved, kv, me, me, into=attend.zeros(saved))

    def local(part: tuple[Index, int], dq: Array) -> Array:
        return attend.local_part_backward(saved, kv, me, part, into=dq)

    before = attend.saved_state(saved)
    if before is None:
        before, _ = exchange(attend.map_of(kv), attend, comm, 1, nothing, ())
    behind, dq = exchange(attend.transposed_map_of(saved, kv), attend, comm, -1, local, attend.zeros(saved))
    return attend.state_backward(saved, kv, before, behind, into=(dq, attend.keys_backward(saved, kv, me)))


scheme = Scheme(
    "lasp",
    title="LASP",
    paper="https://arxiv.org/abs/2404.02882",
    axes=("ring",),
    forward=forward,
    backward=backward,
    layouts=("contiguous",),
    kernel_families=("linear", "gated"),
)
