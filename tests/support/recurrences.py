"""Workloads and values of recurrences with gates."""

from dataclasses import replace
from typing import Any

import numpy as np

from stripectl.core.plan import Plan
from stripectl.core.recurrence import LOG_GATE, WRITE, recurrences
from stripectl.core.workload import Workload

NAMES = recurrences.names()
KEYS, VALUES, HEADS = 16, 8, 8  # elements of a key, of a value; heads of values


def workload(name: str, plan: Plan, dtype: str = "float32", **change: Any) -> Workload:
    usual = Workload(
        seq_len=48 * max(2, plan.devices),
        heads=HEADS,
        kv_heads=HEADS,
        head_dim=KEYS,
        v_head_dim=VALUES,
        attention="linear",
        recurrence=name,
        passes="forward-backward",
        dtype=dtype,
    )
    return replace(usual, **change)


def drawn(name: str, rows: int, *, gates: float = 1.0, correlated: float = 0.0) -> list[np.ndarray]:
    """(q, k, v, gates..., cotangent): gates of exp(-gates) and less; correlated keys have so much in common."""
    rng, recurrence = np.random.default_rng(0), recurrences[name]
    q, k = (rng.standard_normal((1, 2, rows, KEYS)) for _ in range(2))
    k = k + correlated * rng.standard_normal(KEYS)
    if recurrence.delta:
        k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v, dout = (rng.standard_normal((1, 4, rows, VALUES)) for _ in range(2))
    made = {LOG_GATE: lambda x: -gates * np.exp(x), WRITE: lambda x: 1 / (1 + np.exp(-4 * x))}
    of = [made[each](rng.standard_normal((1, 4, rows, *shape))) for each, shape in recurrence.gate_shapes(KEYS).items()]
    return [x.astype(np.float32) for x in (q, k, v, *of, dout)]
