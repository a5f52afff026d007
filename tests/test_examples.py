"""Code that people start from: the training example runs, and says what it promises."""

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from stripectl.core.plan import Plan
from stripectl.training import decoder
from stripectl.training.step import Training

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def example() -> dict:
    return runpy.run_path(str(ROOT / "examples" / "train_bytes.py"))


@pytest.mark.training
@pytest.mark.usefixtures("users_compiler")
@pytest.mark.parametrize(
    "attention", ["softmax", "LLLS", *(pytest.param(each, marks=pytest.mark.full) for each in ("linear", "SL"))]
)
def test_every_attention_learns_the_bytes_in_the_default_steps(attention: str) -> None:
    """As a user runs it, in a process of its own."""
    command = [sys.executable, ROOT / "examples" / "train_bytes.py", "--attention", attention]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    _, first, *_, last, _ = (line.split() for line in done.stdout.splitlines())
    assert (first[0], last[0]) == ("1", "60")
    for before, after in zip(first[1:4], last[1:4], strict=True):
        assert float(after) < float(before) - 2, "every plan learns"


def with_wrong_gradient(x: jax.Array) -> jax.Array:
    """The value, whose gradient is 1 % too large."""
    return x + 0.01 * (x - jax.lax.stop_gradient(x))


def plant(patch: pytest.MonkeyPatch, at: int | None) -> None:
    """A wrong gradient where a plan has several devices: of attention's argument `at` (queries, keys, values), or of
    the last array of parameters."""
    loss, plan_attention = Training.loss, decoder.plan_attention

    def wrong_loss(self: Training, parameters: Any, batch: Any) -> jax.Array:
        leaves, tree = jax.tree.flatten(parameters)
        if self.plan.devices > 1:
            leaves[-1] = with_wrong_gradient(leaves[-1])
        return loss(self, jax.tree.unflatten(tree, leaves), batch)

    def wrong_attention(plan: Plan, *others: Any, **options: Any) -> Callable:
        def attend(*arrays: jax.Array) -> jax.Array:
            wrong = plan.devices > 1
            return right(*(with_wrong_gradient(x) if wrong and i == at else x for i, x in enumerate(arrays)))

        right = plan_attention(plan, *others, **options)
        return attend

    if at is None:
        patch.setattr(Training, "loss", wrong_loss)
    else:
        patch.setattr(decoder, "plan_attention", wrong_attention)


@pytest.mark.training
@pytest.mark.parametrize(
    ("attention", "at"),
    [("LLLS", None), ("LLLS", 0), ("softmax", 1), ("linear", 2)],
    ids=["parameter", "queries", "keys", "values"],
)
def test_a_gradient_that_is_wrong_by_one_percent_is_found(
    example: dict, attention: str, at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, at)
    plans = example["PLANS" if attention == "softmax" else "LINEAR"]
    data = example["batches"](example["corpus"](), 1)
    found = example["train"](plans[::2], data, example["with_attention"](attention))
    assert found > 5 * example["TOLERANCE"]
    assert 0.009 < found < 0.03, "what attention's arguments come from adds up from layer to layer"


@pytest.mark.full
def test_a_ring_fits_where_one_device_does_not(example: dict, capsys) -> None:
    example["memory"]([example["ONE"], "ring/striped@ring=8"], [2**15], 100 * 2**20)
    row = capsys.readouterr().out.splitlines()[1]
    assert row.count("too large") == 1 and float(row.split()[1]) > 4 * float(row.split()[-2])
