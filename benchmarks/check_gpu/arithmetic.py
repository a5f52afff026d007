"""What a training step needs at least on a GPU, by the FLOPs and bytes of its compiled program, and what is predicted
of its parts. The GPU's compiler makes the program; no device is needed.

    python -m benchmarks.check_gpu.arithmetic [--target h200:1] [--model 1b] [--layers 2] [--seqlen 4096]

Each operation takes its FLOPs at the peak rate of its dtype or its bytes at the memory's rate, whichever is longer. A
library's attention counts with its bytes alone. The part `step_profile` of `make check-gpu` prints the same with what a
profile shows.
"""

import argparse
import os

from benchmarks.check_gpu.program_work import entered, work_of
from benchmarks.check_gpu.step_table import operation_row, part_lines, prediction, total
from stripectl.compile.toolchain import TOOLCHAINS, topology_arguments
from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload
from stripectl.hardware.target import Target, parse_target
from stripectl.hlo.async_ops import CONTAINERS
from stripectl.hlo.module import Module, parse_module
from stripectl.profiling.program import NO_WORK


def compiled_module(workload: Workload, plan: str, target: Target) -> Module:
    """The program of a step as the target's compiler makes it, without graphs, as in a profile."""
    os.environ.update(TOOLCHAINS["gpu"].environment)  # before JAX is imported
    from jax.experimental import topologies

    from stripectl.profiling.capture import WITHOUT_GRAPHS
    from stripectl.training.program import program_of

    devices = topologies.get_topology_desc(**topology_arguments(target)).devices
    return parse_module(program_of(workload, parse_plan(plan), devices[:1]).compile(WITHOUT_GRAPHS).as_text())


def main() -> None:
    given = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    given.add_argument("--target", default="h200:1")
    given.add_argument("--model", default="1b")
    given.add_argument("--layers", type=int, default=2)
    given.add_argument("--seqlen", type=int, default=2**12)
    given.add_argument("--plan", default="ring/contiguous/cudnn@ring=1")
    asked = given.parse_args()
    target = parse_target(asked.target)
    predicted = prediction(asked.plan, asked.model, asked.layers, asked.seqlen, "bfloat16", asked.target)
    module = compiled_module(Workload.from_json(predicted["workload"]), predicted["plan"], target)
    work = work_of(module)
    rows = [
        operation_row(line.name, work[line.name], times, target.hardware)
        for name, times, _ in module.reached(entered)
        for line in module.computations[name]
        if line.opcode not in (*NO_WORK, *CONTAINERS)
    ]
    print(*part_lines(rows, predicted["parts"]), total("step", "", predicted["seconds"], rows), sep="\n")


if __name__ == "__main__":
    main()
