"""LASP-2: the states of linear attention are gathered at once (Sun et al. 2025).

Every device gets all N states of head_dim x head_dim a head, and adds up those before its own: one collective beside
what it computes of its own queries and keys, in place of N-1 hops that wait for each other. Backward gathers the
gradients of the states, and adds up those behind.
"""

from stripectl.scheme import Scheme
from stripectl.schemes.lasp import backward_by, forward_by


def gather(own, attend, comm, by):
    return attend.before(comm.all_gather(own, "ring", "state"), comm.index("ring"), by)


scheme = Scheme(
    "lasp2",
    paper="https://arxiv.org/abs/2502.07563",
    axes=("ring",),
    forward=forward_by(gather),
    backward=backward_by(gather),
    layouts=("contiguous",),
    kernels=("linear",),
)
