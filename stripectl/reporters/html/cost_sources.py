"""What times that were not measured stand on, in words."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from stripectl.results.measurement import Measurement
from stripectl.util.units import NOTHING

SOURCES = {
    "measured_tile": "Tiles were timed on this machine, whole, boundary and dead ones apart, for one key/value head "
    "and the query heads that share it. A cost was fitted to each kind; the block held out of the fit tells its error.",
    "estimated_cycles": "Nothing was timed. Tiles take the cycles that the target's compiler estimates for the "
    "bodies of the tile loops of one small program, at the clock rate of the chip; hops take what the links they cross "
    "take.",
    "bundles": "Nothing was timed. Tiles take the bundles of the Pallas kernels in the compiler's final schedule of "
    "one small program, about one cycle each, or what their matmuls take at the peak rate where that is longer. Every "
    "scheme, mesh and length takes the same costs.",
    "published": "Nothing was timed here. Tiles take what published times of the kernel say, shared out in waves among "
    "the processors of the GPU.",
    "none": "No time is predicted: a figure that it needs is not published.",
    "datasheet": "Nothing was timed. Tiles and hops take what the published figures of the machine allow.",
    "one_block": "Tiles were timed on this machine on one block of whole scores: what a search tried first.",
    "few_layers": "Steps of few layers ran here; the model's step adds the time of one layer for each further layer.",
    "short_run": "The plan ran here with one key/value group a device; the time is that times the groups.",
}


def cost_source_rows(shown: Sequence[Measurement]) -> Iterator[tuple[str, str, dict[str, Any], int]]:
    """(source, what it means, its figures, how many measurements stand on it) of each calibration; rough ones of a
    source are one: each has its own figures, which are in run.json."""
    known: dict[str, list[Measurement]] = {}
    for m in shown:
        if m.cost_source and m.status == "ok":
            detail = {"source": m.cost_source["source"]} if m.is_search_probe else m.cost_source
            known.setdefault(json.dumps(detail, sort_keys=True), []).append(m)
    for key, members in known.items():
        figures = json.loads(key)
        source = str(figures.pop("source", NOTHING))
        yield source, SOURCES.get(source, f"From: {source}."), figures, len(members)
