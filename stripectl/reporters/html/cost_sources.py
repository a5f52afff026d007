"""The sources of times that were not measured, in words."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from stripectl.results.measurement import Measurement
from stripectl.util.units import NOTHING

SOURCES = {
    "measured_tile": "Tiles were timed on this machine: whole, boundary and dead tiles separately, for one key/value "
    "head and the query heads that share it. A cost was fitted to each kind; a block held out of the fit gives the "
    "error.",
    "estimated_cycles": "Nothing was timed. Tiles take the cycles that the target's compiler estimates for the tile "
    "loops of one small program, at the clock rate of the chip; hops take the time of the links that they cross.",
    "bundles": "Nothing was timed. Tiles take the bundles of the Pallas kernels in the compiler's final schedule of "
    "one small program, about one cycle each, or the time of their matmuls at the peak rate where that is longer. All "
    "schemes, meshes and lengths use the same costs.",
    "published": "Nothing was timed here. Tiles take times derived from published times of the kernel, distributed in "
    "waves over the processors of the GPU.",
    "none": "No time is predicted, because a figure that the prediction needs is not published.",
    "datasheet": "Nothing was timed. Tiles and hops take the times that the machine's published figures allow.",
    "one_block": "Tiles were timed on this machine on one block of whole scores: the first step of a search.",
    "few_layers": "Steps of few layers ran here; the model's step adds the time of one layer for each further layer.",
    "short_run": "The plan ran here with one key/value group per device; its time is multiplied by the groups.",
}


def cost_source_rows(shown: Sequence[Measurement]) -> Iterator[tuple[str, str, dict[str, Any], int]]:
    """(source, its description, its figures, the number of measurements that use it) of each calibration; the coarse
    calibrations of a source count as one: each has its own figures, which are in run.json."""
    known: dict[str, list[Measurement]] = {}
    for m in shown:
        if m.cost_source and m.status == "ok":
            detail = {"source": m.cost_source["source"]} if m.is_search_probe else m.cost_source
            known.setdefault(json.dumps(detail, sort_keys=True), []).append(m)
    for key, members in known.items():
        figures = json.loads(key)
        source = str(figures.pop("source", NOTHING))
        yield source, SOURCES.get(source, f"From: {source}."), figures, len(members)
