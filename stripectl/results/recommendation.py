"""The recommendation of a run: figures, and sentences that every output arranges and none rephrases."""

from collections.abc import Mapping
from dataclasses import dataclass

from stripectl.core.method import Method
from stripectl.core.plan import Plan
from stripectl.core.workload import Workload
from stripectl.hardware.target import TargetName
from stripectl.results.case import flags_text
from stripectl.results.findings import Distortion, Speedup


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A sentence, or a part of one, about one subject (`name`). Some have `value` and `note`, the same in two parts,
    for outputs that show the figure large. `method` says how the value was obtained."""

    name: str
    text: str
    value: str | None = None
    note: str | None = None
    method: Method | None = None


@dataclass(frozen=True, kw_only=True)
class ReachedBound:
    """The largest speed-up that a layout can have over the contiguous layout, for attention alone and for a layer, and
    how much of this was reached, as a share; `above` says why a speed-up exceeds it."""

    attention_only: float
    layer: float | None
    reached: float | None
    above: str | None = None


@dataclass(frozen=True, kw_only=True)
class Confidence:
    """How sure a recommendation is: a level from 1 to 4, its grade, one word for how the time is known, and why."""

    level: int
    grade: str
    word: str
    sentence: str


@dataclass(frozen=True, kw_only=True)
class PlanChange:
    """Another plan that is significantly faster at longer or shorter sequences: the two lengths between which it
    becomes faster, and the length where the curves cross, if it is known."""

    direction: str
    seq_len: int | None
    between: tuple[int, int]
    plan: str
    method: Method


@dataclass(frozen=True, kw_only=True)
class ComparedLengths:
    """The lengths at which plans were compared: the lengths of the run, or of the scaling of its plans."""

    first: int
    last: int
    count: int
    methods: tuple[str, ...]
    source: str


@dataclass(frozen=True, kw_only=True)
class RefusedPlans:
    """Plans without a time whose reasons differ only in numbers."""

    status: str
    reason: str
    plans: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Usage:
    """A plan in the terms of a framework: the text to paste, or None with the reason in `notes`; `version` is the
    release that it was checked with."""

    title: str
    version: str
    text: str | None
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The recommendation for a workload and target, in seconds, bytes and shares.

    `ties` are plans that may be as fast. `gain` is over the plan with the default tile and mesh, or else over the
    contiguous ring. `margin` is how much longer the runner-up takes. `bottleneck_shares` is the share of the time that
    a machine saves in which one part is twice as fast. `distortions` are parts of the answer that are not as asked.
    `statements` are lines for a card, `reasons` sentences, the most
    important first. The first recommendation of a run also has `use`, how to use its plan, and `others`, the
    recommendations for the other workloads.
    """

    workload: Workload
    target: TargetName
    plan: Plan
    flags: Mapping[str, str] | None
    method: Method
    headline: str
    question: str
    answer: str
    ties: tuple[str, ...]
    names: str
    median_s: float
    ci95_s: tuple[float, float] | None
    tokens_per_s: float | None
    gain: Speedup | None
    over_one_device: float | None
    bottleneck_shares: Mapping[str, float] | None
    limits_method: Method | None
    bound_by: str | None
    bound: ReachedBound | None
    runner_up: str | None
    margin: float | None
    too_close: bool | None
    crossover: tuple[PlanChange, ...]
    lengths: ComparedLengths | None
    confidence: Confidence
    peak_bytes: int | None
    hbm_bytes: int | None
    memory: Mapping[str, int] | None
    step_parts: Mapping[str, float] | None
    refused: tuple[RefusedPlans, ...]
    distortions: tuple[Distortion, ...] = ()
    host_bytes: int | None = None
    statements: tuple[Statement, ...] = ()
    reasons: tuple[str, ...] = ()
    use: Mapping[str, Usage] | None = None
    others: "tuple[Recommendation, ...]" = ()

    @property
    def printed_plan(self) -> str:
        """The plan as text, with the compiler's flags."""
        return f"{self.plan}{flags_text(self.flags)}"

    @property
    def every(self) -> "tuple[Recommendation, ...]":
        """This recommendation, and the recommendations for the other workloads of the run."""
        return self, *self.others

    def statement(self, name: str) -> Statement | None:
        """The statement about one subject; None if nothing is stated about it."""
        return next((each for each in self.statements if each.name == name), None)
