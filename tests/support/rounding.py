"""How far results in bfloat16 are from float64, over many draws, as shares of what the tests allow.

    python -m tests.support.rounding [DRAWS]

For each kernel that a CPU runs, in a ring of two: the largest error and the largest root mean square error of the
output and of the gradients. Figures: benchmarks/README.md "Rounding to bfloat16".
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace

os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX is imported, which reads both
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["PJRT_NPROC"] = "16"  # threads: two of them wait for each other for ever in a recurrence with a write gate

import jax

from stripectl.core.plan import Plan, parse_plan
from stripectl.core.workload import Workload
from stripectl.execute.program import PlanProgram
from stripectl.execute.reference import max_relative_error
from stripectl.execute.verification import roundings, tolerance
from tests.support.exact import results, typical_error, typical_tolerance

USUAL = Workload(seq_len=512, heads=4, kv_heads=2, head_dim=64, dtype="bfloat16", passes="forward-backward")
LINEAR = replace(USUAL, kv_heads=4, attention="linear")


def cases() -> Iterator[tuple[Workload, Plan]]:
    """Heads whose scale is a power of two, and heads whose scale is none; a decay and a recurrence."""
    for kernel in ("xla", "pallas_tpu", "pallas_bounded", "splash"):
        for head_dim in (64, 128):
            for mask in ("causal", "full"):
                yield (
                    replace(USUAL, head_dim=head_dim, mask=mask),
                    parse_plan(f"ring/zigzag/{kernel}@ring=2,tile=128"),
                )
    for kernel, workload in (
        ("chunked", replace(LINEAR, decay="per-head")),
        ("pallas_chunked", replace(LINEAR, decay="per-head")),
        ("gated", replace(LINEAR, recurrence="mamba2")),
        ("gated", replace(LINEAR, recurrence="gdn")),
    ):
        yield workload, parse_plan(f"lasp2/contiguous/{kernel}@ring=2,tile=64")


def main(draws: int) -> None:
    columns = ("kernel", "head_dim", "attention", "roundings", "largest error", "allowed", "typical error", "allowed")
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for workload, plan in cases():
        program = PlanProgram(workload, plan, jax.devices())
        found = [each for seed in range(draws) for each in results(program, seed)]
        largest = [max_relative_error(*each) for each in found]
        typical = [typical_error(*each) for each in found]
        asked = workload.mask if workload.attention == "softmax" else workload.gated.name if workload.gated else "decay"
        allowed = tolerance(workload, plan), typical_tolerance(workload, plan)
        print(
            f"| {plan.kernel} | {workload.head_dim} | {asked} | {roundings(workload, plan)} "
            f"| {max(largest):.1e} | {max(largest) / allowed[0]:.0%} "
            f"| {max(typical):.1e} | {max(typical) / allowed[1]:.0%} |",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
