"""LASP: the state of linear attention travels from shard to shard (Sun et al. 2024).

A shard's keys add up to a state of head_dim x head_dim a head, whatever its length. N-1 hops bring each device the
state of all keys before its own; each waits for the one before it, and what a device computes of its own queries and
keys does not. Backward, the gradient of the state travels the other way, and the state before a shard is kept from
forward. On devices that run one program all send in every hop, also what is not complete yet. Under a full mask states
go all the way round.
"""

from stripectl.scheme import Scheme


def chain(own, attend, comm, by):
    """What states of all shards before one add up to (`by` 1), or behind it (-1)."""
    shards = comm.size("ring")

    def arriving(state):
        senders = None if attend.looks_on else lambda i: 0 <= i + by < shards
        return comm.shift(state, "ring", "state", by=by, senders=senders)

    return comm.loop(1, shards - 1, lambda _, before: arriving(attend.onward(before, own)), arriving(own))


def forward_by(exchange):
    """The forward pass whose states an exchange(own, attend, comm, by) brings."""

    def forward(q, kv, attend, comm):
        me = comm.index("ring")
        if comm.size("ring") == 1:
            return attend(q, kv, me, me, into=attend.empty(q))
        before = exchange(attend.state(kv), attend, comm, 1)
        return attend.apply(q, before, into=attend(q, kv, me, me, into=attend.empty(q)))

    return forward


def backward_by(exchange):
    """The backward pass to it."""

    def backward(saved, kv, attend, comm):
        me = comm.index("ring")
        if comm.size("ring") == 1:
            return attend.backward(saved, kv, me, me, into=attend.zeros(saved))
        behind = exchange(attend.dstate(saved), attend, comm, -1)
        own = attend.backward(saved, kv, me, me, into=attend.zeros(saved))
        return attend.state_backward(saved, kv, behind, into=own)

    return backward


scheme = Scheme(
    "lasp",
    paper="https://arxiv.org/abs/2404.02882",
    axes=("ring",),
    forward=forward_by(chain),
    backward=backward_by(chain),
    layouts=("contiguous",),
    kernels=("linear",),
)
