"""Code that people start from: the training example runs, and says what it promises."""

import runpy
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def example() -> dict:
    return runpy.run_path(str(ROOT / "examples" / "train_bytes.py"))


@pytest.fixture(scope="module")
def data(example: dict) -> list[np.ndarray]:
    """Every byte, in one order again and again: no gradient is but rounding, of which Adam would make a whole step."""
    text = np.tile(np.random.default_rng(1).permutation(256).astype(np.uint8), 40)
    return example["batches"](text, 4)


@pytest.mark.training
def test_a_ring_learns_the_bytes_as_one_device_does(example: dict, data, capsys) -> None:
    assert example["train"]([example["ONE"], "ring/striped@ring=4"], data) < 1e-5
    lines = capsys.readouterr().out.splitlines()
    first, last = (float(line.split()[1]) for line in (lines[1], lines[-2]))
    assert first > last + 0.3, "four steps learn something"


@pytest.mark.training
@pytest.mark.parametrize("attention", ["linear", "LLLS"])
def test_linear_and_hybrid_models_learn_the_bytes_as_one_device_does(example, data, capsys, attention: str) -> None:
    one, _, gathered = example["LINEAR"]
    assert example["train"]([one, gathered], data, example["with_attention"](attention)) < 1e-5
    lines = capsys.readouterr().out.splitlines()
    first, last = (float(line.split()[1]) for line in (lines[1], lines[-2]))
    assert first > last + 0.3, "four steps learn something"


@pytest.mark.full
def test_a_ring_fits_where_one_device_does_not(example: dict, capsys) -> None:
    example["memory"]([example["ONE"], "ring/striped@ring=8"], [2**15], 100 * 2**20)
    row = capsys.readouterr().out.splitlines()[1]
    assert row.count("too large") == 1 and float(row.split()[1]) > 4 * float(row.split()[-2])
