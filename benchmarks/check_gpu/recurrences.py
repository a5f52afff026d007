"""Chunks of recurrences, whose times on a GPU nobody has measured here: both passes, with the map of a block (`whole`)
and its outputs (`causal`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.check_gpu.sizes import DTYPE, HEAD_DIM, HEADS, Sizes
from stripectl.core.recurrence import recurrences
from stripectl.measure.session import Session

CHUNK = 64


def found(sizes: Sizes, _: Path) -> Iterator[dict[str, Any]]:
    """Seconds of a block in each pass, by recurrence and number of rows."""
    session = Session()
    shape = {"group": 1, "groups": HEADS, "head_dim": HEAD_DIM, "v_head_dim": HEAD_DIM, "dtype": DTYPE}
    for recurrence in recurrences.names():
        for rows in sizes.chunks:
            for band in ("whole", "causal"):
                own = shape | {"recurrence": recurrence}
                timed = session.time_block("gated", f"{CHUNK}x{CHUNK}", rows=rows, band=band, shape=own)
                yield {"recurrence": recurrence, "rows": rows, "band": band, **timed}
