"""Why a plan was refused, failed, or lacks a part of its result, as a value: what decides by reasons decides by their
kind."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class ReasonKind(StrEnum):
    """The kinds of reasons, as run.json holds them."""

    UNSUPPORTED = "unsupported"  # the plan cannot compute the workload on the target
    NO_AXIS = "no_axis"  # its scheme does not use an axis of its mesh: no such plan, but a combination of a grid
    NOT_INSTALLED = "not_installed"  # a library that it needs is missing here
    MEMORY = "memory"  # it needs more memory than a device, or a core of one, has
    COMPILER = "compiler"  # the compiler rejects its program
    NO_COSTS = "no_costs"  # nothing is known from which its time could be computed
    NOT_RUN = "not_run"  # others came first, or the time was spent
    HOST_LOST = "host_lost"  # a host was lost before it ended
    ERROR = "error"  # it, or the process that ran it, ended with an error
    TIMEOUT = "timeout"  # it took longer than its limit
    WRONG_NUMBERS = "wrong_numbers"  # its results differ from the reference
    NOISE = "noise"  # its samples contradict each other
    UNFINISHED = "unfinished"  # it has a time from fewer samples than requested
    NO_PROFILE = "no_profile"  # a profile could not be captured or read
    NO_OVERLAP = "no_overlap"  # a profile does not show how much communication is hidden
    UNREADABLE = "unreadable"  # this version of stripectl cannot read it
    UNKNOWN = "unknown"  # of a run of a schema without kinds, or with newer kinds


@dataclass(frozen=True)
class Reason:
    """A reason: its kind, the fact, without a full stop where advice follows, and what to try, or nothing."""

    kind: ReasonKind
    fact: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.fact}. {self.advice}" if self.advice else self.fact

    @classmethod
    def unsupported(cls, fact: str, advice: str = "") -> Self:
        """Why a plan cannot compute a workload."""
        return cls(ReasonKind.UNSUPPORTED, fact, advice)

    @classmethod
    def not_installed(cls, why: tuple[str, str] | None) -> Self | None:
        """Why a library cannot run here, from the fact and the advice; None where it can."""
        return cls(ReasonKind.NOT_INSTALLED, *why) if why else None
