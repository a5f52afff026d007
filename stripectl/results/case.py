"""A case is what is to be done: a workload with a plan on a target. It is ready, or it is refused with a reason before
anything runs."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stripectl.core.layer_groups import LayerGroup, layer_groups
from stripectl.core.method import Method
from stripectl.core.plan import Plan
from stripectl.core.reason import Reason
from stripectl.core.workload import Workload
from stripectl.hardware.target import TargetName
from stripectl.results.findings import Bound, Distortion, TileTally
from stripectl.results.records import Count, workload_json


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The subject of a case and of its measurement: one workload, plan and target, by one method."""

    workload: Workload
    plan: Plan
    target: TargetName
    method: Method
    flags: Mapping[str, str] | None = None  # of the compiler, in addition to the environment's

    @functools.cached_property
    def identity(self) -> tuple[str, ...]:
        """The subject by any method: workload, plan, target and the compiler's flags."""
        flags = json.dumps(self.flags or {}, sort_keys=True)
        return f"[{_text_of(self.workload)}, {flags}]", str(self.plan), str(self.target)

    @property
    def key(self) -> tuple[str, ...]:
        """Equal in two runs for the same plan, workload, target, flags and method."""
        return *self.identity, self.method

    @functools.cached_property
    def printed_plan(self) -> str:
        """The plan as text, with the compiler's flags."""
        return f"{self.plan}{flags_text(self.flags)}"

    @property
    def devices(self) -> int:
        return self.plan.devices

    @functools.cached_property
    def layers(self) -> list[LayerGroup]:
        """The groups of equal layers, linear layers first, each with its plan."""
        return layer_groups(self.workload, self.plan)


@dataclass(frozen=True, kw_only=True)
class StaticFacts:
    """The facts of a plan that are known before anything runs."""

    tiles: TileTally
    bytes: Mapping[str, Count]  # sent by a device, by opcode
    bound: Bound
    hbm_bytes: Count | None  # of a device
    peak_flops_per_s: float | None  # of a device
    links_bytes_per_s_one_way: float | None = None  # of all links of a device


@dataclass(frozen=True, kw_only=True)
class Case(Subject):
    """What is to be done. `method` is the method of a refused case; the backend that runs a case has its own."""

    status: Literal["ready", "refused", "failed"] = "ready"  # failed: the scheme raises an error
    reason: Reason | None = None
    facts: StaticFacts | None = None
    distortions: tuple[Distortion, ...] = ()  # by parts of the model that are not computed

    @property
    def is_ready(self) -> bool:
        return self.status == "ready"


@functools.lru_cache(4096)
def _text_of(workload: Workload) -> str:
    return json.dumps(workload_json(workload), sort_keys=True)


def flags_text(flags: Mapping[str, str] | None) -> str:
    """The compiler's flags as text after a plan."""
    return "".join(f" {name}={value}" for name, value in (flags or {}).items())
