"""Captures an XLA profile of a few steps of a compiled program, in every process of a run."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from shutil import move
from typing import Any

import jax

from stripectl.profiling.folder import PROFILES

STEP = "stripectl"  # the name of its steps in the profile
WITHOUT_GRAPHS = {"xla_gpu_enable_command_buffer": ""}  # with command buffers, a GPU's kernels lose their operation


def capture(run: Callable[[], Any], steps: int, folder: Path, barrier: Callable[[], None]) -> Path:
    """Run a compiled, warm program `steps` times, each after a barrier, and write this process's profile to `folder`,
    where xprof looks for it."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.host_tracer_level = 2
    options.enable_hlo_proto = True
    kept = folder / PROFILES
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        with jax.profiler.trace(own, profiler_options=options):
            for number in range(steps):
                barrier()
                with jax.profiler.StepTraceAnnotation(STEP, step_num=number):
                    jax.block_until_ready(run())
        captured = next(Path(own).rglob("*.xplane.pb"))
        path = kept / f"process{jax.process_index()}.xplane.pb"
        move(captured, path)
    return path
