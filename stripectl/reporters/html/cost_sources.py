"""The sources of times that were not measured, in words."""

import json
from collections.abc import Iterator, Sequence

from stripectl.results.cost_source import CostOrigin, CostSource
from stripectl.results.measurement import Measurement
from stripectl.results.records import record_json
from stripectl.util.json import JsonObject


def cost_source_rows(shown: Sequence[Measurement]) -> Iterator[tuple[str, str, JsonObject, int]]:
    """(source, its description, its figures, the number of measurements that use it) of each calibration; the coarse
    calibrations of a source count as one: each has its own figures, which are in run.json."""
    known: dict[str, list[Measurement]] = {}
    for m in shown:
        if m.cost_source and m.status == "ok":
            source = CostSource(source=m.cost_source.source) if m.is_search_probe else m.cost_source
            known.setdefault(json.dumps(record_json(source)), []).append(m)
    for key, members in known.items():
        figures = json.loads(key)
        source = CostOrigin(figures.pop("source"))
        yield source, source.description, figures, len(members)
