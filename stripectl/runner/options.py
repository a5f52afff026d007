"""The options of the command line and of the Python interface, by their names in Python: texts as on the command line,
or values."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from stripectl.core.method import MethodChoice
from stripectl.util.several import Several, split_commas

if TYPE_CHECKING:
    from stripectl.core.plan import Plan

RUNS = Path("stripectl-runs")  # the default folder of runs
REPORT = "report.html"  # in the folder of a run
DEFAULT_LEN = "256k"
DEFAULT_BUDGET, DEFAULT_MIN_SAMPLES, DEFAULT_WARMUP, DEFAULT_COMPILE_TIMEOUT = "3m", 5, 1, "10m"
TRACE_TIME_BUDGET, TRACE_MIN_SAMPLES = "10s", 3  # of a plan that is profiled
DEFAULT_BATCH, DEFAULT_MASK = 1, "causal"
SIZE_OPTIONS = ("seqlen", "model", "heads", "kv_heads", "head_dim", "key_heads", "v_head_dim")
EFFORT_OPTIONS = ("time_budget", "min_samples", "warmup", "compile_timeout", "cache", "refine")
Unset: TypeAlias = None  # of an option that the user did not name
StrategyName: TypeAlias = Literal["race", "exhaustive"]  # of a tile search
Length: TypeAlias = int | str  # tokens, as a number or as 256k
TileSides: TypeAlias = int | str | tuple[int, int] | tuple[int, int, int | None]  # 1024, 1024x512 or (1024, 512)
Axes: TypeAlias = str | Mapping[str, int]  # ring=4,tensor=2
Seconds: TypeAlias = float | str  # 90 or 3m


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """The work to run. The default of an unset option is the value of the model, the target or the command."""

    seqlen: Several[Length] = None
    model: str | Path | Unset = None
    query_len: Several[Length] = None
    heads: int | Unset = None
    kv_heads: int | Unset = None
    head_dim: int | Unset = None
    key_heads: int | Unset = None
    v_head_dim: int | Unset = None
    batch: int | Unset = None
    dtype: Several[str] = None
    mask: Several[str] = None
    attention: str | Unset = None
    recurrence: str | Unset = None
    decay: float | str | Unset = None
    feature_map: str | Unset = None
    documents: Several[Length] = None
    pass_: Several[str] = None
    layers: int | Unset = None

    @property
    def finds_max_length(self) -> bool:
        """Whether the longest sequence that fits is to be found, instead of a given length."""
        return split_commas(self.seqlen) == ["max"]

    @property
    def has_size(self) -> bool:
        """Whether the user named a length, a model or heads."""
        return any(getattr(self, name) is not None for name in SIZE_OPTIONS)

    @property
    def has_workload(self) -> bool:
        """Whether the user named any property of the workload."""
        return any(getattr(self, each.name) is not None for each in fields(WorkloadOptions))


@dataclass(frozen=True, kw_only=True)
class RequestOptions(WorkloadOptions):
    """The work to run, by which plans and methods, and for how long. The default of an unset option is the value of the
    target, the kernel or the command."""

    plan: "Several[str | Plan]" = None
    scheme: Several[str] = None
    layout: Several[str] = None
    kernel: Several[str] = None
    tile: Several[TileSides] = None
    unroll: Several[int | str] = None
    mesh: Several[Axes] = None
    target: str = "local"
    hardware: str | Path | Unset = None
    method: MethodChoice = "auto"
    xla_flag: Several[str] = None
    compile_timeout: Seconds | Unset = None
    cache: bool | Unset = None
    time_budget: Seconds | Unset = None
    min_samples: int | Unset = None
    warmup: int | Unset = None
    refine: int | Unset = None

    @property
    def named_effort(self) -> tuple[str, ...]:
        """The options of effort that the user named."""
        return tuple(name for name in EFFORT_OPTIONS if getattr(self, name) is not None)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "RequestOptions":
        """The options of a request among the options of a command."""
        return cls(**{each.name: given[each.name] for each in fields(cls) if each.name in given})
