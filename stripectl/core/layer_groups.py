"""Groups of equal layers in a model: the number of layers in each group, and the plan that computes them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from stripectl.core.plan import Plan, Softmax
from stripectl.core.workload import Workload


class LayerGroup(NamedTuple):
    """A number of equal layers of a step, the workload if all layers were such, and the plan of these layers."""

    layers: int
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


def by_layer_group(workload: Workload, plan: Plan, change: Callable[[Workload, Plan], Plan]) -> Plan:
    """Change the plan of each group of layers."""
    return join_plans([change(group.workload, group.plan) for group in layer_groups(workload, plan)])


def join_plans(plans: Sequence[Plan]) -> Plan:
    """One plan from the plans of `layer_groups`."""
    first, *rest = plans
    if not rest:
        return first
    (other,) = rest
    layout = other.layout if other.layout != first.layout else None
    return replace(first, softmax=Softmax(other.scheme, other.kernel, other.tile, other.backward, layout))


def segments(kinds: Sequence[str]) -> list[tuple[Sequence[str], int]]:
    """(kinds of layers, number of repetitions), with as few layers as possible in the bodies of scans. LLLSLLLSLLS, for
    example, is LLLS twice and LLS once."""

    def repeats(period: int) -> int:
        count = 1
        while kinds[count * period : (count + 1) * period] == kinds[:period]:
            count += 1
        return count

    best = min(range(1, len(kinds) + 1), key=lambda period: (len(kinds) - period * (repeats(period) - 1), -period))
    rest = kinds[best * repeats(best) :]
    return [(kinds[:best], repeats(best)), *([(rest, 1)] if rest else [])]
