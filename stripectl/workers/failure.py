"""Why a worker did not do its task, as the reason and status of a result."""

from typing import Literal

from stripectl.core.reason import Reason, ReasonKind
from stripectl.workers.worker_group import WorkerError


def failure_kind(failure: WorkerError) -> ReasonKind:
    """The kind of reason that a worker's failure is."""
    if failure.unsupported:
        return ReasonKind.UNSUPPORTED
    return ReasonKind.TIMEOUT if failure.timed_out else ReasonKind.ERROR


def failure_reason(failure: WorkerError, prefix: str = "") -> tuple[Reason, Literal["failed", "refused"]]:
    """(reason, status) of a plan that failed to compile. `prefix` comes before the worker's words."""
    advice = "Try a longer --compile-timeout" if failure.timed_out else ""
    reason = Reason(failure_kind(failure), f"{prefix}{failure}", advice)
    return reason, "refused" if failure.unsupported else "failed"
