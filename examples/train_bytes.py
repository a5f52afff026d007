"""Train a small model on the bytes of this repository's text: one device, ring attention and striped attention.

    python examples/train_bytes.py                three loss curves, on 8 virtual CPU devices, with equal gradients
    python examples/train_bytes.py --steps 300    longer; --plan PLAN, once or more, for other plans
    python examples/train_bytes.py --attention LLLS     three layers of linear attention and one of softmax
    python examples/train_bytes.py --memory       what a step needs on one device and on each of 8, by the compiler

Everything is what stripectl is made of: `make_training` builds the step of a LLaMA-style model under a plan.
"""

import argparse
import os
from dataclasses import replace
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX is imported, which reads both
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import numpy as np
import optax

from stripectl.core.lengths import format_length, parse_lengths
from stripectl.core.model import Model
from stripectl.execute.program import compiled_peak_bytes
from stripectl.training.step import State, Training, adamw, make_training

ROOT = Path(__file__).parent.parent
ONE = "ring/contiguous@ring=1"
PLANS = [ONE, "ring/contiguous@ring=8", "ring/striped@ring=8"]
LINEAR = ["lasp2@ring=1", "lasp@ring=8", "lasp2@ring=8"]
MODEL = Model(name="bytes", hidden=64, feed_forward=176, layers=2, heads=4, kv_heads=2, head_dim=16, vocabulary=256)
BATCH, LENGTH = 4, 512
TOLERANCE = 1e-3  # of gradients (benchmarks/README.md "Loss curves of two plans")


def corpus() -> np.ndarray:
    """The repository's documents and sources, as bytes."""
    folders = ("*.md", "stripectl/**/*.py", "tests/**/*.py")
    return np.frombuffer(b"".join(path.read_bytes() for each in folders for path in sorted(ROOT.glob(each))), np.uint8)


def batches(text: np.ndarray, steps: int) -> list[np.ndarray]:
    """Random windows of the text, a batch a step."""
    starts = np.random.default_rng(0).integers(0, len(text) - LENGTH - 1, (steps, BATCH))
    return [np.stack([text[start : start + LENGTH + 1] for start in each]) for each in starts]


def with_attention(attention: str) -> Model:
    """The model with such layers, linear ones with the decays of TransNormerLLM: a letter a layer, or two alike."""
    linear = {"attention": attention, "decay": "per-head", "layers": 2 if attention == "linear" else len(attention)}
    return MODEL if attention == "softmax" else replace(MODEL, **linear)


def training_of(plan: str, model: Model = MODEL) -> Training:
    """Training in float32 whose state keeps the gradients of its last step, before the optimizer uses them."""
    optimizer = optax.chain(optax.trace(0), adamw(learning_rate=3e-3))
    return make_training(model, plan, seq_len=LENGTH, batch=BATCH, dtype="float32", optimizer=optimizer)


def gradients(state: State) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state.optimizer[0].trace)]


def train(plans: list[str], data: list[np.ndarray], model: Model = MODEL) -> float:
    """Print the loss of every plan, each trained by itself, and the errors of gradients, relative to the largest value
    of an array; the median of these errors.

    With linear layers losses drift apart: their outputs are divided by their size, so where these are small a rounding
    grows, from step to step. So at some steps every plan also takes the first plan's step, from the first plan's
    parameters, and these gradients are compared. A wrong gradient is wrong at each of them, a rounding large at few.
    """
    trainings = [training_of(plan, model) for plan in plans]
    states, errors = [training.init(seed=0) for training in trainings], list[float]()
    print("step  " + "  ".join(f"{plan:>24}" for plan in plans) + "   error of gradients")
    for step, tokens in enumerate(data):
        told = step in {0, *range(9, len(data), 10), len(data) - 1}
        before = jax.tree.map(np.array, states[0]) if told else None  # a copy: the step consumes its state
        losses = list[float]()
        for at, training in enumerate(trainings):
            states[at], loss = training.step(states[at], training.place(tokens))
            losses.append(float(loss))
        if told:
            reference, found = gradients(states[0]), list[float]()
            for training in trainings[1:]:
                placed = jax.device_put(before, training.shardings, may_alias=False)
                state, _ = training.step(placed, training.place(tokens))
                found += [
                    np.max(np.abs(x - y)) / np.max(np.abs(y)) for x, y in zip(gradients(state), reference, strict=True)
                ]
            errors.append(float(np.max(found, initial=0.0)))
            columns = [f"{step + 1:4}", *(f"{loss:24.5f}" for loss in losses), f" {errors[-1]:.1e}"]
            print("  ".join(columns), flush=True)
    error = float(np.median(errors))
    print(f"loss in nats a byte; gradients at equal parameters differ by {error:.1e}, at the median of these steps")
    return error


def memory(plans: list[str], lengths: list[int], device_bytes: int, model: Model = MODEL) -> None:
    """Print what a step on one sequence needs at its peak on each device, and what does not fit; nothing runs."""
    print("tokens  " + "  ".join(f"{plan:>24}" for plan in plans))
    for length in lengths:
        needs = [
            compiled_peak_bytes(make_training(model, plan, seq_len=length, dtype="float32").compile()) for plan in plans
        ]
        told = (f"{need / 2**20:.0f} MiB" + ", too large" * (need > device_bytes) for need in needs if need)
        print(f"{format_length(length):>6}  " + "  ".join(f"{each:>24}" for each in told))
    print(f"for devices of {device_bytes / 2**20:.0f} MiB; by the compiler, nothing ran")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--plan", action="append", help="a plan of at most 8 devices; repeats")
    parser.add_argument("--attention", default="softmax", help="softmax, linear, or one letter per layer: LLLS")
    parser.add_argument("--memory", action="store_true", help="compile steps on long sequences, and run nothing")
    parser.add_argument("--seqlen", default="16k,32k,128k", help="the lengths of --memory")
    parser.add_argument("--device-mib", type=int, default=100, help="what a device of --memory has")
    given = parser.parse_args()
    usual, model = PLANS if given.attention == "softmax" else LINEAR, with_attention(given.attention)
    if given.memory:
        plans = given.plan or [usual[0], usual[-1]]
        memory(plans, parse_lengths(given.seqlen), given.device_mib * 2**20, model)
    elif not train(given.plan or usual, batches(corpus(), given.steps), model) < TOLERANCE:
        raise SystemExit(f"gradients at equal parameters differ by more than {TOLERANCE:.0e}")
