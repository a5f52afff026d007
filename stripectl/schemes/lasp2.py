"""LASP-2: all states of linear attention are gathered at once (Sun et al. 2025).

Every device gathers the maps of all N shards on a state of key size x value size per head, and computes the state
before its own shard. One collective, which runs while the device computes its own queries and keys, replaces N-1 hops
that wait for each other. With a constant gate each shard sends a state; with gates or a rule that depend on the input
it sends a map, A and B. The backward pass gathers the transposed maps and computes the gradient of the state after the
shard.

A recurrence also runs in zigzag order, where a shard is two runs of tokens: the gather then brings two maps per shard.
"""

from functools import partial

from stripectl.core.attend import LinearAttend
from stripectl.core.comm import Array, Comm
from stripectl.core.layout import WHOLE
from stripectl.core.scheme import Scheme
from stripectl.schemes.lasp import Work, backward, forward


def gather(own: Array, attend: LinearAttend, comm: Comm, by: int, work: Work, made: Array) -> tuple[Array, Array]:
    """An exchange in one collective (`lasp.Exchange`)."""
    state = attend.state_before(comm.all_gather(own, "ring", "state"), comm.index("ring"), by)
    return state, work(WHOLE, made)


scheme = Scheme(
    "lasp2",
    title="LASP-2",
    paper="https://arxiv.org/abs/2502.07563",
    axes=("ring",),
    forward=partial(forward, exchange=gather),
    backward=partial(backward, exchange=gather),
    layouts=("contiguous", "zigzag"),
    kernel_families=("linear", "gated"),
)
