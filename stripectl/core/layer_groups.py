"""Layers that are alike, of a model whose layers need not all be: how many there are, and which plan computes them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from stripectl.core.plan import Plan, Softmax
from stripectl.core.workload import Workload


class Layers(NamedTuple):
    """So many layers of a step, the workload were all layers such, and the plan of these."""

    count: int
    workload: Workload
    plan: Plan


def layers_of(workload: Workload, plan: Plan) -> list[Layers]:
    """A workload's layers by their attention, linear ones first; of one layer's attention, or where all are alike, the
    workload and plan as they are."""
    kinds = workload.kinds
    if len(kinds) == 1:
        return [Layers(sum(kinds.values()), workload, plan)]
    return [Layers(kinds[kind], workload.of_kind(kind), plan.of(kind)) for kind in sorted(kinds)]


def joined(plans: Sequence[Plan]) -> Plan:
    """One plan from those of `layers_of`."""
    first, *rest = plans
    if not rest:
        return first
    (other,) = rest
    return replace(first, softmax=Softmax(other.scheme, other.kernel, other.tile, other.backward))
