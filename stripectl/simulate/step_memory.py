"""The memory of a training step on one device, by part, at its peak.

Float32 parameters and AdamW's two moments stay in memory throughout, in shards. Parameters of the model that no
computed matrix has (experts, norms) count like parameters of layers. From a layer's forward to its backward pass the
values that the plan's `remat` names stay, at least the layer's input. The peak is at one of three places:

- the backward pass of a layer's attention: the memory of attention by `simulate`, the layer's input and gradients of
  this size, the gathered matrices of the feed-forward and their gradients, which are scattered only after the layer; in
  addition the gradients of all layers and of the head, and the parameters in the dtype of the step;
- the backward pass of the loss: the logits of a chunk and their gradient, with the head's matrix and its gradient;
- the gradient of the embedding, which is summed as a whole, like the head's.

These arrays were found in schedules that XLA made for TPUs (benchmarks/memory.py compares the sums).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from stripectl.core.kernel import LANES, kernels
from stripectl.core.layer_groups import layer_groups
from stripectl.core.mesh import BATCH_AXES, HEAD_AXES, SEQUENCE_AXES
from stripectl.core.model import Model
from stripectl.core.plan import STATES, Plan
from stripectl.core.scheme import schemes
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.workload import DTYPE_BYTES, STEP, Workload
from stripectl.costs.cost_model import COUNTING
from stripectl.simulate.simulation import simulate
from stripectl.simulate.step_program import STATE_BYTES

MOMENTS = 2  # of AdamW
STREAMS = 5  # arrays of the size of a layer's input, outside attention: the input, the input of the feed-forward, and
# the gradients after the layer, after attention, and of the feed-forward
# Arrays of the size of the embedding while its gradient is summed over devices: the gradient, the gradient of the head,
# and a copy; the compiler of a GPU sums each into a separate array.
WHOLE = {"tpu": 3, "gpu": 5, "cpu": 5}


def predicted_peak_bytes(workload: Workload, plan: Plan, kind: str) -> int:
    """The predicted peak memory of a device of this kind, for attention alone or for a step."""
    if workload.passes == STEP:
        return sum(step_memory(workload, plan, kind).values())
    return simulate(workload, plan, COUNTING).peak_bytes


class AttentionMemory(NamedTuple):
    """Bytes of a layer's attention on a device: at its peak, and from its forward to its backward pass where everything
    is kept."""

    peak_bytes: int
    held_bytes: int

    @classmethod
    def of(cls, workload: Workload, plan: Plan) -> "AttentionMemory":
        found = simulate(layer_in_memory(workload, plan), plan, COUNTING, layer=True)
        return cls(found.peak_bytes, found.held_bytes)


def step_memory(workload: Workload, plan: Plan, kind: str, attention: Sequence[AttentionMemory] = ()) -> dict[str, int]:
    """Bytes of a device of this kind at the peak of a step, by part; their sum is the peak. `attention` has the memory
    of a simulated layer of each kind, where it is known already."""
    sizes, tensor, itemsize = workload.sizes, plan.product(HEAD_AXES), DTYPE_BYTES[workload.dtype]
    rows = workload.seq_len // plan.product(SEQUENCE_AXES)
    tokens = rows * workload.batch // plan.product(BATCH_AXES)
    layers = (sizes.all_layer_parameters + sizes.other_parameters) / tensor
    head = sizes.head_parameters / tensor
    layer_state, head_state = (
        _state(parameters, workload, plan) for parameters in (layers, sizes.vocabulary_parameters / tensor)
    )
    stream = tokens * sizes.hidden * itemsize / (tensor if schemes[plan.scheme].row_axes else 1)
    forward = sizes.feed_forward_parameters / tensor  # of a layer's feed-forward
    alike = layer_groups(workload, plan)
    kinds = [(count, own.sizes, each) for count, own, each in alike]
    attention = attention or [AttentionMemory.of(own, each) for _, own, each in alike]
    kept = {
        **{name: layer_state[name] + head_state[name] for name in ("parameters", "optimizer")},
        "activations": sum(
            count * (stream + _kept(each, workload, own, tokens, memory.held_bytes))
            for (count, each, own), memory in zip(kinds, attention, strict=True)
        ),
    }
    gradients, narrow = layer_state["gradients"], layer_state["gathered parameters"]
    chunk = plan.chunk_rows(rows) * tokens // rows
    logits = chunk * sizes.vocabulary / tensor * STATE_BYTES
    most = max(
        memory.peak_bytes + _before_convolution(own, each)
        for (_, own, each), memory in zip(alike, attention, strict=True)
    )
    intermediate = 4 * itemsize * chunk * sizes.feed_forward / tensor
    moments = [
        {
            "gradients": gradients + STATE_BYTES * (head + forward),
            "gathered parameters": narrow + itemsize * forward,
            "activations": kept["activations"] + STREAMS * stream,
            "attention": max(most, intermediate + max(_queries(each, workload, plan, tokens) for _, each, _ in kinds)),
        },
        {
            "gradients": STATE_BYTES * head,
            "gathered parameters": itemsize * head,
            "activations": kept["activations"] + 2 * stream,
            "logits": 2 * logits,
        },
        {"gradients": gradients + STATE_BYTES * WHOLE[kind] * head},
    ]
    found = [kept | each for each in moments]
    return {name: round(nbytes) for name, nbytes in max(found, key=lambda each: sum(each.values())).items()}


def _state(parameters: float, workload: Workload, plan: Plan) -> dict[str, float]:
    """Bytes of a device for so many parameters of a tensor shard, by part: the parameters, AdamW's moments, the
    gradients, and the parameters in the dtype of the step."""
    stored, updated = plan.product(plan.parameter_axes), plan.product(plan.optimizer_axes)
    return {
        "parameters": STATE_BYTES * parameters / stored,
        "optimizer": STATE_BYTES * MOMENTS * parameters / updated,
        "gradients": STATE_BYTES * parameters / updated,
        "gathered parameters": DTYPE_BYTES[workload.dtype] * parameters / stored,
    }


def uncomputed_bytes(workload: Workload, plan: Plan) -> int:
    """Bytes of a device for the parameters of a step's model that no computed matrix has, which the step's program
    does not hold; 0 where the program holds more."""
    parameters = workload.other_parameters / plan.product(HEAD_AXES)
    return max(0, round(sum(_state(parameters, workload, plan).values())))


def _before_convolution(workload: Workload, plan: Plan) -> float:
    """The memory of a layer's arrays before a short convolution."""
    tokens = workload.seq_len // plan.product(SEQUENCE_AXES) * workload.batch // plan.product(BATCH_AXES)
    return _convolved(workload.sizes, workload, plan, tokens) if workload.d_conv else 0.0


def layer_in_memory(workload: Workload, plan: Plan) -> Workload:
    """The attention of one layer of a step, forward and backward, with heads as large as in memory: where a Pallas
    kernel computes a recurrence, a row of its arrays fills whole vector registers."""
    layer = workload.one_layer("forward-backward")
    if not (layer.gated and kernels[plan.kernel].costs.bundles):
        return layer
    keys, values = (-(-size // LANES) * LANES for size in (layer.head_dim, layer.value_dim))
    return replace(layer, head_dim=keys, v_head_dim=values)


def _convolved(sizes: Model, workload: Workload, plan: Plan, tokens: int) -> float:
    """Queries, keys and values of a layer."""
    output = tokens * sizes.heads * sizes.value_dim / plan.product(HEAD_AXES) * DTYPE_BYTES[workload.dtype]
    return _queries(sizes, workload, plan, tokens) - output


def _queries(sizes: Model, workload: Workload, plan: Plan, tokens: int) -> float:
    """Queries, keys, values and output of a layer."""
    return tokens * sizes.projected / plan.product(HEAD_AXES) * DTYPE_BYTES[workload.dtype]


def _kept(sizes: Model, workload: Workload, plan: Plan, tokens: int, held_bytes: int) -> float:
    """The values that a layer keeps for its backward pass, without its input; `held_bytes` of them are attention's
    where everything is kept: queries, keys, values and output, and what the scheme or a transpose keeps besides."""
    tensor, itemsize = plan.product(HEAD_AXES), DTYPE_BYTES[workload.dtype]
    width = sizes.heads * sizes.value_dim / tensor
    written = schemes[plan.scheme].backward is not None
    output = tokens * width * itemsize if written else 0.0
    residual = _residual(sizes, workload, plan, tokens) if written else 0.0
    rows = workload.seq_len // plan.product(SEQUENCE_AXES)
    between = 0 if plan.chunk_rows(rows) < rows else 2 * tokens * sizes.feed_forward / tensor * itemsize
    projected = _convolved(sizes, workload, plan, tokens)
    stream = tokens * sizes.hidden * itemsize
    return {
        "full": 0.0,
        "attention": output + residual,
        "dots": output + residual + projected + stream + between,
        "none": held_bytes + residual + (1 + bool(sizes.d_conv)) * projected + 4 * stream + 2 * between,
    }[plan.remat]


def _residual(sizes: Model, workload: Workload, plan: Plan, tokens: int) -> float:
    """The sums of exponentials of a layer's queries, or the states before each run of tokens of a linear layer."""
    if workload.attention != "linear":
        return tokens * sizes.heads / plan.product(HEAD_AXES) * STATE_BYTES
    runs = workload.batch / plan.product(BATCH_AXES) * sequence_sharding(workload, plan).runs
    heads = sizes.kv_heads / plan.product(HEAD_AXES) / plan.size("ulysses")
    return (plan.states == STATES[0]) * runs * heads * sizes.head_dim * sizes.value_dim * STATE_BYTES
