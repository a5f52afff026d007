"""Speed-ups of striped over contiguous training steps on TPU v4, predicted from compiled programs and compared with the
measurements of Brandon et al. 2023.

`profiles/compiled/striped-steps.json` holds the compiler's facts about each step outside its attention, and about its
collectives and their schedule (made by benchmarks/paper_steps.py). Attention is simulated with the tiles of stripectl's
kernel, from the table that ships, and with the tiles of the paper's kernel, which also visits tiles without live
scores.
"""

import json
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from stripectl.analysis.accuracy.paper import paper_kernel, with_kernel
from stripectl.analysis.accuracy.steps import step_workload
from stripectl.analysis.striped_attention_paper import published_rows
from stripectl.compile.cost_model import compiled_cost_model
from stripectl.core.plan import parse_plan
from stripectl.costs.sources.datasheet import datasheet_costs
from stripectl.hardware.placement import place_mesh
from stripectl.hardware.target import parse_target
from stripectl.results.compiled_program import CompiledProgram
from stripectl.results.records import read_record
from stripectl.simulate.compiled_step import CompiledStep, sent_beside
from stripectl.util.files import data_folder

FILE = "striped-steps.json"
HARDWARE, TARGET, KERNEL, TILE = "v4", "v4:2x2x4", "xla", "2048x2048"
LAYOUTS = ("contiguous", "striped")
TILES = {"our kernel": False, "the paper's kernel": True}  # whose tiles: whether they use its two constants


class MeasuredRow(NamedTuple):
    """A row of the paper, with the two plans whose times give its speed-up."""

    model: str
    seq_len: int
    measured: float
    plans: tuple[str, ...]


class CompiledSpeedUpAccuracy(NamedTuple):
    """The error of compiled speed-ups with the tiles of a kernel: root mean square, mean, worst."""

    tiles: str
    fitted: bool
    rows: int
    rmse: float
    mean: float
    worst: float


@cache
def measured_rows() -> tuple[MeasuredRow, ...]:
    found: list[MeasuredRow] = []
    for (hardware, model, tensor, ring, seq_len), (_, measured) in published_rows().items():
        if hardware == HARDWARE and measured is not None:
            mesh = f"ring={ring},tensor={tensor}"
            plans = tuple(f"ring/{layout}/{KERNEL}@{mesh},tile={TILE}" for layout in LAYOUTS)
            found.append(MeasuredRow(model, seq_len, measured, plans))
    return tuple(found)


@cache
def programs() -> dict[tuple[str, int], CompiledProgram]:
    """The compiler's facts, by plan and length."""
    content = json.loads((data_folder("profiles") / "compiled" / FILE).read_text())
    return {(each["plan"], each["seq_len"]): read_record(CompiledProgram, each) for each in content}


def compiled_step_s(model: str, seq_len: int, text: str, as_paper: bool) -> float:
    """Seconds of a step, where attention has the tiles of the paper's kernel or of stripectl's."""
    program, target = programs()[text, seq_len], parse_target(TARGET)
    workload, plan = step_workload(model, seq_len), parse_plan(text)
    assert plan.tile
    wired = place_mesh(target, plan.mesh or ())
    machine = compiled_cost_model(target.hardware, workload, plan, program, wired)
    if as_paper:
        peak = datasheet_costs(target.hardware, workload, plan)
        theirs = with_kernel(peak, paper_kernel()[HARDWARE])
        machine = replace(machine, forward=theirs.forward, backward=theirs.backward)
    clock = target.hardware.figures["clock_hz"]
    beside = {name: cycles / clock for name, cycles in (program.beside or {}).items()}
    return CompiledStep(workload, plan, [machine], beside, sent_beside(program.collectives, plan)).timed().seconds


def compiled_errors() -> list[CompiledSpeedUpAccuracy]:
    """The errors with the tiles of each kernel."""
    found: list[CompiledSpeedUpAccuracy] = []
    for tiles, as_paper in TILES.items():
        off: list[float] = []
        for row in measured_rows():
            slow, fast = (compiled_step_s(row.model, row.seq_len, plan, as_paper) for plan in row.plans)
            off.append(slow / fast - row.measured)
        rmse, mean, worst = float(np.sqrt(np.mean(np.square(off)))), float(np.mean(off)), float(np.abs(off).max())
        found.append(CompiledSpeedUpAccuracy(tiles, as_paper, len(off), rmse, mean, worst))
    return found
