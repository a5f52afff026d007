"""The seconds of a program on the devices of a group of processes."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

TYPICAL_S = 1.0
# The least time of a sample on an accelerator. A host started programs on an H200 in 0.2 to 0.5 ms (benchmarks/gpu).
MIN_SAMPLE_S, MAX_QUEUED_RUNS = 0.03, 100


def barrier() -> None:
    """All processes leave together, within the time of a message."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("sample")


def seconds(function: Callable[..., Any], *inputs: Any, runs: int = 1) -> float:
    """One of `runs` queued runs, from the time at which every process has arrived until this process is done."""
    barrier()
    start, result = time.perf_counter(), None
    for _ in range(runs):
        result = function(*inputs)
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / runs


def agreed(value: float) -> float:
    """The value of the first process of a group, for all of them."""
    return float(multihost_utils.broadcast_one_to_all(np.float32(value)))


def runs_of_sample(function: Callable[..., Any], *inputs: Any) -> int:
    """How many runs of a warm program one sample queues. An accelerator begins a queued run when the run before it
    ends, so the time in which the host starts a program counts once. A CPU computes queued runs at the same time."""
    if jax.default_backend() == "cpu":
        return 1
    return int(np.clip(MIN_SAMPLE_S / agreed(seconds(function, *inputs)), 1, MAX_QUEUED_RUNS))


def typical(function: Callable[..., Any], *inputs: Any) -> float:
    """The median of a few samples, after a run that does not count; short runs are repeated more often. All processes
    of a group do the same number."""
    repeats = int(np.clip(TYPICAL_S / agreed(seconds(function, *inputs)), 5, 9))
    runs = runs_of_sample(function, *inputs)
    return float(np.median([seconds(function, *inputs, runs=runs) for _ in range(repeats)]))
