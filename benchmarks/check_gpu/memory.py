"""What the compiler says that a plan holds, beside the most that the device held while it ran."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from benchmarks.check_gpu.sizes import DTYPE, HEAD_DIM, HEADS, Sizes, kernels_here
from stripectl.core.defaults import usual_tile
from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload
from stripectl.execute.program import PlanProgram, compiled_peak_bytes


def found(sizes: Sizes, _: Path) -> Iterator[dict[str, Any]]:
    """Bytes by plan; the leanest plan runs first, because the device counts from the start of this process."""
    n, h, rows, both = HEADS, HEAD_DIM, sizes.sequence, "forward-backward"
    work = Workload(seq_len=rows, heads=n, kv_heads=n, head_dim=h, dtype=DTYPE, passes=both)
    ready = list[tuple[int, str, Any, Any]]()
    for kernel in kernels_here():
        plan = parse_plan(f"ring/contiguous/{kernel}@ring=1")
        plan = replace(plan, tile=usual_tile(plan, work, "gpu"))
        program = PlanProgram(work, plan, jax.devices())
        compiled = program.compile({})
        ready.append((compiled_peak_bytes(compiled) or 0, str(plan), compiled, program))
    for compiled_bytes, plan, compiled, program in sorted(ready, key=lambda each: each[0]):
        inputs = program.random_inputs()
        jax.block_until_ready(compiled(*inputs))
        del inputs
        stats = jax.devices()[0].memory_stats() or {}
        held = stats.get("peak_bytes_in_use")  # of the process so far, so the leanest plan runs first
        yield {"plan": plan, "compiled_bytes": compiled_bytes, "held_bytes": held}
