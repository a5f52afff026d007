"""A training step of two layers, profiled: where its time goes, by part of the step and kind of operation, beside what
stripectl predicts of each part, and beside the time that the operations of the compiled program need at least by their
FLOPs and bytes. What a part takes beyond the prediction is then either work that the prediction leaves out (the third
column has it, the first does not), work below the machine's rates (the second column exceeds the third), or waiting.
"""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from benchmarks.check_gpu.program_work import work_of
from benchmarks.check_gpu.sizes import DTYPE, Sizes, hardware_here
from benchmarks.check_gpu.step_split import StepSplit, split_step
from benchmarks.check_gpu.step_table import operation_row, prediction, table
from stripectl.core.workload import Workload
from stripectl.hlo.async_ops import CONTAINERS
from stripectl.hlo.module import Module
from stripectl.measure.session import Session
from stripectl.measure.timing import seconds
from stripectl.models.model_files import load_model
from stripectl.profiling.calls import divided_by_calls
from stripectl.profiling.capture import WITHOUT_GRAPHS
from stripectl.profiling.device_steps import devices_that_ran, main_module
from stripectl.profiling.events import Device
from stripectl.profiling.folder import named_module, profile_files, program_text
from stripectl.profiling.reader import read_profile
from stripectl.profiling.session import profiled_program

LAYERS, SAMPLES, PROFILED = 2, 7, 3
PLANS = {"gpu": "ring/contiguous/cudnn@ring=1"}
PLAN = "ring/contiguous/xla@ring=1,tile=64"  # of other devices
__all__ = ["found", "table"]


def found(sizes: Sizes, folder: Path) -> Iterator[dict[str, Any]]:
    """The prediction, the times of a step, and its division; `folder` keeps the profile."""
    hardware = hardware_here()
    plan = PLANS.get(jax.default_backend(), PLAN)
    predicted = prediction(plan, sizes.model, LAYERS, sizes.step, DTYPE, f"{hardware.name}:1")
    yield {"predicted": predicted}
    work = Workload.from_json(predicted.pop("workload"))
    session, plan, gpu = Session(), predicted["plan"], jax.default_backend() == "gpu"
    session.prepare("step", work.to_json(), plan, 2, {}, verify=False)
    shape = {"model": load_model(sizes.model).name, "layers": LAYERS, "tokens": work.seq_len}
    yield {"times": shape | times(session, "step")}
    if gpu:
        session.prepare("without graphs", work.to_json(), plan, 2, WITHOUT_GRAPHS, verify=False)
        yield {"times without graphs": times(session, "without graphs")}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mark").touch()
    session.profile("step", PROFILED, str(folder), "mark")
    split = middle_step(folder)
    yield {"step": {"seconds": split.seconds, "wait_s": split.wait_s, "gaps_s": split.gaps_s}}
    for each in split.operations:
        yield operation_row(each.name, each.work, each.times, hardware, each.seconds, each.kernels)


def times(session: Session, key: str) -> dict[str, float]:
    """Seconds of a step as a bench takes them, waited for one by one, and of the host's call that starts one."""
    ready = session.ready[key]
    assert ready

    def start() -> float:
        jax.block_until_ready(ready.inputs)
        before = time.perf_counter()
        ready.run()
        return time.perf_counter() - before

    return {
        name: statistics.median(each() for _ in range(SAMPLES))
        for name, each in {
            "bench_s": lambda: session.run(key),
            "waited_for_s": lambda: seconds(ready.run),
            "host_s": start,
        }.items()
    }


def middle_step(folder: Path) -> StepSplit:
    """The profiled step whose time is the median, divided among its operations."""
    device, module, program = profiled_device(folder)
    work = work_of(program)
    containers = frozenset(
        line.name for lines in program.computations.values() for line in lines if line.opcode in CONTAINERS
    )
    steps = [split_step(device, run, work, containers) for run in device.runs(module)]
    return sorted(steps, key=lambda step: step.seconds)[len(steps) // 2]


def profiled_device(folder: Path) -> tuple[Device, str, Module]:
    """The device of a profile, with the runs of its longest program; the program's name, and the program."""
    files = profile_files(folder)
    devices = [device for device in read_profile(files[0]) if len(device.operations.which)]
    module = main_module(devices, named_module(files))
    processes = devices_that_ran([devices], module)
    program = profiled_program(program_text(files[0], module), processes[0], {})
    processes = divided_by_calls(processes, module, program.module)
    return processes[0][0], module, program.module
