"""Vanilla: the whole score matrix of a sequence on one device, softmax, and the output (Vaswani et al. 2017).

The baseline of the Ring Attention paper's longest sequences: its memory grows with the square of the length.
"""

from stripectl.core.attend import ScoresAttend
from stripectl.core.comm import Array, Comm
from stripectl.core.scheme import Scheme


def forward(q: Array, kv: Array, attend: ScoresAttend, comm: Comm) -> Array:
    k, v = kv
    weights, state = attend.weights(q, [attend.scores(q, k, 0, 0)])
    return attend.weigh(weights[0], v, 0, 0, into=state)


scheme = Scheme(
    "vanilla",
    title="attention with all scores in memory",
    paper="https://arxiv.org/abs/1706.03762",
    axes=(),
    forward=forward,
    layouts=("contiguous",),
    kernel_families=("scores",),
    chunk=0,
)
