"""The transfers that move rows of hidden states between the contiguous layout of linear layers and another layout of
softmax layers.

Between contiguous and zigzag, the two halves of each shard (chunks 2i and 2i+1 of 2N) are permuted separately, because
no two chunks of the same parity go to the same device. Between contiguous and striped, one all-to-all moves all rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

from stripectl.core.layout import Layout
from stripectl.core.mesh import SEQUENCE_AXES
from stripectl.core.plan import Plan
from stripectl.core.reason import Reason

BASE = "contiguous"  # the layout of linear layers, whose states need positions in order


class SwitchTransfer(NamedTuple):
    """A transfer of a switch: the collective, the share of a device's rows that it sends, and the mean number of links
    that they cross on a ring."""

    opcode: str
    share: float
    links: float = 1.0


def half_destinations(shards: int) -> tuple[list[int], list[int]]:
    """The destination devices in the zigzag layout of the first and of the second half of each contiguous shard."""

    def holder(chunk: int) -> int:
        return min(chunk, 2 * shards - 1 - chunk)

    return [holder(2 * i) for i in range(shards)], [holder(2 * i + 1) for i in range(shards)]


def switch_transfers(layout: str, shards: int) -> list[SwitchTransfer]:
    """The transfers of a switch between the contiguous layout and another layout."""
    if layout == "zigzag":
        return [SwitchTransfer("collective-permute", 0.5, _links(there, shards)) for there in half_destinations(shards)]
    places = [min(place, shards - place) for place in range(1, shards)]
    return [SwitchTransfer("all-to-all", (shards - 1) / shards, sum(places) / max(1, shards - 1))]


def _links(destinations: Sequence[int], shards: int) -> float:
    apart = (abs(place - i) for i, place in enumerate(destinations))
    return sum(min(each, shards - each) for each in apart) / shards


def why_no_switch(plan: Plan, layout: Layout, seq_len: int) -> Reason | None:
    """Why the softmax layers of a plan cannot have another layout than its linear layers, or None."""
    if plan.layout != BASE:
        return Reason.unsupported(
            f"softmax layers can have another layout only where linear layers are {BASE}", f"Try the layout {BASE}."
        )
    if other := [axis for axis in SEQUENCE_AXES if axis != "ring" and plan.size(axis) > 1]:
        return Reason.unsupported(
            f"layers in two layouts need a sequence that only the axis ring shards, not {other[0]}",
            f"Try {other[0]}=1.",
        )
    if layout.name == "striped" and seq_len % plan.shards**2:
        near = max(1, round(seq_len / plan.shards**2)) * plan.shards**2
        return Reason.unsupported(
            f"a switch to striped needs rows that divide over {plan.shards} devices twice", f"Try --seqlen {near}."
        )
    return None


def switches(kinds: Sequence[str], switched: str) -> int:
    """The number of moves of hidden states in a pass through layers: there and back for each run of `switched`
    layers."""
    runs = sum(kind == switched and (at == 0 or kinds[at - 1] != switched) for at, kind in enumerate(kinds))
    return 2 * runs
