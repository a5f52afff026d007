"""LASP-2: all states of linear attention are gathered at once (Sun et al. 2025).

Every device gathers the maps of all N shards on a state of key size x value size per head, and computes the state
before its own shard. One collective, which runs while the device computes its own queries and keys, replaces N-1 hops
that wait for each other. With a constant gate each shard sends a state; with gates or a rule that depend on the input
it sends a map, A and B. The backward pass gathers the transposed maps and computes the gradient of the state after the
shard.
"""

from stripectl.core.attend import LinearAttend
from stripectl.core.comm import Array, Comm
from stripectl.core.layout import WHOLE
from stripectl.core.scheme import Scheme


def gather(own: Array, attend: LinearAttend, comm: Comm, by: int) -> Array:
    """The state that the maps of all shards before this one make, or all shards after it with by=-1."""
    return attend.state_before(comm.all_gather(own, "ring", "state"), comm.index("ring"), by)


def forward(q: Array, kv: Array, attend: LinearAttend, comm: Comm) -> Array:
    me = comm.index("ring")
    if comm.size("ring") == 1:
        return attend(q, kv, me, me, into=attend.empty(q))
    before = gather(attend.map_of(kv), attend, comm, 1)
    return attend.apply(q, kv, before, into=attend.local_part(q, kv, me, WHOLE, into=attend.empty(q)))


def backward(saved: Array, kv: Array, attend: LinearAttend, comm: Comm) -> tuple[Array, Array]:
    me = comm.index("ring")
    if comm.size("ring") == 1:
        return attend.backward(saved, kv, me, me, into=attend.zeros(saved))
    before = attend.saved_state(saved)
    if before is None:
        before = gather(attend.map_of(kv), attend, comm, 1)
    behind = gather(attend.transposed_map_of(saved, kv), attend, comm, -1)
    dq = attend.local_part_backward(saved, kv, me, WHOLE, into=attend.zeros(saved))
    own = dq, attend.keys_backward(saved, kv, me)
    return attend.state_backward(saved, kv, before, behind, into=own)


scheme = Scheme(
    "lasp2",
    title="LASP-2",
    paper="https://arxiv.org/abs/2502.07563",
    axes=("ring",),
    forward=forward,
    backward=backward,
    layouts=("contiguous",),
    kernel_families=("linear", "gated"),
)
