"""Training steps of published rows, as workloads."""

from stripectl.core.model import MODEL_SIZES
from stripectl.core.workload import STEP, Workload
from stripectl.models.model_files import load_model


def step_workload(model: str, seq_len: int) -> Workload:
    """A training step of a model on one sequence."""
    known = load_model(model)
    sizes = {name: getattr(known, name) for name in (*MODEL_SIZES, "heads", "kv_heads", "head_dim")}
    return Workload(seq_len=seq_len, passes=STEP, model=model, **sizes)
