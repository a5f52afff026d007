"""Simulated rings and training steps of frameworks, compared with times that others measured
(`profiles/published/steps.csv`). A framework's kernel on GPUs is FlashAttention or cuDNN; the simulated one is cuDNN.
Rows of MaxText keep and offload the values that its recipe names, where the backward pass needs them.

BurstEngine gives FLOP/s of a causal mask with both passes, 3.5 times the forward pass; the file has seconds.
"""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

from stripectl.analysis.accuracy.steps import step_workload
from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload
from stripectl.costs.source_order import cost_model
from stripectl.hardware.placement import place_mesh
from stripectl.hardware.target import parse_target
from stripectl.simulate.simulation import simulate
from stripectl.simulate.training_step import SimulatedStep
from stripectl.util.files import table_rows

HEADS_OF = " heads of "  # of a row that is attention alone


class FrameworkStepTime(NamedTuple):
    """A published time of a ring or of a step, and its prediction, in seconds."""

    source: str
    target: str
    computes: str
    seq_len: int
    plan: str
    batch: int
    seconds: float
    predicted: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.seconds


@cache
def framework_step_times() -> tuple[FrameworkStepTime, ...]:
    """Every published time."""
    found: list[FrameworkStepTime] = []
    for row in table_rows("published/steps"):
        what = row["target"], row["computes"], int(row["seq_len"]), row["plan"], int(row["batch"])
        found.append(FrameworkStepTime(row["source"], *what, float(row["seconds"]), framework_step_s(*what)))
    return tuple(found)


def framework_step_s(target: str, computes: str, seq_len: int, plan: str, batch: int) -> float:
    """Seconds of a plan for causal attention, `40 heads of 128` in both passes, or a step of a model."""
    place, parsed = parse_target(target), parse_plan(plan)
    heads, alone, size = computes.partition(HEADS_OF)
    if alone:
        count, dim = int(heads), int(size)
        work = Workload(seq_len=seq_len, heads=count, kv_heads=count, head_dim=dim, passes="forward-backward")
    else:
        work = replace(step_workload(computes, seq_len), batch=batch)
    machine = cost_model(place.hardware, work, parsed, place_mesh(place, parsed.mesh or ()))
    if alone:
        return simulate(work, parsed, machine).seconds
    return SimulatedStep(work, parsed, place.hardware, [machine]).timed().seconds
