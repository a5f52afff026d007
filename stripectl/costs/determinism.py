"""The cost of XLA's flag for determinism on GPUs: cuDNN's backward pass then adds the gradients of queries in one order
(openxla/xla pull request 14125).

NVIDIA timed the pass with and without this option on GB200 and GB300 (`profiles/published/deterministic.csv`, cuDNN
9.22). With heads of 128 it takes 1.1 to 1.3 times as long, whatever the length; with heads of 192 and 128, about as
long. cuDNN's forward pass adds nothing in another order.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from stripectl.core.plan import Plan
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import CostModel
from stripectl.errors import BadInput
from stripectl.hardware.profile import Hardware
from stripectl.util.files import table_rows

DETERMINISM_FLAG = "xla_gpu_deterministic_ops"
TABLE = "published/deterministic"
KERNEL = "cudnn"
SOURCE = f"NVIDIA/cudnn-frontend 3929da2, profiles/{TABLE}.csv"
LEFT_OUT = "other operations that XLA makes deterministic"


def with_determinism(
    machine: CostModel, hardware: Hardware, workload: Workload, plan: Plan, flags: Mapping[str, str]
) -> CostModel:
    """The machine whose backward pass is deterministic, where the flags say so and the workload has one.

    Raises:
        BadInput: nobody published what determinism costs for the plan's kernel, the machine or the heads.
    """
    without = plan.kernel == KERNEL and workload.passes == "forward"
    if flags.get(DETERMINISM_FLAG, "false").lower() != "true" or without:
        return machine
    factor, known = backward_factor(hardware, workload, plan), machine.cost_source
    backward = machine.backward.scaled(factor)
    source = replace(
        known,
        backward=known.backward and backward,
        deterministic_backward=factor,
        sources={**(known.sources or {}), "deterministic_backward": SOURCE},
        left_out="; ".join(filter(None, [known.left_out, LEFT_OUT])),
    )
    return replace(machine, backward=backward, cost_source=source)


def backward_factor(hardware: Hardware, workload: Workload, plan: Plan) -> float:
    """How much longer a deterministic backward pass takes: of the machine, or of another of its architecture.

    Raises:
        BadInput: nobody published it.
    """
    sizes, factors = (workload.head_dim, workload.value_dim), _factors()
    alike = [name for name, _ in factors if Hardware.load(name).capability == hardware.capability]
    found = [factors[name, sizes] for name in (hardware.tables_of, *alike) if (name, sizes) in factors]
    if plan.kernel != KERNEL or not found:
        measured = sorted({f"{keys}" if keys == values else f"{keys}/{values}" for _, (keys, values) in factors})
        raise BadInput(
            f"cannot simulate the flag {DETERMINISM_FLAG} for {plan.kernel} with heads of {sizes[0]} on "
            f"{hardware.name} because its cost is published only for {KERNEL} with heads of "
            f"{' and '.join(measured)} on {' and '.join(sorted({name for name, _ in factors}))}. Try --method measured."
        )
    return found[0]


@cache
def _factors() -> dict[tuple[str, tuple[int, int]], float]:
    """The geometric mean of each machine's rows with heads of the same sizes."""
    logs: dict[tuple[str, tuple[int, int]], list[float]] = {}
    for row in table_rows(TABLE):
        sizes = int(row["head_dim"]), int(row["v_dim"])
        logs.setdefault((row["hardware"], sizes), []).append(
            math.log(float(row["deterministic_ms"]) / float(row["ms"]))
        )
    return {key: math.exp(math.fsum(own) / len(own)) for key, own in logs.items()}
