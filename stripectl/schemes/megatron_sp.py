"""Megatron-SP: hidden states are gathered before a layer's matrices and reduce-scattered after (Korthikanti 2022).

Between the two collectives each device has all rows of its heads (section 4.2.2), so attention itself sends nothing. In
a layer, one all-gather (before the projections) and one reduce-scatter (after the output projection) surround
attention; the same pair surrounds the feed-forward, which an attention pass does not count. An attention pass has no
projections, so there the queries before the gather stand in for the hidden states, which have the same size where
heads x head_dim is the hidden size, and each device takes its heads from the gathered array. In a training step the
matrices are real, and the programs of layers gather and scatter hidden states (`Ops.to_tensor_parallel`).

For N tokens on T devices, a device sends BNd (T-1)/T in each of the two, so a layer sends 4BNd (T-1)/T. LASP's Table 1
has 2BNd + 4BNd/T, without a derivation.
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
