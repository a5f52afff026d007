"""Ring attention: queries stay, keys and values travel once round the ring (Liu, Zaharia, Abbeel 2023).

With the contiguous layout this is ring attention, with the striped one striped attention (Brandon et al. 2023), with
the zigzag one its second balanced form. Forward makes N-1 hops: the last block travels no further. In the backward
pass dK/dV travel with K/V and one hop home; what a device adds to them it adds after they have arrived, so both hops
of a round can hide behind its tiles.
"""

from stripectl.scheme import Scheme


def forward(q, kv, attend, comm):
    shards, me = comm.size("ring"), comm.index("ring")

    def round(hop, carry):
        kv, state = carry
        arriving = comm.shift(kv, "ring", "kv")
        return arriving, attend(q, kv, me, (me - hop) % shards, into=state)

    kv, state = comm.loop(0, shards - 1, round, (kv, attend.empty(q)))
    return attend(q, kv, me, (me + 1) % shards, into=state)


def backward(saved, kv, attend, comm):
    shards, me = comm.size("ring"), comm.index("ring")

    def meet(hop, kv, dq, dkv):
        dkv = comm.shift(dkv, "ring", "dkv")
        dq, part = attend.backward(saved, kv, me, (me - hop) % shards, into=dq)
        return dq, attend.add(dkv, part)

    def round(hop, carry):
        kv, dq, dkv = carry
        return comm.shift(kv, "ring", "kv"), *meet(hop, kv, dq, dkv)

    if shards == 1:
        return attend.backward(saved, kv, me, me, into=attend.zeros(saved))
    arriving = comm.shift(kv, "ring", "kv")
    dq, dkv = attend.backward(saved, kv, me, me, into=attend.zeros(saved))
    kv, dq, dkv = comm.loop(1, shards - 1, round, (arriving, dq, dkv))
    dq, dkv = meet(shards - 1, kv, dq, dkv)
    return dq, comm.shift(dkv, "ring", "dkv")


scheme = Scheme(
    "ring",
    paper="https://arxiv.org/abs/2310.01889",
    axes=("ring",),
    forward=forward,
    backward=backward,
)
