"""The request of a bench, and its values that depend on the target."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from stripectl.core.method import Method, MethodChoice
from stripectl.core.plan import Plan
from stripectl.core.workload import STEP, Workload
from stripectl.errors import BadInput
from stripectl.hardware.profile import Hardware
from stripectl.measure.local_target import LocalTarget
from stripectl.measure.sampler import SamplingOptions
from stripectl.results.case import Case
from stripectl.results.measurement import Measurement
from stripectl.runner.meshes import DEFAULT_REFINE_COUNT
from stripectl.util.files import printable
from stripectl.util.json import JsonObject

SMALL_LEN = 2**14  # of the small ring measured here: long enough that tiles, not messages, dominate
SMALL_HEADS = 4
SIZE_FIELDS = ("seq_len", "heads", "kv_heads", "model")  # of the small ring


@dataclass(frozen=True, kw_only=True)
class Request:
    """The request of a bench. Plans without a mesh get the target's devices on their scheme's axes."""

    workloads: Sequence[Workload]
    plans: Sequence[Plan]
    target: str = "local"
    hardware: Hardware | None = None
    method: MethodChoice = "auto"
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    flags: Sequence[Mapping[str, str]] = ({},)  # of the compiler: each plan runs with each set
    find_max_length: bool = False  # find the longest sequence that fits with each plan, instead of given lengths
    use_cache: bool = True  # use compilations that are on disk
    previous: Sequence[Measurement] = ()  # of a resumed run: not measured again
    default_dtype: bool = False  # no dtype was requested: float32 on CPU, otherwise as given
    default_size: bool = False  # no length or heads were requested: the small ring's on CPU, otherwise as given
    baseline: bool = True  # also run the single-device baseline
    every_mesh: bool = False  # instead of the default mesh, every mesh of the target's devices
    every_tile: bool = False  # instead of the default tile, every tile of the kernel, equal for both passes
    refine_count: int = DEFAULT_REFINE_COUNT  # plans among these that are compiled or measured
    named_effort: Sequence[str] = ()  # options of effort that the user named
    names_plans: bool = False  # the user named whole plans

    @cached_property
    def previous_by_key(self) -> dict[tuple[str, ...], Measurement]:
        """The finished measurements, by key."""
        return {m.key: m for m in self.previous}

    def was_run(self, case: Case, method: str) -> bool:
        """Whether the resumed run has a result of the case by a method."""
        return (*case.identity, method) in self.previous_by_key

    @property
    def asked(self) -> list[JsonObject]:
        """The targets and workloads of the request, without what is left to the target's default."""
        left = {*(["dtype"] if self.default_dtype else ()), *(SIZE_FIELDS if self.default_size else ())}
        workloads = (
            {name: value for name, value in workload.to_json().items() if name not in left}
            for workload in self.workloads
        )
        asked = [{"target": self.target, "workload": workload} for workload in workloads]
        return printable(json.loads(json.dumps(asked)))  # as a run.json has it

    def with_asked(self, workloads: Sequence[Any]) -> "Request":
        """The request for workloads that a run was `asked` for, from its file.

        Raises:
            BadInput: they are no workloads.
        """
        try:
            found = [Workload.from_json(each) for each in workloads]
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise BadInput(f"cannot resume the run because what it was asked for is no workload: {error}.") from error
        return replace(self, workloads=found, default_dtype=any("dtype" not in each for each in workloads))

    @property
    def case_method(self) -> Method:
        """The method of cases before one is chosen for `auto`."""
        return "simulated" if self.method == "auto" else self.method

    @property
    def is_search(self) -> bool:
        """Whether all plans are simulated first, to find those worth more time."""
        return self.every_mesh or self.every_tile

    def resolve_for(self, place: LocalTarget) -> "Request":
        """Fill in the default values that depend on the target."""
        if place.target.hardware.kind != "cpu":
            return self
        own = {"dtype": "float32"} if self.default_dtype else {}
        small = dict(zip(SIZE_FIELDS, (SMALL_LEN, SMALL_HEADS, SMALL_HEADS, None), strict=True))
        workloads = [
            replace(workload, **own, **(small if self.default_size and workload.passes != STEP else {}))
            for workload in self.workloads
        ]
        return replace(self, workloads=workloads, default_dtype=False, default_size=False)
