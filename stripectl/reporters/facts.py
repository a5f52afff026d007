"""Nested data of a run as small tables of names and values, each in the unit that its name ends in: the environment,
and the sources of its times."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from stripectl.results.cost_source import CostOrigin, CostSource
from stripectl.results.measurement import Measurement
from stripectl.results.noise import noise_warnings
from stripectl.results.records import record_json
from stripectl.results.run import Run
from stripectl.util.json import JsonObject, is_list, is_mapping, is_sequence
from stripectl.util.units import NOTHING, in_unit

FIELD_NAMES = {
    "whole_s": "a whole tile",
    "boundary_s": "a boundary tile",
    "dead_s": "a dead tile",
    "call_s": "a call of the kernel",
    "row_s": "a row of tiles",
    "bytes_per_s_one_way": "rate, one way",
    "held_out": "held-out block",
    "measured_s": "measured",
    "blocks": "blocks timed (rows, scores)",
    "left_out": "not in the model",
    "git": "commit",
    "clock_hz": "clock",
    "exposed": "share of transfers without compute at the same time (pass, collective, bytes per element)",
    "slower_hops": "hops that cross more than one link",
}


class FactTable(TypedDict):
    """Names and values, in the unit that a name ends in."""

    title: str
    rows: list[tuple[str, str]]


class CalibrationFacts(TypedDict):
    """A source of costs in words, its figures, and the number of measurements that use it."""

    source: str
    text: str
    facts: list[FactTable]
    used_by: int


def environment_rows(run: Run) -> list[FactTable]:
    """The environment of a run, without its warnings."""
    return fact_rows({name: value for name, value in run.environment.items() if name != "warnings"})


def warnings_of(run: Run) -> list[str]:
    """Possible and actual disturbances of a run."""
    found = run.environment.get("warnings")
    return [*map(str, found if is_list(found) else [found] if found else []), *noise_warnings(run.measurements)]


def cost_source_facts(shown: Sequence[Measurement]) -> list[CalibrationFacts]:
    """Return the sources of times that were not measured, each calibration once; the coarse calibrations of a source
    count as one: each has its own figures, which are in run.json."""
    used = Counter[str]()
    for m in shown:
        if m.cost_source and m.status == "ok":
            source = CostSource(source=m.cost_source.source) if m.is_search_probe else m.cost_source
            used[json.dumps(record_json(source))] += 1
    found = list[CalibrationFacts]()
    for text, count in used.items():
        figures = json.loads(text)
        source = CostOrigin(figures.pop("source"))
        facts = fact_rows(figures)
        found.append({"source": source, "text": source.description, "facts": facts, "used_by": count})
    return found


def fact_rows(content: JsonObject) -> list[FactTable]:
    """Nested data as small tables of (name, value): one for the plain values, and one for each mapping in it."""
    plain = {name: value for name, value in content.items() if not isinstance(value, Mapping)}
    parts = [("", plain), *((name, value) for name, value in content.items() if isinstance(value, Mapping))]
    return [{"title": field_name(name), "rows": rows} for name, part in parts if (rows := _rows(part))]


def _rows(content: JsonObject, under: str = "") -> list[tuple[str, str]]:
    rows = list[tuple[str, str]]()
    for name, value in content.items():
        label = f"{under}{field_name(name)}"
        rows += _rows(value, f"{label}: ") if isinstance(value, Mapping) else [(label, quantity(name, value))]
    return rows


def field_name(name: str) -> str:
    """A field's name for a reader, without the unit, which the value shows."""
    return FIELD_NAMES.get(name) or name.removesuffix("_s").replace("_", " ")


def quantity(name: str, value: Any) -> str:
    """A field's value in the unit that its name ends in."""
    if is_sequence(value):
        return ", ".join(quantity(name, each) for each in value) or "none"
    if value is None or isinstance(value, bool):
        return NOTHING if value is None else "yes" if value else "no"
    if isinstance(value, str):
        return value
    if is_mapping(value):
        return ", ".join(f"{field_name(key)} {quantity(key, each)}" for key, each in value.items())
    return in_unit(name, value)
