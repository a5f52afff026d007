"""Kernels of other libraries of which only times are known: they are simulated, and nothing here runs them."""

from dataclasses import replace
from functools import partial

from stripectl.core.kernel import Capability, Kernel
from stripectl.core.plan import Plan
from stripectl.core.reason import Reason
from stripectl.core.validation import why_not_whole_sequences
from stripectl.core.workload import Workload

DTYPE = "bfloat16"  # of all times


def table_only_kernel(name: str, paper: str, like: Kernel) -> Kernel:
    """A kernel with the calls of `like`, the kernel to try where it must run: tiles in which its work is counted, and
    arrays that are read and written around it."""
    fact = f"{name} is table only: its time can be simulated, and nothing here runs it"
    reason = Reason.unsupported(fact, f"Try --method simulated, or --kernel {like.name}.")
    return replace(
        like,
        name=name,
        paper=paper,
        why_unsupported=partial(why_unsupported, name),
        why_missing=lambda: reason,
        fallback="",
        table_only=True,
    )


def why_unsupported(
    name: str, workload: Workload, plan: Plan, kind: str, capability: Capability | None = None
) -> Reason | None:
    """Why such a kernel cannot compute a plan, or None."""
    if kind != "gpu":
        return Reason.unsupported(f"{name} runs on GPUs", "Try --kernel xla.")
    if workload.dtype != DTYPE:
        return Reason.unsupported(
            f"no time of {name} with {workload.dtype} is known", f"Try --dtype {DTYPE}, or --kernel xla."
        )
    return why_not_whole_sequences(name, workload)
