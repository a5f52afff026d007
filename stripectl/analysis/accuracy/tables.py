"""Every comparison with published measurements, as plain data."""

from typing import Any

from stripectl.analysis.accuracy.attention import attention_groups, attention_predictions
from stripectl.analysis.accuracy.compiled_steps import compiled_errors
from stripectl.analysis.accuracy.measured_kernel import fit_measured_kernel
from stripectl.analysis.accuracy.memory import memory_errors
from stripectl.analysis.accuracy.meshes import mesh_orders, mesh_times
from stripectl.analysis.accuracy.paper import paper_kernel, speed_up_errors


def accuracy_data(rows: bool = False) -> dict[str, Any]:
    """Errors by kind of prediction; with `rows`, also every published time of attention with its prediction."""
    fit = fit_measured_kernel()
    found: dict[str, Any] = {
        "attention": [each._asdict() | {"error": each.error._asdict()} for each in attention_groups()],
        "measured_kernel": fit._asdict() | {"left_out": fit.left_out._asdict()},
        "paper": [each._asdict() for each in speed_up_errors()],
        "paper_constants": paper_kernel(),
        "paper_compiled": [each._asdict() for each in compiled_errors()],
        "meshes": [each._asdict() for each in mesh_orders()],
        "mesh_steps": [each._asdict() for each in mesh_times()],
        "memory": [each._asdict() for each in memory_errors()],
    }
    if rows:
        found["rows"] = [
            each.row._asdict() | {"tile": str(each.row.tile), "predicted": each.predicted}
            for each in attention_predictions()
        ]
    return found
