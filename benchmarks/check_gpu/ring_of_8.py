"""Rings of eight such devices on clocks, from tiles that are timed on this one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.check_gpu.command import command
from benchmarks.check_gpu.sizes import DTYPE, HEAD_DIM, HEADS, Sizes, kernels_here


def found(sizes: Sizes, _: Path) -> Iterator[dict[str, Any]]:
    """The measurements of a simulated ring, of the kernels that GPUs have, then of the loops of XLA."""
    shape = ("--heads", str(HEADS), "--head-dim", str(HEAD_DIM), "--dtype", DTYPE, "--pass", "forward-backward")
    for kernel in reversed(kernels_here()):
        given = ("--scheme", "ring", "--kernel", kernel, "--method", "simulated", "--seqlen", str(sizes.ring))
        for one in command("bench", *given, *shape)["measurements"]:
            yield {name: one[name] for name in ("plan", "target", "status", "reason", "median_s", "cost_source")}
