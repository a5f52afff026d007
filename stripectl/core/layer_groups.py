"""Groups of equal layers in a model: the number of layers in each group, and the plan that computes them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from stripectl.core.plan import Plan, Softmax
from stripectl.core.workload import Workload


class LayerGroup(NamedTuple):
    """A number of equal layers of a step, the workload if all layers were such, and the plan of these layers."""

    count: int
    workload: Workload
    plan: Plan


def layer_groups(workload: Workload, plan: Plan) -> list[LayerGroup]:
    """A workload's layers by their attention, linear layers first. A workload of one layer, or of equal layers, gives
    itself and its plan."""
    kinds = workload.kinds
    if len(kinds) == 1:
        return [LayerGroup(sum(kinds.values()), workload, plan)]
    alike = [(kinds[kind], workload.with_attention(kind)) for kind in sorted(kinds)]
    return [LayerGroup(count, own, plan.for_attention(own.kernel_family)) for count, own in alike]


def join_plans(plans: Sequence[Plan]) -> Plan:
    """One plan from the plans of `layer_groups`."""
    first, *rest = plans
    if not rest:
        return first
    (other,) = rest
    return replace(first, softmax=Softmax(other.scheme, other.kernel, other.tile, other.backward))
