"""Why a worker did not do its task, as the reason and status of a result."""

from typing import Literal

from stripectl.workers.worker_group import WorkerError


def failure_reason(failure: WorkerError) -> tuple[str, Literal["failed", "refused"]]:
    """(reason, status) of a plan that failed to compile."""
    hint = ". Try a longer --compile-timeout" if failure.timed_out else ""
    return f"{failure}{hint}", "refused" if failure.unsupported else "failed"
