"""A training step on a simulated clock: the programs of the embedding, the layers and the head (`layers`), bound to
`step_ops`, and the optimizer's memory traffic.

Each kind of layer is simulated once, forward and backward, between two moments at which all devices wait for each
other. Its attention was simulated on the clocks of all devices (`simulation`). Where a compiler lets matrices run
during transfers of parameters (`hides_parameters`), a layer's parameters travel from its begin on and their gradients
as soon as they are known; other transfers are waited for. Memory traffic outside matrices (norms, rotations, residuals)
is not included.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from stripectl.core.layer_groups import LayerGroup, layer_groups, segments
from stripectl.core.layout_switch import switch_transfers, switches
from stripectl.core.mesh import BATCH_AXES, HEAD_AXES, SEQUENCE_AXES
from stripectl.core.parameters import Parameter, parameter_gather, wide_axes
from stripectl.core.plan import Plan
from stripectl.core.scopes import FEED_FORWARD, HEAD, OPTIMIZER, PROJECTIONS
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import COUNTING, CostModel
from stripectl.costs.matrices import MatrixRate
from stripectl.layers.attention import AttentionLayer, has_rotary_positions
from stripectl.layers.decoder import decoder_layer, layer_parameters
from stripectl.layers.embedding import embedding, embedding_parameters
from stripectl.layers.head import head_parameters, head_weights, loss
from stripectl.simulate.compiler_arrays import COMPILER_ARRAYS
from stripectl.simulate.layer_attention import NO_ATTENTION, LayerAttention
from stripectl.simulate.step_clock import FROM_HOST, StepClock
from stripectl.simulate.step_ops import HaloComm, SimulatedOps, SimulatedWeights
from stripectl.simulate.step_state import STATE_BYTES, step_state
from stripectl.simulate.step_tape import ACTIVATIONS, FLOAT32, GATHERED, GRADIENTS, KEEPS, LOGITS, Tape, Value
from stripectl.simulate.transfers import share_sent

ADAMW_TOUCHES = (
    8  # per element: the gradient is read twice (first for its norm), parameter and moments read and written
)
PARTS = PROJECTIONS, FEED_FORWARD, HEAD  # with products of matrices
LEFT_OUT = "of a step: traffic of norms, rotations and residuals"


def hides_parameters(machine: CostModel) -> bool:
    """Whether matrices run during the transfers of parameters. In steps that XLA compiled for H100 they do, except
    during the last gradients of a layer; for v5p and v6e they do not (benchmarks/README.md)."""
    return machine.overlaps and not machine.torus


def optimizer_bytes(workload: Workload, plan: Plan) -> float:
    """Bytes that AdamW reads and writes on a device."""
    sizes = workload.sizes
    parameters = sizes.all_layer_parameters + sizes.vocabulary_parameters
    return ADAMW_TOUCHES * STATE_BYTES * parameters / plan.product(HEAD_AXES) / plan.product(plan.optimizer_axes)


def run_step(
    workload: Workload,
    plan: Plan,
    machine: CostModel = COUNTING,
    attention: Sequence[LayerAttention] = (),
    *,
    kind: str = "tpu",
    rate: MatrixRate | None = None,
    memory_bytes_per_s: float | None = None,
    host_bytes_per_s: float | None = None,
    faster: Mapping[str, float] | None = None,
    gradient_bytes: int = STATE_BYTES,
) -> StepClock:
    """The clock after a step, in which the attention of each kind of layer takes the given times, or none. Matrices run
    at `rate`, the optimizer at the memory's rate, and copies at the rate of the host's link; `faster` says how many
    times as fast the parts `compute` and `memory` of the machine are. `gradient_bytes` per element of a gradient are
    sent; `kind` is the kind of the devices."""
    speeds = {"compute": 1.0, "memory": 1.0, **(faster or {})}
    clock = StepClock(plan, machine, rate, speeds["compute"], hides_parameters(machine), host_bytes_per_s)
    passes = StepPasses(
        workload, plan, SimulatedOps(plan, workload.dtype, clock, COMPILER_ARRAYS[kind], gradient_bytes)
    )
    passes.run(attention)
    clock.finish_transfers()
    _between(workload, plan, clock, passes.stream_bytes)
    with passes.ops.section(OPTIMIZER):
        if memory_bytes_per_s:
            clock.compute(optimizer_bytes(workload, plan) / memory_bytes_per_s / speeds["memory"])
        _after_update(workload, plan, clock)
    return clock


@dataclass
class StepPasses:
    """The forward and the backward pass of a step, on `ops`."""

    workload: Workload
    plan: Plan
    ops: SimulatedOps

    @cached_property
    def rows(self) -> int:
        """The tokens of a device's part of a sequence."""
        return self.workload.seq_len // self.plan.product(SEQUENCE_AXES)

    @cached_property
    def tokens(self) -> Value:
        return Value((self.workload.batch / self.plan.product(BATCH_AXES), self.rows), FLOAT32)

    @cached_property
    def stream(self) -> tuple[float, ...]:
        """The shape of hidden states between layers."""
        requests, rows = self.tokens.shape
        parts = self.ops.devices if self.ops.shards_rows else 1
        return requests, rows / parts, self.workload.sizes.hidden

    @property
    def stream_bytes(self) -> float:
        return math.prod(self.stream) * self.ops.itemsize

    def gathered(self, table: Mapping[str, Parameter], used: Collection[str] = ()) -> SimulatedWeights:
        return SimulatedWeights(table, self.ops, used)

    def run(self, attention: Sequence[LayerAttention]) -> None:
        """Both passes; attention takes the given times in a layer of each kind, or none."""
        ops, ledger, sizes = self.ops, self.ops.ledger, self.workload.sizes
        groups = layer_groups(self.workload, self.plan)
        layers, ends = step_state(self.workload, self.plan)
        for state in (layers, ends):
            ledger.take("parameters", state.parameters)
            ledger.take("optimizer", state.moments)
        ledger.take(GATHERED, layers.narrow * ops.arrays.narrow_copies)
        table = self.gathered(embedding_parameters(sizes))
        first = ops.record(lambda: embedding(self.tokens, table, sizes, ops))
        kept = [self.forward(*each) for each in zip(groups, attention or [NO_ATTENTION] * len(groups), strict=True)]
        last = self.gathered(head_weights(sizes), used=embedding_parameters(sizes).keys())
        ops.transpose(ops.record(lambda: loss(ops.input(self.stream), self.tokens, last, sizes, ops)))
        ops.gradients.clear()
        # XLA sums the gradient of the head over devices after the layers, so the head and its gradient stay; for v6e it
        # does so before them where values wait in the host's memory, but not for v5p.
        head = sizes.head_parameters / ops.devices
        ledger.take(GATHERED, head * ops.gathered_bytes)
        ledger.take(GRADIENTS, head * STATE_BYTES * (1 + ops.arrays.second_sums))
        ledger.take(GRADIENTS, layers.gradients)
        for group, (tape, others) in zip(groups, kept, strict=True):
            self.backward(group, tape, others)
        # Where the loss is computed in chunks, XLA computes its value after the gradients.
        chunk = self.plan.chunk_rows(self.rows)
        logits = self.tokens.shape[0] * chunk * sizes.vocabulary / ops.devices * FLOAT32 if chunk < self.rows else 0.0
        at_end = ledger.hold(LOGITS, logits)
        ops.transpose(first)
        del at_end

    def forward(self, group: LayerGroup, times: LayerAttention) -> tuple[Tape, float]:
        """The forward pass of a group's layers: the tape of one of them, and the bytes that all others keep."""
        ops, ledger = self.ops, self.ops.ledger

        def layer() -> Value:
            return decoder_layer(ops.input(self.stream), self.gathered, layer_of(group, ops, times), ops, HaloComm(ops))

        with ops.clock.repeated(group.layers):
            ops.run(layer)
            ops.clock.finish_copies()
        before = ledger.total
        tape = ops.record(layer, KEEPS.get(group.plan.remat, ()))
        ops.clock.host_bytes += group.layers * sum(tape.offloaded)
        others = (group.layers - 1) * (ledger.total - before)
        ledger.take(ACTIVATIONS, others)
        return tape, others

    def backward(self, group: LayerGroup, tape: Tape, others: float) -> None:
        """The backward pass of a group's layers, from the tape of one of them and the bytes that all others keep."""
        ops = self.ops
        gradients = group.workload.sizes.layer_parameters / ops.devices * STATE_BYTES
        of_the_layer_before = ops.ledger.hold(GRADIENTS, gradients * ops.arrays.overlapped)
        of_the_next_layer = ops.ledger.hold(ACTIVATIONS, sum(tape.offloaded))
        with ops.clock.repeated(group.layers):
            for nbytes in tape.offloaded:
                ops.clock.copy(FROM_HOST, nbytes)
            ops.transpose(tape)
            ops.clock.finish_copies()
        ops.gradients.clear()
        del of_the_layer_before, of_the_next_layer
        ops.ledger.give_back(ACTIVATIONS, others)


def layer_of(group: LayerGroup, ops: SimulatedOps, times: LayerAttention) -> AttentionLayer:
    """A layer of a group, whose attention takes these times."""
    sizes = group.workload.sizes
    attend = partial(ops.attend, times, sizes.value_dim)
    return AttentionLayer(sizes, group.plan, attend, has_rotary_positions(group.workload), None)


def _between(workload: Workload, plan: Plan, clock: StepClock, nbytes: float) -> None:
    """The sum of the loss, and the moves of hidden states, of `nbytes`, and of their gradients, between layers of
    two layouts."""
    if over := wide_axes(plan, (*BATCH_AXES, *SEQUENCE_AXES)):
        clock.send("all-reduce", over, 2 * share_sent(plan, over) * FLOAT32)
    if plan.softmax_layout is None or plan.shards == 1:
        return
    kinds = [kind.attention for kind in workload.layer_kinds]
    with clock.repeated(2 * sum(turns * switches(body, "softmax") for body, turns in segments(kinds))):
        for each in switch_transfers(plan.softmax_layout, plan.shards):
            clock.send(each.opcode, ("ring",), each.share * nbytes, each.links)


def _after_update(workload: Workload, plan: Plan, clock: StepClock) -> None:
    """With ZeRO-1 the devices gather the updated parameters, in float32."""
    sizes = workload.sizes
    tables: list[tuple[int, Mapping[str, Parameter]]] = [(count, layer_parameters(each)) for count, each in sizes.kinds]
    for count, table in [*tables, (1, embedding_parameters(sizes)), (1, head_parameters(sizes))]:
        ways = [parameter_gather(each, plan) for each in table.values()]
        apart = [how for how in ways if how.updated and not how.stored]
        with clock.repeated(count if apart else 1):
            for how in apart:
                clock.send("all-gather", how.updated, share_sent(plan, how.updated) * how.elements * STATE_BYTES)
