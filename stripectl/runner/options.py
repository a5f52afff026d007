"""The options of the command line and of the Python interface, by their names: texts and numbers, as typed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from stripectl.core.method import MethodChoice

RUNS = Path("stripectl-runs")  # the default folder of runs
REPORT = "report.html"  # in the folder of a run
DEFAULT_LEN = "256k"
TRACE_TIME_BUDGET, TRACE_MIN_SAMPLES = "10s", 3  # of a plan that is profiled
SIZE_OPTIONS = frozenset({"seqlen", "model", "heads", "kv_heads", "head_dim", "key_heads", "v_head_dim"})


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """The work to run, and for how long. None is the default: the model's, the target's or the kernel's own value."""

    seqlen: str = DEFAULT_LEN
    model: str | None = None
    query_len: str | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    key_heads: int | None = None
    v_head_dim: int | None = None
    batch: int = 1
    dtype: str | None = None
    mask: str = "causal"
    attention: str | None = None
    recurrence: str | None = None
    decay: str | None = None
    features: str | None = None
    documents: str | None = None
    passes: str | None = None
    layers: int | None = None
    plans: Sequence[str] = ()
    scheme: str | None = None
    layout: str = "all"
    kernel: str | None = None
    tile: str | None = None
    unroll: str = "1"
    meshes: Sequence[str] = ()
    target: str = "local"
    hardware: str | None = None
    method: MethodChoice = "auto"
    xla_flags: Sequence[str] = ()
    compile_timeout: str = "10m"
    cache: bool = True
    time_budget: str = "3m"
    min_samples: int = 5
    warmup: int = 1
    refine: int | None = None

    @property
    def finds_max_length(self) -> bool:
        """Whether the longest sequence that fits is to be found, instead of a given length."""
        return self.seqlen.strip() == "max"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "RequestOptions":
        """The options of a request among the options of a command."""
        return cls(**{each.name: given[each.name] for each in fields(cls) if each.name in given})
