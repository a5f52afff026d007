"""The measurement of a plan, and the statistics over it.

Raw samples are stored, and statistics are derived from them. A plan that was refused or failed is a Measurement with a
reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from stripectl.core.method import Method
from stripectl.core.plan import UnreadablePlan
from stripectl.core.reason import Reason, ReasonKind
from stripectl.results.case import Case, StaticFacts, Subject
from stripectl.results.compiled_program import CompiledProgram
from stripectl.results.cost_source import CostSource
from stripectl.results.findings import Bound, Check, CommunicationOverlap, Distortion, Noise, Speedup, TileTally
from stripectl.results.profile import Profile
from stripectl.results.records import Amount, Count, read_record, record_json, text
from stripectl.results.schema import MAX_SAMPLES
from stripectl.util.json import JsonObject


@dataclass(frozen=True)
class TimeAtLength:
    """The time in seconds at a sequence length in tokens."""

    seq_len: Amount
    median_s: Amount


@dataclass(frozen=True, kw_only=True)
class Measurement(Subject):
    """The results of one plan, workload and method: its time and other results, and their sources. Absent data is
    None."""

    status: Literal["ok", "refused", "failed"] = "ok"
    reason: Reason | None = None
    samples_s: tuple[Amount, ...] = ()
    median_s: Amount | None = None
    ci95_s: tuple[Amount, Amount] | None = None
    compile_s: Amount | None = None
    peak_flops_per_s: Amount | None = None  # of one device, for the MFU
    links_bytes_per_s_one_way: Amount | None = None  # of all links of a device
    speedup: Speedup | None = None
    bound: Bound | None = None
    tiles: TileTally | None = None
    bytes: Mapping[str, Count] | None = None  # sent by a device, by opcode
    peak_bytes: Count | None = None
    hbm_bytes: Count | None = None
    host_bytes: Count | None = None  # of a device's values in the host's memory
    overlap: CommunicationOverlap | None = None
    check: Check | None = None
    cost_source: CostSource | None = None
    compiled_program: CompiledProgram | None = None
    profile: Profile | None = None
    noise: Noise | None = None
    step_parts: Mapping[str, Amount] | None = None  # seconds of the parts of a training step
    memory: Mapping[str, Count] | None = None  # predicted bytes of the parts of a step, at the peak
    bottleneck_shares: Mapping[str, Amount] | None = (
        None  # of the time, saved if a part of the machine were twice as fast
    )
    scaling: tuple[TimeAtLength, ...] | None = None  # the same plan at other lengths
    distortions: tuple[Distortion, ...] = ()  # by parts of the model that are not computed

    def __post_init__(self) -> None:
        if len(self.samples_s) > MAX_SAMPLES:
            raise TypeError(f"a measurement has at most {MAX_SAMPLES:,} samples")

    @classmethod
    def of(cls, case: Case, method: Method | None = None) -> "Measurement":
        """A case before anything is found out about it, with its static facts; by `method`, or if it is refused or
        failed by its own."""
        return cls(
            workload=case.workload,
            plan=case.plan,
            target=case.target,
            method=method if method and case.is_ready else case.method,
            flags=case.flags,
            status="ok" if case.status == "ready" else case.status,
            reason=case.reason,
            distortions=case.distortions,
        ).with_facts(case.facts)

    def with_facts(self, facts: StaticFacts | None) -> "Measurement":
        return replace(self, **vars(facts)) if facts else self

    @property
    def is_unfinished(self) -> bool:
        """Whether its sampling was cut short: the only reason that a measurement with a time has."""
        return self.status == "ok" and self.reason is not None

    @property
    def is_search_probe(self) -> bool:
        """Whether its time is too rough for the plan to be called the fastest."""
        return self.cost_source is not None and self.cost_source.source.is_search_probe

    @property
    def slowest_bytes_per_s(self) -> float | None:
        """The rate of the slowest hop that its time depends on."""
        return self.cost_source.links.slowest_bytes_per_s if self.cost_source else None

    @property
    def tokens_per_s(self) -> float | None:
        return self.workload.queries * self.workload.batch / self.median_s if self.median_s else None

    @property
    def flops_per_s_per_device(self) -> float | None:
        return self.workload.flops / self.median_s / self.devices if self.median_s else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs (no recomputation) per second divided by the device's peak."""
        if self.flops_per_s_per_device is None or not self.peak_flops_per_s:
            return None
        return self.flops_per_s_per_device / self.peak_flops_per_s

    def to_json(self) -> JsonObject:
        rate = self.flops_per_s_per_device
        derived = {
            "pass": self.workload.passes,
            "tokens_per_s": self.tokens_per_s,
            "flops": self.workload.flops,
            "tflops_per_s_per_device": rate and rate / 1e12,
            "mfu": self.mfu,
        }
        return {**record_json(self), **derived, "based_on": self.target.based_on or None}

    @classmethod
    def from_json(cls, content: Mapping[str, object]) -> "Measurement":
        """A measurement from its JSON, by the names of this schema or an older one.

        Raises:
            TypeError: it is not one.
        """
        named = {RENAMED.get(name, name): value for name, value in content.items() if value is not None}
        found, base = read_record(cls, named), text(named.get("based_on", ""))
        return replace(found, target=replace(found.target, based_on=base)) if base else found


# Fields by their names in schema `stripectl.run/1`.
RENAMED = {
    "calibration": "cost_source",
    "guards": "noise",
    "limits": "bottleneck_shares",
    "parts": "step_parts",
    "program": "compiled_program",
    "trace": "profile",
}


def readable(m: Measurement) -> Measurement:
    """The measurement; without a time, and with a reason, where this version of stripectl cannot read its plan."""
    if not isinstance(m.plan, UnreadablePlan):
        return m
    fact = f"this version of stripectl cannot read the plan: {m.plan.reason}"
    unread = {"status": "failed", "reason": Reason(ReasonKind.UNREADABLE, fact)}
    figures = dict.fromkeys(("median_s", "peak_bytes", "compiled_program", "tiles"))
    return replace(m, **(unread if m.status == "ok" else {}), **figures)


def attention_bound(m: Measurement) -> float | None:
    """The bound on the speed-up of a measurement; None where the speed-up is over another scheme, because a layout's
    bound does not hold there."""
    same = m.speedup is None or m.speedup.over.scheme == m.plan.scheme
    return m.bound.attention_only if m.bound and same and m.devices > 1 else None
