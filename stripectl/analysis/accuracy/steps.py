"""Training steps of published rows, on clocks."""

from stripectl.hardware import Hardware
from stripectl.machine import Machine
from stripectl.plan import Plan
from stripectl.step import of_step, seconds_computed
from stripectl.training_time import Parts
from stripectl.workload import STEP, Workload
from stripectl.workload.model import SIZES, Model


def step_workload(model: str, seq_len: int) -> Workload:
    """A training step of a model on one sequence."""
    known = Model.load(model)
    sizes = {name: getattr(known, name) for name in (*SIZES, "heads", "kv_heads", "head_dim")}
    return Workload(seq_len=seq_len, passes=STEP, model=model, **sizes)


def step_parts(workload: Workload, plan: Plan, hardware: Hardware, machine: Machine) -> Parts:
    """The parts of a step whose attention runs on a machine; collectives beside it hide behind nothing."""
    step = of_step(workload, plan)
    beside = seconds_computed(step, hardware, workload.dtype)
    return Parts(workload, plan, [machine], beside, [(each, False) for each in step.sent])
