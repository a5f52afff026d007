"""Memory of plans predicted without a compiler, compared with the compilers' reports about the same plans
(`profiles/compiled/memory.json`, made by benchmarks/memory.py)."""

import json
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from stripectl.core.architecture import LLAMA
from stripectl.core.mesh import BATCH_AXES
from stripectl.core.plan import parse_plan
from stripectl.core.workload import STEP, Workload
from stripectl.hardware.target import read_target
from stripectl.models.model_files import load_model
from stripectl.simulate.step_memory import predicted_peak_bytes
from stripectl.util.files import data_folder

FILE = "memory.json"
FEED_FORWARD = 128  # of Mamba-2, when the rows of FILE were compiled with LLaMA's layers
NEAR_SHARE = 0.10  # of the compiler's figure


class MemoryPrediction(NamedTuple):
    """A plan of a workload on a target: a device's compiled and predicted bytes; compiled is None where the compiler
    refused the plan."""

    model: str
    passes: str
    target: str
    plan: str
    seq_len: int
    compiled: int | None
    predicted: int

    @property
    def ratio(self) -> float:
        return self.predicted / self.compiled if self.compiled else float("nan")


class MemoryAccuracy(NamedTuple):
    """For the rows of one kind of program and of hardware: the geometric mean of the error, the worst ratio, and the
    number of rows within NEAR_SHARE."""

    what: str
    hardware: str
    rows: int
    mean: float
    worst: float
    near: int


class CompiledMemory(NamedTuple):
    """A row of the file: a plan as it was requested and as it was made, with its tile; no bytes where the compiler
    refused it."""

    model: str
    passes: str
    target: str
    plan: str
    made: str
    seq_len: int
    peak_bytes: int | None = None
    refused: str | None = None

    @property
    def workload(self) -> Workload:
        """A model's attention alone, or its step with a sequence per replica."""
        model = load_model(self.model)
        size = FEED_FORWARD if model.architecture.no_feed_forward else model.feed_forward
        sizes = replace(model, feed_forward=size, other_parameters=0, architecture=LLAMA).step_sizes  # as compiled
        if self.passes != STEP:
            sizes = {name: sizes[name] for name in ("heads", "kv_heads", "head_dim")}
        batch = parse_plan(self.plan).product(BATCH_AXES)
        return Workload(seq_len=self.seq_len, batch=batch, passes=self.passes, model=self.model, **sizes)

    def predicted(self) -> MemoryPrediction:
        predicted = predicted_peak_bytes(self.workload, parse_plan(self.made), read_target(self.target).kind)
        names = self.model, self.passes, self.target, self.plan
        return MemoryPrediction(*names, self.seq_len, self.peak_bytes, predicted)


@cache
def memory_predictions() -> tuple[MemoryPrediction, ...]:
    content = json.loads((data_folder("profiles") / "compiled" / FILE).read_text())
    return tuple(CompiledMemory(**each).predicted() for each in content)


def memory_errors() -> list[MemoryAccuracy]:
    groups: dict[tuple[str, str], list[float]] = {}
    for row in memory_predictions():
        if row.compiled:
            what = "training steps" if row.passes == STEP else "attention alone"
            groups.setdefault((what, read_target(row.target).hardware), []).append(row.ratio)
    found: list[MemoryAccuracy] = []
    for (what, hardware), ratios in groups.items():
        logs = np.abs(np.log(ratios))
        near = sum(abs(ratio - 1) <= NEAR_SHARE for ratio in ratios)
        found.append(
            MemoryAccuracy(what, hardware, len(ratios), float(np.expm1(logs.mean())), ratios[int(logs.argmax())], near)
        )
    return found
