"""Layers that differ from LLaMA's: loss and gradients under plans equal those of a decoder in float64 that is written
out (`tests.support.decoders`)."""

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from stripectl.core.model import Model
from tests.support.decoders import DECODERS, LINEAR_DECODERS, oracle
from tests.support.training import GRADIENTS, LOSS, RECURRENT_GRADIENTS, errors, tokens, training

ONE = "ring/contiguous@ring=1,chunk=0,remat=none"
ONE_LINEAR = "lasp@ring=1,chunk=0,remat=none"
# Over every axis, and with every policy: four devices, or eight.
PLANS = [
    "ring/striped@fsdp=2,tensor=2,chunk=8",
    "ring/zigzag@data=2,ring=2,tensor=2,chunk=16,remat=dots",
    "megatron_sp/contiguous@fsdp=2,tensor=2,chunk=8,remat=attention",
    "ring/contiguous@ring=4,chunk=0,remat=none",
    "all_gather/striped@data=2,fsdp=2,zero=1,chunk=0",
]


@cache
def parameters(model: Model) -> Any:
    """Initial parameters, moved so far that each has its own effect."""
    random = np.random.default_rng(1)

    def moved(x: np.ndarray) -> np.ndarray:
        return x + 0.1 * random.standard_normal(x.shape).astype(x.dtype)

    one = ONE_LINEAR if model.attention == "linear" else ONE
    return jax.tree.map(lambda x: moved(np.asarray(x)), training(one, model=model).init(seed=0).parameters)


@cache
def expected(model: Model) -> tuple[float, Any]:
    return oracle(nnx.to_pure_dict(parameters(model)), tokens()[0], model)


@pytest.mark.parametrize(
    "plan", [ONE, PLANS[0], *(pytest.param(plan, marks=pytest.mark.training) for plan in PLANS[1:])]
)
@pytest.mark.parametrize("name", DECODERS)
def test_loss_and_gradients_are_those_of_the_definition(name: str, plan: str) -> None:
    assert_exact(DECODERS[name], plan)


LINEAR_PLANS = ["lasp@data=2,fsdp=2,ring=2,chunk=8,tile=12", "lasp2@ring=2,tensor=2,chunk=0,remat=attention,zero=1"]


@pytest.mark.parametrize(
    "plan", [ONE_LINEAR, LINEAR_PLANS[1], pytest.param(LINEAR_PLANS[0], marks=pytest.mark.training)]
)
@pytest.mark.parametrize("name", LINEAR_DECODERS)
def test_gates_of_linear_layers_are_those_of_the_definition(name: str, plan: str) -> None:
    assert_exact(LINEAR_DECODERS[name], plan, RECURRENT_GRADIENTS)


def assert_exact(model: Model, plan: str, tolerance: float = GRADIENTS) -> None:
    run = training(plan, model=model)
    given = jax.device_put(parameters(model), run.shardings.parameters)
    loss, found = run.gradients(given, run.place(tokens()[0]))
    expected_loss, gradients = expected(model)
    assert np.isclose(float(loss), expected_loss, rtol=LOSS, atol=0)
    assert jax.tree.structure(gradients) == jax.tree.structure(nnx.to_pure_dict(found))
    assert max(errors(jax.tree.leaves(found), jax.tree.leaves(gradients))) < tolerance
