"""The programs of blocks whose times give the costs of tiles, without timing them."""

import jax
import numpy as np
import pytest

from stripectl.core.layout import Tile
from stripectl.core.workload import Workload
from stripectl.costs.sources.timed_tiles import BlockShape, CalibrationBlock
from stripectl.measure.session import block_programs

ROWS = 64


@pytest.mark.parametrize(("attention", "soft_cap"), [("softmax", None), ("softmax", 30.0), ("linear", None)])
def test_both_passes_of_a_block_run(attention: str, soft_cap: float | None) -> None:
    kernel = {"softmax": "xla", "linear": "chunked"}[attention]
    workload = Workload(
        seq_len=ROWS,
        heads=2,
        kv_heads=2 if attention == "linear" else 1,
        head_dim=16,
        dtype="float32",
        mask="causal",
        attention=attention,
        soft_cap=soft_cap,
    )
    shape = BlockShape.of(workload, kernel, "cpu")
    programs = block_programs(kernel, Tile(32, 32), CalibrationBlock(ROWS, "causal"), shape)
    assert list(programs) == ["forward", "backward"]
    for function, *inputs in programs.values():
        assert ("tanh" in str(jax.make_jaxpr(function)(*inputs))) == (soft_cap is not None)
    for function, *inputs in programs.values():
        for array in jax.tree.leaves(function(*inputs)):
            assert np.isfinite(np.asarray(array)).all()
