"""Ring Self-Attention: keys travel round the ring for all scores, then values for the output (Li et al. 2021).

It predates attention in tiles: a device holds the scores of its queries with every key and takes the softmax between
the two rings, so memory grows with the length. Two rings of N-1 hops, one of K and one of V, send as many bytes as one
ring of K/V. The backward pass is the transpose, so dK and dV travel, and are summed, in the dtype of K and V.
"""

from collections.abc import Iterator

from stripectl.core.attend import ScoresAttend
from stripectl.core.comm import Array, Comm, Index
from stripectl.core.scheme import Scheme


def forward(q: Array, kv: Array, attend: ScoresAttend, comm: Comm) -> Array:
    shards, me, rounds, (k, v) = comm.size("ring"), comm.index("ring"), attend.rounds(), kv

    def round_trip(x: Array, what: str) -> Iterator[tuple[Index, Array]]:
        """(source shard, its array) in every round; the next array is sent for before this one is used."""
        for hop in range(rounds):
            here, x = x, comm.shift(x, "ring", what) if hop < rounds - 1 else x
            yield (me - hop) % shards, here

    q = attend.query(q)
    scores = [attend.scores(q, keys, me, src) for src, keys in round_trip(k, "k")]
    weights, state = attend.weights(q, scores)
    for weight, (src, values) in zip(weights, round_trip(v, "v"), strict=True):
        state = attend.weigh(weight, values, me, src, into=state)
    return state


scheme = Scheme(
    "rsa",
    title="ring self-attention",
    paper="https://arxiv.org/abs/2105.13120",
    axes=("ring",),
    forward=forward,
    kernel_families=("scores",),
    chunk=0,
)
