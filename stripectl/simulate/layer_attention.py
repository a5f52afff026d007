"""The attention of a layer as a step takes it: its times forward and backward, what the backward pass repeats, and its
memory."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from stripectl.core.intervals import Overlap
from stripectl.core.layer_groups import LayerGroup
from stripectl.core.mesh import BATCH_AXES, HEAD_AXES, SEQUENCE_AXES
from stripectl.core.plan import STATES, Plan
from stripectl.core.scheme import schemes
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.costs.cost_model import CostModel
from stripectl.simulate.simulation import GroupTimes, simulate, simulate_times
from stripectl.simulate.step_clock import AttentionTime
from stripectl.simulate.step_state import STATE_BYTES


class AttentionMemory(NamedTuple):
    """Bytes of a layer's attention on a device: at its peak, of one plan or by plan; from its forward to its backward
    pass where everything is kept; and what its own backward pass needs besides queries, keys, values and output."""

    peak_bytes: Any = 0
    held_bytes: int = 0
    residual_bytes: float = 0


class LayerAttention(NamedTuple):
    """The times of a layer's attention: forward; forward again in the backward pass; the transfers alone that the
    backward pass repeats; and backward. `again` and `moves` are None where nothing is repeated."""

    forward: AttentionTime
    again: AttentionTime | None
    moves: AttentionTime | None
    backward: AttentionTime
    memory: AttentionMemory = AttentionMemory()

    @property
    def all(self) -> list[AttentionTime]:
        return [each for each in self[:4] if each]


NO_ATTENTION = LayerAttention(AttentionTime(0.0), None, None, AttentionTime(0.0))


def recomputes_attention(plan: Plan) -> bool:
    """Whether the backward pass runs attention forward again."""
    transposed = schemes[plan.scheme].backward is None
    return not plan.keeps_context or (transposed and plan.remat != "none")


def repeats_moves(plan: Plan) -> bool:
    """Whether the backward pass repeats a scheme's enter and leave, and the transfers of kept values, but not its
    attention: the arrays before and after them are not kept, unless a policy keeps everything."""
    return not recomputes_attention(plan) and plan.remat != "none"


def attention_times(layers: Sequence[LayerGroup], machines: Sequence[CostModel]) -> list[GroupTimes]:
    """The times of attention in a layer of each kind, forward and backward."""
    pairs = zip(layers, machines, strict=True)
    return [
        simulate_times(own.one_layer("forward-backward"), [each], [machine], layer=True)
        for (_, own, each), machine in pairs
    ]


def layer_attention(layer: LayerGroup, times: GroupTimes) -> LayerAttention:
    """The times and the memory of a layer's attention, as if it never waited for transfers."""
    plan, forward_s, seconds, moves_s = layer.plan, times.forward_s, times.seconds, times.moves_s
    forward = AttentionTime(forward_s, along=times.forward_along)
    moves = AttentionTime(moves_s, moves_s, along=times.moves_along) if repeats_moves(plan) else None
    backward = AttentionTime(seconds - forward_s, along=times.along - times.forward_along)
    memory = AttentionMemory(times.peak_bytes, times.held_bytes, attention_residual(layer))
    return LayerAttention(forward, forward if recomputes_attention(plan) else None, moves, backward, memory)


def attention_residual(layer: LayerGroup) -> float:
    """Bytes that the backward pass of a layer's scheme needs besides queries, keys, values and output: the logarithms
    of the sums of exponentials, or the states before each run of tokens of a linear layer."""
    _, workload, plan = layer
    if schemes[plan.scheme].backward is None:
        return 0.0
    requests = workload.batch / plan.product(BATCH_AXES)
    if workload.attention != "linear":
        rows = workload.seq_len // plan.product(SEQUENCE_AXES)
        return requests * rows * workload.heads / plan.product(HEAD_AXES) * STATE_BYTES
    runs = requests * sequence_sharding(workload, plan).runs
    heads = workload.kv_heads / plan.product(HEAD_AXES) / plan.size("ulysses")
    return (plan.states == STATES[0]) * runs * heads * workload.head_dim * workload.value_dim * STATE_BYTES


def explained_attention(layer: LayerGroup, machine: CostModel) -> LayerAttention:
    """The times of a layer's attention, and of its exposed and hidden transfers: of both passes in the second."""
    _, own, plan = layer
    forward, again, moves, backward, memory = layer_attention(layer, *attention_times([layer], [machine]))

    def with_overlap(time: AttentionTime, passes: str) -> AttentionTime:
        known = simulate(own.one_layer(passes), plan, machine, layer=True).overlap or Overlap(0.0, 0.0)
        return time._replace(exposed_s=known.exposed_s, hidden_s=known.hidden_s)

    return LayerAttention(
        of_one_plan(forward),
        again and with_overlap(of_one_plan(again), "forward"),
        moves and of_one_plan(moves),
        with_overlap(of_one_plan(backward), "forward-backward"),
        memory,
    )


def of_one_plan(time: AttentionTime) -> AttentionTime:
    """The times of a group of one plan, as numbers."""
    return time._replace(seconds=float(np.ravel(time.seconds)[0]), exposed_s=float(np.ravel(time.exposed_s)[0]))
