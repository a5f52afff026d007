"""LASP-2: the states of linear attention are gathered at once (Sun et al. 2025).

Every device gets all N states of head_dim x head_dim a head, and adds up those before its own: one collective beside
what it computes of its own queries and keys, in place of N-1 hops that wait for each other. Backward gathers the
gradients of the states, and adds up those behind.
"""

from stripectl.core.attend import LinearAttend
from stripectl.core.comm import Array, Comm
from stripectl.core.scheme import Scheme


def gather(own: Array, attend: LinearAttend, comm: Comm, by: int) -> Array:
    """What states of all shards before one add up to (`by` 1), or behind it (-1)."""
    return attend.state_before(comm.all_gather(own, "ring", "state"), comm.index("ring"), by)


def forward(q: Array, kv: Array, attend: LinearAttend, comm: Comm) -> Array:
    me = comm.index("ring")
    if comm.size("ring") == 1:
        return attend(q, kv, me, me, into=attend.empty(q))
    before = gather(attend.state(kv), attend, comm, 1)
    return attend.apply(q, before, into=attend(q, kv, me, me, into=attend.empty(q)))


def backward(saved: Array, kv: Array, attend: LinearAttend, comm: Comm) -> tuple[Array, Array]:
    me = comm.index("ring")
    if comm.size("ring") == 1:
        return attend.backward(saved, kv, me, me, into=attend.zeros(saved))
    before = attend.saved_state(saved)
    if before is None:
        before = gather(attend.state(kv), attend, comm, 1)
    behind = gather(attend.dstate(saved, kv), attend, comm, -1)
    own = attend.backward(saved, kv, me, me, into=attend.zeros(saved))
    return attend.state_backward(saved, kv, before, behind, into=own)


scheme = Scheme(
    "lasp2",
    title="LASP-2",
    paper="https://arxiv.org/abs/2502.07563",
    axes=("ring",),
    forward=forward,
    backward=backward,
    layouts=("contiguous",),
    kernel_families=("linear",),
)
