"""Ulysses: all-to-alls exchange rows for heads, so devices attend to whole sequences (Jacobs et al. 2023).

There are three all-to-alls before attention and one after. The paper counts their full volume, 4BNd/T for N tokens on T
devices; a device keeps its own part of each and sends (T-1)/T. Where the axis is larger than the number of
key/value heads, each is sent once to every device that needs it, which is more than the paper's volume.
"""

import math
from collections.abc import Mapping

from stripectl.core.attend import HeadsAttend
from stripectl.core.comm import HEADS, ROWS, Array, Comm
from stripectl.core.reason import Reason
from stripectl.core.scheme import Scheme
from stripectl.core.workload import Workload
from stripectl.schemes import memory_efficient
from stripectl.util.units import plural


def enter(arrays: tuple[Array, Array], attend: HeadsAttend, comm: Comm) -> tuple[Array, Array]:
    q, kv = arrays
    kv = attend.repeat_kv_heads(kv, comm.size("ulysses"))
    q = comm.all_to_all(q, "ulysses", "q", split=HEADS, join=ROWS)
    return q, comm.all_to_all(kv, "ulysses", "kv", split=HEADS, join=ROWS)


def leave(out: Array, attend: HeadsAttend, comm: Comm) -> Array:
    return comm.all_to_all(out, "ulysses", "out", split=ROWS, join=HEADS)


def why_unsupported(workload: Workload, mesh: Mapping[str, int]) -> Reason | None:
    size, tensor = mesh.get("ulysses", 1), mesh.get("tensor", 1)
    heads, kv_heads = workload.heads // tensor, workload.kv_heads // tensor
    if heads % size:
        return Reason.unsupported(
            f"{plural(heads, 'head')} cannot be divided over ulysses={size}", f"Try ulysses={math.gcd(heads, size)}."
        )
    if kv_heads % size and size % kv_heads:
        hint = f"Try ulysses={math.gcd(kv_heads, size)}."
        return Reason.unsupported(
            f"{plural(kv_heads, 'kv_head')} can be neither divided nor repeated evenly over ulysses={size}", hint
        )
    if (keys := workload.query_heads // tensor) % size:
        subject = f"{plural(keys, 'head')} of keys"
        return Reason.unsupported(
            f"{subject} cannot be divided over ulysses={size}", f"Try ulysses={math.gcd(keys, size)}."
        )
    return None


scheme = Scheme(
    "ulysses",
    title="Ulysses attention",
    paper="https://arxiv.org/abs/2309.14509",
    axes=("ulysses",),
    forward=memory_efficient.forward,
    backward=memory_efficient.backward,
    enter=enter,
    leave=leave,
    layouts=("contiguous",),
    kernel_families=("softmax", "linear", "gated"),
    why_unsupported=why_unsupported,
)
