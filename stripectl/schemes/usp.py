"""USP: Ulysses within groups of devices, a ring between them, by any factorisation (Fang and Zhao 2024).

`ulysses` is the faster axis: its all-to-alls are all exposed, while the ring's hops can hide. The layout deals the
sequence to the ring's shards, and each of those to the devices of `ulysses` in turn. A device sends what all-to-alls
over `ulysses` do, and 2 (R-1) of its part of a sequence round a ring of R: with as many key/value heads as heads less
than a ring of all of them, more than Ulysses.
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
