"""Chunks of recurrences, whose times on a GPU nobody has measured here: the map of a block (`whole`) and its outputs
(`causal`), each in both passes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.check_gpu.sizes import DTYPE, HEAD_DIM, HEADS, Sizes, compiled, in_batches
from stripectl.core.layout import Tile
from stripectl.core.recurrence import recurrences
from stripectl.costs.sources.timed_tiles import BlockShape, CalibrationBlock
from stripectl.measure.session import block_programs
from stripectl.measure.timing import typical

CHUNK, BANDS, PASSES = Tile(64, 64), ("whole", "causal"), ("forward", "backward")
Job = tuple[str, CalibrationBlock, str]  # a recurrence, a block, a pass


def found(sizes: Sizes, _: Path) -> Iterator[dict[str, Any]]:
    """Seconds of a block, by recurrence, rows, band and pass."""
    blocks = [CalibrationBlock(rows, band) for rows in sizes.chunks for band in BANDS]
    jobs = [(name, block, passes) for block in blocks for name in recurrences.names() for passes in PASSES]
    for (name, block, passes), (program, *inputs) in in_batches(jobs, compiled_block):
        row = {"recurrence": name, "rows": block.rows, "band": block.band, "pass": passes}
        yield row | {"seconds": typical(program, *inputs)}


def compiled_block(job: Job) -> tuple[Any, ...]:
    """A compiled pass of a block, and its inputs."""
    recurrence, block, passes = job
    shape = BlockShape(
        group=1, groups=HEADS, head_dim=HEAD_DIM, v_head_dim=HEAD_DIM, dtype=DTYPE, recurrence=recurrence
    )
    return compiled(*block_programs("gated", CHUNK, block, shape)[passes])
