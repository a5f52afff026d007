"""Steps of a small model: what they compute, and how exactly."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np
import optax

from stripectl.core.model import Model
from stripectl.training.step import Training, adamw, make_training

MODEL = Model(name="tiny", hidden=32, feed_forward=48, layers=2, heads=4, kv_heads=2, head_dim=8, vocabulary=56)
LINEAR = replace(MODEL, attention="linear", decay="per-head")
BATCH, LENGTH, STEPS = 4, 64, 3
FAST = {"xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": "true"}  # compiles in half the time
# Of the largest value. Adam divides a gradient by its size, so parameters whose gradient is nearly nothing move by
# rounding: their tolerance is wider.
LOSS, GRADIENTS, PARAMETERS = 1e-6, 5e-6, 1e-4
# Float32 noise: with this model, a step whose recurrence goes token by token in float32 has gradients 2.5e-5 and
# parameters 1.2e-4 from float64, in chunks 2.2e-5 and 9.9e-5, and over eight devices 5.9e-5 and 3.1e-4
# (benchmarks/README.md "Accuracy of recurrent training"). Offsets of gates start at -4, so three steps move them by
# 7.1e-4 of that.
RECURRENT_GRADIENTS, RECURRENT_PARAMETERS = 6e-5, 3.3e-4


def training(
    plan: str, length: int = LENGTH, dtype: str = "float32", model: Model = MODEL, divides: bool = True
) -> Training:
    """With an optimizer that remembers the gradients of its last step, and divides them as Adam does, or does not."""
    remembering = optax.chain(optax.trace(0), adamw(1e-3) if divides else optax.sgd(0.05))
    return make_training(model, plan, seq_len=length, batch=BATCH, dtype=dtype, optimizer=remembering)


def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, MODEL.vocabulary, (STEPS, BATCH, LENGTH + 1))


@cache
def trained(plan: str, dtype: str = "float32", model: Model = MODEL, divides: bool = True) -> dict[str, Any]:
    """Losses of three steps, gradients of the first, parameters before and after, the state after."""
    run = training(plan, dtype=dtype, model=model, divides=divides)
    step, state = run.compile(FAST), run.init(seed=0)
    found: dict[str, Any] = {"before": arrays(state.parameters), "losses": []}
    for batch in tokens():
        state, loss = step(state, run.place(batch))
        found["losses"].append(float(loss))
        found.setdefault("gradients", arrays(state.optimizer[0].trace))
    return found | {"after": arrays(state.parameters), "state": state}


def arrays(state: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


def errors(found: list[np.ndarray], reference: list[np.ndarray]) -> list[float]:
    return [float(np.abs(x - y).max() / np.abs(y).max()) for x, y in zip(found, reference, strict=True)]
