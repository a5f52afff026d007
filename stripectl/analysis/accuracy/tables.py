"""Every comparison with published measurements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stripectl.analysis.accuracy.attention import (
    AttentionGroup,
    Prediction,
    attention_groups,
    attention_predictions,
    published_devices,
)
from stripectl.analysis.accuracy.collectives import CollectiveGroup, collective_groups
from stripectl.analysis.accuracy.compiled_steps import CompiledSpeedUpAccuracy, compiled_errors
from stripectl.analysis.accuracy.framework_steps import FrameworkStepTime, framework_step_times
from stripectl.analysis.accuracy.memory import MemoryAccuracy, memory_errors
from stripectl.analysis.accuracy.meshes import MeshOrder, MeshTime, mesh_orders, mesh_times, rank_correlation
from stripectl.analysis.accuracy.paper import (
    PaperKernel,
    SpeedUpAccuracy,
    measured_devices,
    paper_kernel,
    speed_up_error,
)
from stripectl.analysis.accuracy.recurrences import RecurrenceGroup, recurrence_groups
from stripectl.results.records import record_json
from stripectl.util.json import Json


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Errors by kind of prediction; `rows` are the published times of attention with their predictions, or None."""

    attention: Sequence[AttentionGroup]
    recurrences: Sequence[RecurrenceGroup]
    collectives: Sequence[CollectiveGroup]
    framework_steps: Sequence[FrameworkStepTime]
    paper: Sequence[SpeedUpAccuracy]
    paper_constants: Mapping[str, PaperKernel]
    paper_compiled: Sequence[CompiledSpeedUpAccuracy]
    meshes: Sequence[MeshOrder]
    mesh_steps: Sequence[MeshTime]
    memory: Sequence[MemoryAccuracy]
    rows: Sequence[Prediction] | None = None

    def to_json(self) -> dict[str, Json]:
        found: dict[str, Json] = {
            "attention": [each._asdict() | {"error": each.error._asdict()} for each in self.attention],
            "recurrences": [each._asdict() | {"error": each.error._asdict()} for each in self.recurrences],
            "collectives": [each._asdict() | {"error": each.error._asdict()} for each in self.collectives],
            "framework_steps": [each._asdict() for each in self.framework_steps],
            "paper": [each._asdict() for each in self.paper],
            "paper_constants": {name: record_json(each) for name, each in self.paper_constants.items()},
            "paper_compiled": [each._asdict() for each in self.paper_compiled],
            "meshes": [each._asdict() | {"tau": rank_correlation(each.seq_len)} for each in self.meshes],
            "mesh_steps": [each._asdict() for each in self.mesh_steps],
            "memory": [each._asdict() for each in self.memory],
        }
        if self.rows is not None:
            found["rows"] = [
                each.row._asdict() | {"tile": str(each.row.tile), "predicted": each.predicted, "as_a_plan": each.call}
                for each in self.rows
            ]
        return found


def compute_accuracy(rows: bool = False) -> Accuracy:
    """All errors; with `rows`, also every published time of attention."""
    return Accuracy(
        attention=[group for name in published_devices() for group in attention_groups(name)],
        recurrences=recurrence_groups(),
        collectives=collective_groups(),
        framework_steps=framework_step_times(),
        paper=[speed_up_error(name) for name in measured_devices()],
        paper_constants=paper_kernel(),
        paper_compiled=compiled_errors(),
        meshes=mesh_orders(),
        mesh_steps=mesh_times(),
        memory=memory_errors(),
        rows=[each for name in published_devices() for each in attention_predictions(name)] if rows else None,
    )
