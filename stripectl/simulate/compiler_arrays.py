"""Arrays of parameters that XLA makes in a training step, by kind of device, as schedules of compiled steps show them
(`benchmarks/README.md`, "Memory of a training step")."""

from typing import NamedTuple


class CompilerArrays(NamedTuple):
    """The arrays of parameters and of their gradients that a step's program does not name."""

    narrow_copies: bool  # before the layers, the stored parts of all parameters are converted to the dtype of the step
    wide_gathers: bool  # gathered parameters are converted to float32 before their products
    second_sums: bool  # a second array for each gradient of the embedding's size that is summed
    overlapped: (
        bool  # a layer's parameters are gathered when it begins, and its gradients scattered while the next runs
    )


COMPILER_ARRAYS = {
    "tpu": CompilerArrays(narrow_copies=True, wide_gathers=False, second_sums=False, overlapped=False),
    "gpu": CompilerArrays(narrow_copies=False, wide_gathers=True, second_sums=True, overlapped=True),
    "cpu": CompilerArrays(narrow_copies=False, wide_gathers=True, second_sums=True, overlapped=False),
}
