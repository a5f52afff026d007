"""Arrays of parameters that XLA makes in a training step, by kind of device, as schedules of compiled steps show them
(`benchmarks/README.md`, "Memory of a training step")."""

from typing import NamedTuple


class MemoryHabits(NamedTuple):
    """The arrays of parameters and of their gradients that a step's program does not name."""

    narrows_all: bool  # before the layers, the stored parts of all parameters are converted to the dtype of the step
    widens: bool  # gathered parameters are converted to float32 before their products
    copies_sums: bool  # a second array for each gradient of the embedding's size that is summed
    travels: bool  # a layer's parameters are gathered when it begins, and its gradients scattered while the next runs


HABITS = {
    "tpu": MemoryHabits(narrows_all=True, widens=False, copies_sums=False, travels=False),
    "gpu": MemoryHabits(narrows_all=False, widens=True, copies_sums=True, travels=True),
    "cpu": MemoryHabits(narrows_all=False, widens=True, copies_sums=True, travels=False),
}
