"""Halo: a device receives only the keys and values that a sliding window reaches, as in the halo exchange of stencils
(hoppiece 2026, `swa_p2p` of Megatron-LM).

Shards are runs of adjacent tokens: one (contiguous), or two (zigzag). The first queries of a run see keys at the end of
the run before it. A device sends only these rows, the halo: one row fewer than the window has tokens, whatever the
length of the sequence. It arrives while the tiles that need no halo are computed. A zigzag shard has two neighbours,
one on each side, so both directions of a link are used.

A window that is longer than a run reaches several runs. Their rows come through the devices in between, hop by hop: the
next halo arrives while the tiles of this halo are computed. The backward pass has kept all halos and sends none again;
it begins with the farthest halo, whose gradient has the longest way back, and each device adds what returns to it.
"""

from stripectl.core.attend import HaloAttend
from stripectl.core.comm import Array, Comm
from stripectl.core.halo import of_adjacent_run
from stripectl.core.layout import WHOLE
from stripectl.core.scheme import Scheme


def exchange(x: Array, rows: int, what: str, by: int, attend: HaloAttend, comm: Comm) -> list[Array]:
    """For each run of this shard the last `rows` rows of the run before it, or with by=1 of the run behind it, from x
    with the rows of this shard's runs."""
    ends = attend.ends(x, rows)
    return [of_adjacent_run(ends, "ring", sources, comm, what) for sources in attend.adjacent_runs(by)]


def forward(q: Array, kv: Array, attend: HaloAttend, comm: Comm) -> Array:
    me, state, halos, here = comm.index("ring"), attend.empty(q), attend.halos(), kv
    for part, following in zip([WHOLE, *halos], [*halos, None], strict=True):
        arriving = exchange(here, following.rows, "kv", -1, attend, comm) if following else [here]
        state = attend(q, here, me, me, into=state, part=part)
        comm.keep(here)
        here = attend.join(arriving)
    return state


def backward(saved: Array, kept: Array, attend: HaloAttend, comm: Comm) -> tuple[Array, Array]:
    me, dq, returning = comm.index("ring"), attend.zeros(saved), list[Array]()
    for halo, kv in zip(attend.halos()[::-1], kept[:0:-1], strict=True):
        dq, dkv = attend.backward(saved, kv, me, me, into=dq, part=halo)
        returning = exchange(attend.add_ends(dkv, returning), halo.rows, "dkv", 1, attend, comm)
    dq, dkv = attend.backward(saved, kept[0], me, me, into=dq)
    return dq, attend.add_ends(dkv, returning)


scheme = Scheme(
    "halo",
    title="halo attention",
    paper="https://github.com/NVIDIA/Megatron-LM/pull/5597",
    axes=("ring",),
    layouts=("contiguous", "zigzag"),
    kernel_families=("softmax",),
    forward=forward,
    backward=backward,
    sends_halos=True,
)
