"""Layers that are alike, of a model whose layers need not all be: how many there are, and which plan computes them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from stripectl.core.plan import Plan, Softmax
from stripectl.core.workload import Workload


class LayerGroup(NamedTuple):
    """So many layers of a step, the workload were all layers such, and the plan of these."""

    count: int
    workload: Workload
    plan: Plan


def layer_groups(workload: Workload, plan: Plan) -> list[LayerGroup]:
    """A workload's layers by their attention, linear ones first; of one layer's attention, or where all are alike, the
    workload and plan as they are."""
    kinds = workload.kinds
    if len(kinds) == 1:
        return [LayerGroup(sum(kinds.values()), workload, plan)]
    alike = [(kinds[kind], workload.with_attention(kind)) for kind in sorted(kinds)]
    return [LayerGroup(count, own, plan.for_attention(own.kernel_family)) for count, own in alike]


def join_plans(plans: Sequence[Plan]) -> Plan:
    """One plan from those of `layer_groups`."""
    first, *rest = plans
    if not rest:
        return first
    (other,) = rest
    return replace(first, softmax=Softmax(other.scheme, other.kernel, other.tile, other.backward))
