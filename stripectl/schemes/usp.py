"""USP: Ulysses within groups of devices, a ring between the groups, in any factorisation (Fang and Zhao 2024).

`ulysses` should be the faster axis: its all-to-alls are fully exposed, while the ring's hops can hide. The layout
divides the sequence among the ring's shards, and each shard is divided among the devices of `ulysses`. A device sends
the all-to-alls over `ulysses`, and 2 (R-1) times its part of a sequence round a ring of R: with equal numbers of heads
and key/value heads this is less than a ring of all devices, and more than Ulysses.
"""

from stripectl.core.scheme import Scheme
from stripectl.schemes import ring, ulysses

scheme = Scheme(
    "usp",
    title="USP attention",
    paper="https://arxiv.org/abs/2405.07719",
    axes=("ring", "ulysses"),
    degenerate_axes=("ring", "ulysses"),
    forward=ring.forward,
    backward=ring.backward,
    enter=ulysses.enter,
    leave=ulysses.leave,
    why_unsupported=ulysses.why_unsupported,
)
