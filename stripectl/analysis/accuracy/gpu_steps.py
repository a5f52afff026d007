"""Simulated rings and training steps of frameworks on GPUs, compared with times that others measured
(`profiles/published/gpu_steps.csv`). A framework's kernel is FlashAttention or cuDNN; the simulated one is cuDNN.

BurstEngine gives FLOP/s of a causal mask with both passes, 3.5 times the forward pass; the file has seconds.
"""

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


class GpuStepTime(NamedTuple):
    """A published time of a ring or of a step, and its prediction, in seconds."""

    source: str
    target: str
    computes: str
    seq_len: int
    plan: str
    seconds: float
    predicted: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.seconds


@cache
def gpu_step_times() -> tuple[GpuStepTime, ...]:
    """Every published time."""
    found: list[GpuStepTime] = []
    for row in table_rows("published/gpu_steps"):
        what = row["target"], row["computes"], int(row["seq_len"]), row["plan"]
        found.append(GpuStepTime(row["source"], *what, float(row["seconds"]), gpu_step_s(*what)))
    return tuple(found)


def gpu_step_s(target: str, computes: str, seq_len: int, plan: str) -> float:
    """Seconds of a plan for causal attention, `40 heads of 128` in both passes, or a step of a model."""
    place, parsed = parse_target(target), parse_plan(plan)
    heads, alone, size = computes.partition(HEADS_OF)
    if alone:
        count, dim = int(heads), int(size)
        work = Workload(seq_len=seq_len, heads=count, kv_heads=count, head_dim=dim, passes="forward-backward")
    else:
        work = step_workload(computes, seq_len)
    machine = cost_model(place.hardware, work, parsed, place_mesh(place, parsed.mesh or ()))
    if alone:
        return simulate(work, parsed, machine).seconds
    return SimulatedStep(work, parsed, place.hardware, [machine]).timed().seconds
