"""Blocks of the xla kernel by tile, as a bench times them to simulate from."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.check_gpu.sizes import DTYPE, HEAD_DIM, HEADS, Sizes
from stripectl.costs.sources.timed_tiles import BANDS
from stripectl.measure.session import Session


def found(sizes: Sizes, _: Path) -> Iterator[dict[str, Any]]:
    """Seconds of a block in each pass, by tile and band."""
    session = Session()
    for side in sizes.tiles:
        for band in BANDS:
            shape = {"group": HEADS, "head_dim": HEAD_DIM, "v_head_dim": HEAD_DIM, "dtype": DTYPE}
            given = {"rows": 4 * side, "band": band, "shape": shape}
            timed = session.time_block("xla", f"{side}x{side}", **given)
            yield {"tile": f"{side}x{side}", "rows": 4 * side, "band": band, **timed}
