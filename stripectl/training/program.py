"""The program of a plan: attention, or the training step of the workload's model, ready to be compiled."""

from collections.abc import Sequence
from typing import Any

from stripectl.core.plan import Plan
from stripectl.core.workload import STEP, Workload
from stripectl.execute.program import PlanProgram, mesh_of


def program_of(workload: Workload, plan: Plan, devices: Sequence[Any]) -> Any:
    """A PlanProgram, or a Training, of a plan that names its tile, on devices in the order of its mesh."""
    if workload.passes != STEP:
        return PlanProgram(workload, plan, devices)
    from stripectl.training.step import Training, adamw  # importing flax and optax takes a second, unneeded here

    return Training(workload.sizes, workload, plan, mesh_of(plan, devices), adamw())
