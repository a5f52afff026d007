"""Measured plans of kernels and shapes that no ring of shards here has, each compared with its reference in float64, as
every measured plan is."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from benchmarks.check_gpu.command import command
from benchmarks.check_gpu.sizes import DTYPE, Sizes

CUDNN, XLA = "ring/contiguous/cudnn@ring=1", "ring/contiguous/xla@ring=1"
GATED, CHUNKED = "linear_scan/contiguous/gated@ring=1", "lasp2/contiguous/chunked@ring=1"
NARROW, FLOAT32 = ("--dtype", DTYPE), ("--dtype", "float32")
# Those that have not run on a GPU first.
PLANS: tuple[tuple[str, ...], ...] = (
    (CUDNN, *NARROW, "--head-dim", "192", "--v-head-dim", "128"),
    (CUDNN, *NARROW, "--kv-heads", "1"),
    *((GATED, *NARROW, "--recurrence", each) for each in ("gla", "deltanet")),
    (GATED, *NARROW, "--recurrence", "gdn", "--key-heads", "2"),
    (XLA, *NARROW, "--mask", "sliding:64"),
    (XLA, *NARROW, "--documents", "64,128"),
    (XLA, *FLOAT32),
    ("vanilla/contiguous/dense", *NARROW),
    (CHUNKED, *NARROW),
    (CHUNKED, *FLOAT32),
    *((GATED, *NARROW, "--recurrence", each) for each in ("gdn", "kda", "mamba2")),
)


def found(sizes: Sizes, _: Path) -> Iterator[dict[str, Any]]:
    """The error of each plan that this platform runs, or the reason why it has none."""

    def checked(given: tuple[str, ...]) -> dict[str, Any]:
        plan, *options = given
        size = () if "--head-dim" in options else ("--head-dim", "64")
        shape = ("--seqlen", str(sizes.verified), "--heads", "4", *size, "--pass", "forward-backward")
        row: dict[str, Any] = {"plan": plan, "options": options}
        try:
            run = command("bench", "--plan", plan, *shape, *options, "--method", "measured", "--time-budget", "2s")
        except RuntimeError as failure:
            return row | {"ok": False, "reason": str(failure)}
        (one,) = run["measurements"]
        return row | {"ok": True, "check": one["check"]}

    plans = [given for given in PLANS if given[0] != CUDNN or jax.default_backend() == "gpu"]
    with ThreadPoolExecutor(min(len(plans), os.cpu_count() or 1)) as threads:  # timings do not matter here
        yield from threads.map(checked, plans)
