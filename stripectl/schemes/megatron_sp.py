"""Megatron-SP: hidden states are gathered before a layer's matrices, and summed into rows after (Korthikanti 2022).

Between the two each device has all rows of its heads (section 4.2.2), and attention itself sends nothing. Of a layer,
an all-gather before the projections and a reduce-scatter after the output's are around attention, and as much is around
the feed-forward, which a pass of attention does not count. In such a pass, with no projections, the queries before they
are gathered stand for the hidden states, as large as they are where heads x head_dim is the hidden size, and each
device takes its heads of what it gathered. In a training step the matrices are real, and `layer` says by constraints
where hidden states lie.

Of N tokens on T devices a device sends BNd (T-1)/T by each of the two, so a layer 4BNd (T-1)/T. LASP's Table 1 has 2BNd
+ 4BNd/T, and does not say how.
"""

from stripectl.core.attend import HeadsAttend
from stripectl.core.comm import ROWS, Array, Comm
from stripectl.core.scheme import Scheme
from stripectl.schemes import memory_efficient


def enter(arrays: tuple[Array, Array], attend: HeadsAttend, comm: Comm) -> tuple[Array, Array]:
    q, kv = arrays
    hidden = comm.all_gather(q, "tensor", "hidden", join=ROWS)
    return attend.take_heads(hidden, comm.index("tensor"), comm.size("tensor")), kv


def leave(out: Array, attend: HeadsAttend, comm: Comm) -> Array:
    summand = attend.scatter_heads(out, comm.index("tensor"), comm.size("tensor"))
    return comm.reduce_scatter(summand, "tensor", "hidden", split=ROWS)


scheme = Scheme(
    "megatron_sp",
    title="Megatron sequence parallelism",
    paper="https://arxiv.org/abs/2205.05198",
    axes=("tensor",),
    forward=memory_efficient.forward,
    backward=memory_efficient.backward,
    enter=enter,
    leave=leave,
    layouts=("contiguous",),
    row_axes=("tensor",),
    chunk=0,
)
