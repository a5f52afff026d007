"""The bytes of a device for the parameters of a step's model, their gradients and AdamW's moments.

Float32 parameters and two moments stay in memory throughout, in shards. Parameters of the model that no computed matrix
has (experts, for example) count like parameters of layers.
"""

from typing import NamedTuple

from stripectl.core.mesh import HEAD_AXES
from stripectl.core.plan import Plan
from stripectl.core.workload import DTYPE_BYTES, Workload

STATE_BYTES = DTYPE_BYTES["float32"]  # of a parameter, its gradient, and each of AdamW's two moments
MOMENTS = 2  # of AdamW


class ParameterState(NamedTuple):
    """Bytes of parameters, of AdamW's moments, of gradients, and of the parameters in the dtype of the step."""

    parameters: float
    moments: float
    gradients: float
    narrow: float

    @classmethod
    def of(cls, parameters: float, workload: Workload, plan: Plan) -> "ParameterState":
        """Of `parameters` parameters of a tensor shard."""
        stored, updated = plan.product(plan.parameter_axes), plan.product(plan.optimizer_axes)
        return cls(
            STATE_BYTES * parameters / stored,
            STATE_BYTES * MOMENTS * parameters / updated,
            STATE_BYTES * parameters / updated,
            DTYPE_BYTES[workload.dtype] * parameters / stored,
        )


def step_state(workload: Workload, plan: Plan) -> tuple[ParameterState, ParameterState]:
    """For the parameters of the layers, and for the embedding and the head."""
    sizes, tensor = workload.sizes, plan.product(HEAD_AXES)
    counts = sizes.all_layer_parameters + sizes.other_parameters, sizes.vocabulary_parameters
    layers, ends = (ParameterState.of(count / tensor, workload, plan) for count in counts)
    return layers, ends


def uncomputed_bytes(workload: Workload, plan: Plan) -> int:
    """Bytes of a device for the parameters of a step's model that no computed matrix has, which the step's program
    does not hold; 0 where the program holds more."""
    return max(0, round(sum(ParameterState.of(workload.other_parameters / plan.product(HEAD_AXES), workload, plan))))
