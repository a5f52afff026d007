"""Speed-ups of striped over contiguous training steps, simulated and compared with the measurements of Brandon et al.
2023.

Their kernel differs from stripectl's (`profiles/published/striped-kernel.yaml`): two constants per device give its
cost; everything else in a step is simulated as for any plan.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np

from stripectl.analysis.accuracy.steps import step_workload
from stripectl.analysis.striped_attention_paper import published_rows
from stripectl.core.layout import parse_tile
from stripectl.core.mesh import make_mesh
from stripectl.core.plan import Plan
from stripectl.costs.cost_model import CostModel
from stripectl.costs.links import with_links
from stripectl.costs.sources.datasheet import datasheet_costs
from stripectl.hardware.placement import place_mesh
from stripectl.hardware.profile import Hardware
from stripectl.hardware.target import target_of
from stripectl.results.records import Sparse, read_record
from stripectl.results.tile_cost import TileCost
from stripectl.simulate.training_step import SimulatedStep
from stripectl.util.files import data_folder, load_yaml


class SpeedUp(NamedTuple):
    """A row of the paper: the speed-up of striped over contiguous, measured and simulated."""

    hardware: str
    model: str
    tensor: int
    ring: int
    seq_len: int
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        return self.simulated - self.measured


@dataclass(frozen=True, kw_only=True)
class PaperKernel(Sparse):
    """The costs of the paper's kernel on a device, fitted to `rows` speed-ups: of a tile over its cost at the peak
    rate, and of boundary and dead tiles over a whole tile. `attention_cost` is a known factor of the attention."""

    block: str
    rows: int
    tile: float | None = None
    boundary: float | None = None
    dead: float | None = None
    attention_cost: float = 1.0


@cache
def paper_kernel() -> dict[str, PaperKernel]:
    """The costs of the paper's kernel, by device."""
    path = data_folder("profiles") / "published" / "striped-kernel.yaml"
    return {name: read_record(PaperKernel, each) for name, each in load_yaml(path, "published kernel").items()}


@cache
def speed_ups(hardware: str) -> tuple[SpeedUp, ...]:
    """Every measured row of one kind of device."""
    return tuple(
        SpeedUp(*row, measured, speed_up(*row, paper_kernel()[hardware]))
        for row, (_, measured) in published_rows().items()
        if measured is not None and row[0] == hardware
    )


class SpeedUpAccuracy(NamedTuple):
    """The error of a device's simulated speed-ups: root mean square, and the worst."""

    hardware: str
    rows: int
    rmse: float
    worst: float


def measured_devices() -> list[str]:
    """The kinds of devices for which the paper measured speed-ups."""
    return list(dict.fromkeys(row[0] for row, (_, measured) in published_rows().items() if measured is not None))


def speed_up_error(hardware: str) -> SpeedUpAccuracy:
    """The error of a device for which the paper measured speed-ups."""
    own = [each.error for each in speed_ups(hardware)]
    return SpeedUpAccuracy(hardware, len(own), float(np.sqrt(np.mean(np.square(own)))), float(np.abs(own).max()))


def speed_up(name: str, model: str, tensor: int, ring: int, seq_len: int, kernel: PaperKernel) -> float:
    """The speed-up of a training step with striped over contiguous attention, with the costs of `kernel`."""
    slow, fast = (step_s(name, model, tensor, ring, seq_len, layout, kernel) for layout in ("contiguous", "striped"))
    return slow / fast


def step_s(name: str, model: str, tensor: int, ring: int, seq_len: int, layout: str, kernel: PaperKernel) -> float:
    hardware, workload = Hardware.load(name), step_workload(model, seq_len)
    block = parse_tile(kernel.block)
    tile = block._replace(block_q=min(block.block_q, seq_len // ring), block_kv=min(block.block_kv, seq_len // ring))
    plan = Plan("ring", layout, "xla", mesh=make_mesh({"ring": ring, "tensor": tensor}), tile=tile)
    wired = place_mesh(target_of(hardware, plan.devices), plan.mesh or ())
    machine = with_links(hardware, datasheet_costs(hardware, workload, plan), wired)
    return SimulatedStep(workload, plan, hardware, [with_kernel(machine, kernel)]).timed().seconds


def with_kernel(machine: CostModel, kernel: PaperKernel) -> CostModel:
    """The machine with the kernel's tile costs."""
    times = (kernel.tile or 1.0) * kernel.attention_cost

    def cost(peak: TileCost) -> TileCost:
        whole_s = peak.whole_s * times
        return replace(
            peak,
            whole_s=whole_s,
            boundary_s=whole_s * (kernel.boundary or 1.0),
            dead_s=whole_s * (kernel.dead or 0.0),
        )

    return replace(machine, forward=cost(machine.forward), backward=cost(machine.backward))
