"""Every plan that was simulated to find the best for a workload, as a table; the rows of a run hold only the notable
plans."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stripectl.core.workload import Workload
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import refusals_and_failures
from stripectl.results.records import read_workload
from stripectl.results.schema import MAX_MEASUREMENTS, is_number
from stripectl.util.json import JsonObject


@dataclass(frozen=True, kw_only=True)
class SearchTable:
    """The plans of a workload on a target that have a simulated time, the fastest first: seconds, and peak bytes per
    device. `refused` counts the plans without a time, by the reason of one of them; `took_s` is the search's time."""

    workload: Workload
    target: str
    took_s: float
    plans: Sequence[str]
    median_s: Sequence[float]
    peak_bytes: Sequence[int]
    refused: Mapping[str, int]

    @classmethod
    def of(cls, measurements: Sequence[Measurement], took_s: float) -> "SearchTable":
        """A search from all its measurements, of one workload and target."""
        timed = sorted((m for m in measurements if m.median_s), key=lambda m: m.median_s or 0.0)
        return cls(
            workload=measurements[0].workload,
            target=str(measurements[0].target),
            took_s=took_s,
            plans=[str(m.plan) for m in timed],
            median_s=[m.median_s or 0.0 for m in timed],
            peak_bytes=[m.peak_bytes or 0 for m in timed],
            refused={str(each[0].reason or each[0].status): len(each) for each in refusals_and_failures(measurements)},
        )

    def replacing(self, searches: Sequence["SearchTable"]) -> list["SearchTable"]:
        """The searches of a run with this one in place of an earlier one for its workload and target."""
        others = (each for each in searches if (each.workload, each.target) != (self.workload, self.target))
        return [*others, self]

    def to_json(self) -> JsonObject:
        return {**vars(self), "workload": self.workload.to_json()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "SearchTable":
        """A search from its JSON.

        Raises:
            KeyError, TypeError, ValueError: it is not one.
        """
        values: Mapping[str, Any] = {**content, "workload": read_workload(json.dumps(content["workload"]))}
        made = cls(**values)
        columns = made.plans, made.median_s, made.peak_bytes
        if not all(isinstance(column, list) and len(column) == len(made.plans) for column in columns):
            raise ValueError("the columns of a search are lists of one length")
        if len(made.plans) > MAX_MEASUREMENTS or {*map(type, made.plans)} - {str}:
            raise ValueError(f"a search holds at most {MAX_MEASUREMENTS:,} plans, as text")
        numbers = (made.took_s, *made.median_s, *made.peak_bytes, *dict(made.refused).values())
        if not all(map(is_number, numbers)) or type(made.target) is not str:
            raise ValueError("a search holds numbers that a run can have, and a target")
        return made
