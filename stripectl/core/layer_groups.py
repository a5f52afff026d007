"""Groups of equal layers in a model: the number of layers in each group, and the plan that computes them.

A plan names the computation of the first group, and in options the computation of other groups: `softmax=` where the
first layers are linear, and `sliding=` for layers with shorter windows than others.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from stripectl.core.layer_kinds import LayerKind
from stripectl.core.plan import LayerPlan, Plan
from stripectl.core.workload import Workload

Kind = TypeVar("Kind")  # of a layer


class LayerGroup(NamedTuple):
    """A number of equal layers of a model, the workload if all layers were such, and the plan of these layers."""

    layers: int
    workload: Workload
    plan: Plan


def layer_groups(workload: Workload, plan: Plan) -> list[LayerGroup]:
    """A workload's layers by their attention and mask: linear layers first, then the layers whose queries see the most
    keys. A workload of equal layers gives itself and its plan."""
    kinds = workload.kinds
    if len(kinds) == 1:
        return [LayerGroup(sum(kinds.values()), workload, plan)]
    found = list[LayerGroup]()
    for kind, part in parts_of_plan(workload).items():
        own = workload.of_kind(kind)
        each = plan.for_attention(own.kernel_family) if workload.is_hybrid else replace(plan, softmax=None)
        found.append(
            LayerGroup(kinds[kind], own, each.for_windows() if part == "sliding" else replace(each, sliding=None))
        )
    return found


def parts_of_plan(workload: Workload) -> dict[LayerKind, str]:
    """The part of a plan that names the computation of each kind of layers, in the order of `layer_groups`: empty for
    the first kind, `softmax` for the first softmax layers where others are linear, `sliding` for shorter windows."""
    first, *others = sorted(workload.kinds, key=lambda kind: kind.breadth)
    parts = {first: ""}
    for kind in others:
        beside_linear = first.attention == "linear" and "softmax" not in parts.values()
        parts[kind] = "softmax" if beside_linear else "sliding"
    return parts


def by_layer_group(workload: Workload, plan: Plan, change: Callable[[Workload, Plan], Plan]) -> Plan:
    """Change the plan of each group of layers."""
    groups = layer_groups(workload, plan)
    return join_plans(workload, [change(group.workload, group.plan) for group in groups])


def join_plans(workload: Workload, plans: Sequence[Plan]) -> Plan:
    """One plan from the plans of a workload's `layer_groups`."""
    if len(plans) == 1:
        return plans[0]
    first = plans[0]
    by_part = dict[str, Plan]()
    for part, plan in zip(parts_of_plan(workload).values(), plans, strict=True):
        by_part.setdefault(part, plan)
    if softmax := by_part.get("softmax"):
        first = replace(first, softmax=layer_plan(softmax, first))
    if windows := by_part.get("sliding"):
        first = replace(first, sliding=layer_plan(windows, softmax or first))
    return first


def layer_plan(plan: Plan, others: Plan) -> LayerPlan:
    """The computation of layers by a plan, as an option of the plan of other layers."""
    layout = plan.layout if plan.layout != others.layout else None
    return LayerPlan(plan.scheme, plan.kernel, plan.tile, plan.backward, layout)


def mean_of_layers(groups: Sequence[LayerGroup], values: Sequence[float]) -> float:
    """The mean over layers of a value that each group has."""
    if len(groups) == 1:
        return values[0]
    total = math.fsum(group.layers * value for group, value in zip(groups, values, strict=True))
    return total / sum(group.layers for group in groups)


def mean_bytes(groups: Sequence[LayerGroup], sent: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The mean over layers of the bytes that a device sends, by opcode."""
    opcodes = dict.fromkeys(opcode for each in sent for opcode in each)
    return {opcode: round(mean_of_layers(groups, [each.get(opcode, 0) for each in sent])) for opcode in opcodes}


def segments(kinds: Sequence[Kind]) -> list[tuple[Sequence[Kind], int]]:
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
