"""A prefix scan of the maps of shards on a state of linear attention (Hillis and Steele 1986; for maps Blelloch 1990).

In round r every device sends the composed map of itself and the 2^r - 1 shards before it to the device 2^r places on,
and composes what it receives with the map of the shards before it. After ceil(log2 N) rounds this map covers all shards
before it. The last round sends B alone, because no state comes before the first shard. On a ring of links round r
crosses 2^r links, so all rounds together cross as many links as a chain does, each with a whole map. Where a switch
joins all devices, a round is one hop. The backward pass scans the transposed maps in the other direction.
"""

from collections.abc import Mapping
from functools import partial

from stripectl.core.attend import LinearAttend
from stripectl.core.comm import Array, Comm
from stripectl.core.layout import WHOLE
from stripectl.core.reason import Reason
from stripectl.core.scheme import Scheme
from stripectl.core.workload import Workload
from stripectl.schemes.lasp import Work, backward, forward


def scan(own: Array, attend: LinearAttend, comm: Comm, by: int, work: Work, made: Array) -> tuple[Array, Array]:
    """An exchange in ceil(log2 N) rounds (`lasp.Exchange`)."""
    shards, places, known = comm.size("ring"), 1, None  # `known` is the map of the `places` - 1 shards before this one

    def shift(x: Array, what: str) -> Array:
        return comm.shift(x, "ring", what, by=by * places, senders=lambda i: 0 <= i + by * places < shards)

    while 2 * places < shards:
        arriving = shift(own if known is None else attend.compose(own, known), "map")
        known = arriving if known is None else attend.compose(known, arriving, places - 1)
        places *= 2
    last = attend.state_of(own) if known is None else attend.advance_state(attend.state_of(known), own)
    arriving = shift(last, "state")
    state = arriving if known is None else attend.advance_state(arriving, known, places - 1)
    return state, work(WHOLE, made)


def why_unsupported(workload: Workload, mesh: Mapping[str, int]) -> Reason | None:
    if workload.window.sees_future:
        return Reason.unsupported(
            "linear_scan sends the state of earlier shards only", "Try --mask causal, or --scheme lasp."
        )
    return None


scheme = Scheme(
    "linear_scan",
    title="a prefix scan of states",
    paper="https://doi.org/10.1145/7902.7903",
    axes=("ring",),
    forward=partial(forward, exchange=scan),
    backward=partial(backward, exchange=scan),
    layouts=("contiguous",),
    kernel_families=("linear", "gated"),
    why_unsupported=why_unsupported,
)
