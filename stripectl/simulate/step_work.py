"""A training step outside its attention, by arithmetic: the matrix products of each part, the optimizer's memory
traffic, and the transfers of a device.

Parameters are sharded as `core.parameters` says: a layer's are gathered for use, forward and backward, in the dtype of
the step, and their float32 gradients are reduce-scattered. With ZeRO-1, gradients are reduce-scattered to the
optimizer's state, and the updated parameters are gathered once. Over `tensor` the results of two matrices per layer are
summed in the forward pass, and of two in the backward pass (Megatron, Shoeybi et al. 2019, section 3). The backward
pass computes again what `remat` does not keep, and the parts that are computed in chunks. Memory traffic outside
matrices (norms, rotations, residuals) is not included.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from stripectl.core.layer_groups import segments
from stripectl.core.layout_switch import switch_transfers, switches
from stripectl.core.linear_attention import pattern_of
from stripectl.core.mesh import BATCH_AXES, HEAD_AXES, SEQUENCE_AXES
from stripectl.core.model import Matrix
from stripectl.core.parameters import parameter_gather, wide_axes
from stripectl.core.plan import Plan, schemes
from stripectl.core.scopes import FEED_FORWARD, HEAD, OPTIMIZER, PROJECTIONS
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.workload import DTYPE_BYTES, Workload
from stripectl.costs.cost_model import CostModel
from stripectl.costs.matrices import MatrixProduct, matrix_rate
from stripectl.hardware.profile import Hardware
from stripectl.layers.decoder import layer_parameters
from stripectl.layers.embedding import embedding_parameters
from stripectl.layers.head import head_parameters

STATE_BYTES = 4  # of a parameter, its gradient, and each of AdamW's two moments
ADAMW_TOUCHES = (
    8  # per element: the gradient is read twice (first for its norm), parameter and moments read and written
)
PARTS = PROJECTIONS, FEED_FORWARD, HEAD  # with products of matrices
LEFT_OUT = "of a step: traffic of norms, rotations and residuals"


class StepTransfer(NamedTuple):
    """A collective that runs `times` per step: bytes that a device sends each time, over the devices of these axes."""

    opcode: str
    axes: tuple[str, ...]
    nbytes: float
    times: int
    links: float = 1.0  # that a byte crosses on a torus, where that is not all of a gather's
    gradients: bool = False


class StepWork(NamedTuple):
    """A device's work in a step: products of matrices by part, bytes that the optimizer moves, and collectives."""

    products: dict[str, list[MatrixProduct]]
    optimizer_bytes: float
    sent: list[StepTransfer]

    @property
    def flops(self) -> dict[str, float]:
        """FLOPs of each part's products."""
        return {name: math.fsum(each.flops for each in products) for name, products in self.products.items()}


def recomputes_attention(plan: Plan) -> bool:
    """Whether the backward pass runs attention forward again."""
    transposed = schemes[plan.scheme].backward is None
    return plan.remat == "full" or (transposed and plan.remat != "none")


def repeats_moves(plan: Plan) -> bool:
    """Whether the backward pass repeats a scheme's enter and leave, and the transfers of kept values, but not its
    attention: the arrays before and after them are not kept, unless a policy keeps everything."""
    return not recomputes_attention(plan) and plan.remat != "none"


def step_work(workload: Workload, plan: Plan) -> StepWork:
    """A step's parts on one device."""
    sizes, tensor = workload.sizes, plan.product(HEAD_AXES)
    rows = workload.seq_len // plan.product(SEQUENCE_AXES)
    tokens = rows * workload.batch / plan.product(BATCH_AXES)
    chunk, narrow = plan.chunk_rows(rows), plan.remat in ("full", "attention")
    chunks, chunked = rows / chunk, chunk < rows

    def products(matrix: Matrix, forward: int, times: float, runs: float = 1) -> list[MatrixProduct]:
        return products_of(matrix.shard(tensor), tokens / runs, forward, times * runs)

    found: dict[str, list[MatrixProduct]] = {name: [] for name in PARTS}
    for count, each in sizes.kinds:
        for matrix in each.projections:
            found[PROJECTIONS] += products(matrix, 1 + narrow, count)
    *first, last = sizes.swiglu
    for matrix, again in [*((each, chunked or narrow) for each in first), (last, False)]:
        found[FEED_FORWARD] += products(matrix, 1 + again, sizes.layers, chunks)
    found[HEAD] = products(Matrix(sizes.hidden, sizes.vocabulary, "cols"), 1 + chunked, 1, chunks)
    over = plan.product(plan.optimizer_axes)
    parameters = sizes.all_layer_parameters + 2 * sizes.head_parameters
    return StepWork(
        found,
        ADAMW_TOUCHES * STATE_BYTES * parameters / tensor / over,
        [
            *_activations(workload, plan, tokens, narrow, chunked),
            *_switches(workload, plan, tokens),
            *_halos(workload, plan),
            *_parameters(workload, plan),
        ],
    )


def products_of(shard: tuple[float, float], rows: float, forward: int, times: float) -> list[MatrixProduct]:
    """The products of a matrix with a number of rows: `forward` times the result, and the gradients of the rows and of
    the matrix."""
    inner, cols = shard
    return [
        MatrixProduct(rows, inner, cols, times * forward),
        MatrixProduct(rows, cols, inner, times),
        MatrixProduct(inner, rows, cols, times),
    ]


def _activations(workload: Workload, plan: Plan, tokens: float, narrow: bool, chunked: bool) -> list[StepTransfer]:
    """Sums over `tensor` of the results of matrices that are split along their inputs, the columns of the embedding,
    and the loss, whose logits are split."""
    tensor, layers = plan.product(HEAD_AXES), workload.sizes.layers
    over = wide_axes(plan, (*BATCH_AXES, *SEQUENCE_AXES))
    loss = [StepTransfer("all-reduce", over, 2 * _share(plan, over) * STATE_BYTES, 1)] if over else []
    if tensor == 1:
        return loss
    whole = tokens * workload.sizes.hidden * DTYPE_BYTES[workload.dtype]
    part = (tensor - 1) / tensor * whole
    # Per layer two sums in each pass, and the first again where the backward pass computes it; the head has one more.
    sums, again = 4 * layers + 1, layers * narrow
    # Of each token's logits the largest, the sum of exponentials and the target's; the gradient needs the first two.
    each = 2 * (tensor - 1) / tensor * tokens * STATE_BYTES
    loss.append(StepTransfer("all-reduce", HEAD_AXES, each, 3 + 2 * chunked))
    if schemes[plan.scheme].row_axes:  # each in two halves, sharded by rows in between
        gathers = sums + 2 * layers + chunked  # rows are gathered again for the gradients of matrices
        return [
            StepTransfer("reduce-scatter", HEAD_AXES, part, sums + again),
            StepTransfer("all-gather", HEAD_AXES, part, gathers),
            StepTransfer("all-to-all", HEAD_AXES, part / tensor, 2),
            *loss,
        ]
    return [
        StepTransfer("all-reduce", HEAD_AXES, 2 * part, sums + again),
        StepTransfer("all-gather", HEAD_AXES, part, 1),
        *loss,
    ]


def _switches(workload: Workload, plan: Plan, tokens: float) -> list[StepTransfer]:
    """Hidden states and their gradients between layers of two layouts."""
    if plan.softmax_layout is None or plan.shards == 1:
        return []
    pattern = pattern_of(workload.attention)
    kinds = pattern * (workload.sizes.layers // len(pattern))
    times = 2 * sum(turns * switches(body, "softmax") for body, turns in segments(kinds))
    whole = tokens * workload.sizes.hidden * DTYPE_BYTES[workload.dtype]
    return [
        StepTransfer(each.opcode, ("ring",), each.share * whole, times, each.links)
        for each in switch_transfers(plan.softmax_layout, plan.shards)
    ]


def _halos(workload: Workload, plan: Plan) -> list[StepTransfer]:
    """The last rows of queries, keys and values in each run of a shard's tokens, which the short convolution of the
    next run reads: in the forward pass, again in the backward pass where they are not kept, and their gradients."""
    axes = tuple(axis for axis in SEQUENCE_AXES if plan.size(axis) > 1)
    requests, itemsize = workload.batch / plan.product(BATCH_AXES), DTYPE_BYTES[workload.dtype]
    found, runs = [], sequence_sharding(workload, plan).runs
    for count, each in workload.sizes.kinds if axes else []:
        if each.d_conv:
            elements = each.projected - each.heads * each.value_dim
            nbytes = (each.d_conv - 1) * requests * elements / plan.product(HEAD_AXES) * itemsize
            found.append(StepTransfer("collective-permute", axes, nbytes, runs * count * (2 + (plan.remat != "none"))))
    return found


def _parameters(workload: Workload, plan: Plan) -> Iterator[StepTransfer]:
    """Parameters gathered, and gradients reduce-scattered over the axes that store them and summed over the others."""
    sizes, itemsize = workload.sizes, DTYPE_BYTES[workload.dtype]
    for table, times, uses in (
        *((layer_parameters(each), count, 2) for count, each in sizes.kinds),
        (embedding_parameters(sizes), 1, 1),
        (head_parameters(sizes), 1, 1),
    ):
        total = defaultdict[tuple[str, tuple[str, ...], int], float](float)
        for each in table.values():
            how = parameter_gather(each, plan)
            share = _share(plan, how.updated) * how.elements
            gathered = (share * itemsize, times * uses) if how.stored else (share * STATE_BYTES, times)
            total["all-gather", how.updated, gathered[1]] += gathered[0]
            total["reduce-scatter", how.updated, times] += share * STATE_BYTES
            own = how.elements / plan.product(how.updated) * STATE_BYTES
            total["all-reduce", how.summed, times] += 2 * _share(plan, how.summed) * own
        for (opcode, axes, each), nbytes in total.items():
            if axes:
                yield StepTransfer(opcode, axes, nbytes, each, gradients=opcode == "reduce-scatter")


def _share(plan: Plan, axes: Sequence[str]) -> float:
    """The fraction of a whole array that a device sends round axes where each device holds a shard."""
    return (plan.product(axes) - 1) / plan.product(axes)


def seconds_sent(sent: StepTransfer, plan: Plan, machine: CostModel) -> float:
    """Seconds of a collective over the devices of its axes, at the rate of `CostModel.received_bytes_per_s`.

    Gradients that would be scattered over several slices of TPUs are summed whole: the compiler gathers the sum before
    each device takes its part (`benchmarks/slices.py`).
    """
    axes = {axis: plan.size(axis) for axis in sent.axes if plan.size(axis) > 1}
    if machine.node and sent.opcode != "collective-permute":
        devices, both_ways = math.prod(axes.values()), 2 if sent.opcode == "all-reduce" else 1
        array = sent.nbytes / both_ways / (1 - 1 / devices)
        if timed := machine.measured_collective(sent.opcode, axes, array):
            return sent.times * sum(timed)
    crossed = sent.nbytes * (sent.links if machine.torus else 1.0)
    slices = any(machine.devices_per_slice(axis, size) < size for axis, size in axes.items())
    whole = sent.gradients and machine.torus and slices
    opcodes = [sent.opcode, "all-gather"] if whole else [sent.opcode]
    each_s = crossed * sum(1 / machine.received_bytes_per_s(opcode, axes) for opcode in opcodes)
    each_s += travel_s("all-reduce" if whole else sent.opcode, axes, machine)
    return sent.times * (machine.collective_latency_s + each_s)


def travel_s(opcode: str, axes: Mapping[str, int], machine: CostModel) -> float:
    """Seconds of a collective's hops without its bytes: along the links of each slice, there and back for a sum, and
    once through the network, where all slices exchange their parts at the same time."""
    within = {axis: machine.devices_per_slice(axis, size) for axis, size in axes.items()}
    near = {axis: size for axis, size in within.items() if size > 1}
    link_s = max((machine.longest_hop_s(axis, axes[axis]) for axis in near), default=0.0)
    network_s = max(machine.longest_hop_s(axis, size, network=True) for axis, size in axes.items())
    rounds = hops_round(near, machine) * (2 if opcode == "all-reduce" else 1) if near else 0
    return rounds * link_s + network_s


def hops_round(axes: Mapping[str, int], machine: CostModel) -> int:
    """The number of hops from the farthest device of a slice: on a torus along each axis in sequence, in both
    directions."""
    if machine.collective_spread(axes):
        return sum(math.ceil(size / 2) for size in axes.values())
    return math.ceil(
        (math.prod(axes.values()) - 1) / min(machine.ring_directions(axis, size) for axis, size in axes.items())
    )


def seconds_computed(
    step: StepWork, hardware: Hardware, dtype: str, flags: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Seconds of matrices by their shapes, and of the optimizer at the memory's rate; a part without a rate is
    omitted."""
    rate, memory = matrix_rate(hardware, dtype, flags), hardware.figure("hbm_bytes_per_s")
    found = {name: math.fsum(map(rate.seconds, each)) for name, each in step.products.items()} if rate else {}
    return found | ({OPTIMIZER: step.optimizer_bytes / memory} if memory else {})
