"""Meshes of a training step, simulated and compared with the step times that MaxText measured
(`profiles/published/maxtext.csv`).

The command of MaxText PR 4836 sets neither tiles nor rematerialisation, so both have the values of its base.yml (commit
0998c01c1): tiles of 512x512, and `remat_policy: full`, which runs attention forward twice. JAX places its meshes on the
chips (`jax.experimental.mesh_utils.create_device_mesh`; it splits sides of the torus where a mesh needs that, and the
axis `context` comes before `context_usp_ulysses`): hops of its rings of 8 and of 32 devices share links, and
stripectl's do not, and meshes of 8x8 and 32x2 do not follow the torus, so the compiler gathers their parameters by an
all-reduce (a layer with MaxText's shardings, compiled on these four meshes, gathers on 64x1 and 16x4 and sums on the
others). Gradients are summed in bfloat16.

Its all-gather attends to all keys in one call; stripectl's attends to them shard by shard. Its partial results take
1.6 ms of the 6.1 ms per layer of a forward pass at 64k, so the times here have no memory traffic outside tiles.

Not modelled: its backward kernel is fused (five matmuls per tile, stripectl's has seven; both run on one of a chip's
two cores) and writes a float32 dQ for each column of tiles, which is summed afterwards; its ring makes N hops of K/V,
stripectl's N-1; its all-gather keeps the gathered K/V of a layer for its backward pass.

Its ring sends dK and dV in float32: in commit 0eccf594 of `ring_attention_kernel.py` after the tiles of a round, where
no tiles can hide them, as here; in commit 0998c01c1 at the start of a scanned body, where the tiles of the next round
can. The rows chose between these versions: with hidden hops the pairs have the same order, and ring takes 0.75 instead
of 0.92 of its measured time at 64k.
"""

import itertools
import json
import math
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from stripectl.analysis.accuracy.steps import step_workload
from stripectl.core.layout import Tile
from stripectl.core.mesh import make_mesh
from stripectl.core.plan import Plan
from stripectl.costs.source_order import cost_model
from stripectl.hardware.placement import MeshPlacement, place_in_order
from stripectl.hardware.target import parse_target
from stripectl.simulate.attend import ACCUMULATOR_BYTES
from stripectl.simulate.training_step import SimulatedStep
from stripectl.util.files import data_folder, table_rows

TARGET, MODEL, KERNEL, LAYOUT = "v5p:4x4x4", "llama3-8b", "splash", "contiguous"
TILE, REMAT = Tile(512, 512), "full"  # as measured
ORDER_FILE = "maxtext-order.json"  # made by benchmarks/maxtext_order.py
EXPOSED = {("backward", "collective-permute", ACCUMULATOR_BYTES): 1.0}  # hops without tiles, chosen by the rows
BFLOAT16 = 2  # bytes per element of a gradient that MaxText sums
ONE_CALL = "all_gather"  # the scheme that attends to all keys in one call, so it merges no results in memory
MIN_DIFFERENCE = 0.03  # of two measured times: closer times are not ordered
MAX_TIE = 0.10  # of two predicted times, where the measured times are not ordered


class MeshTime(NamedTuple):
    """A mesh and a length: seconds of a step, measured and simulated."""

    plan: str
    seq_len: int
    measured: float
    simulated: float

    @property
    def ratio(self) -> float:
        return self.simulated / self.measured


class MeshOrder(NamedTuple):
    """The order of a length's cells: the pairs with different measured times, and how many of them are in the right
    order; the pairs with equal times, and how many of them are predicted about equal; and how much longer the
    predicted best takes than the measured best."""

    seq_len: int
    pairs: int
    right: int
    ties: int
    near: int
    lost: float


@cache
def mesh_times() -> tuple[MeshTime, ...]:
    return tuple(
        MeshTime(str(plan), seq_len, measured, simulated_step_s(plan, seq_len))
        for plan, by_length in published_plans().items()
        for seq_len, measured in by_length.items()
    )


def published_plans() -> dict[Plan, dict[int, float]]:
    """Measured seconds of a step, by plan and tokens."""
    found: dict[Plan, dict[int, float]] = {}
    for row in table_rows("published/maxtext"):
        mesh = make_mesh({axis: int(row[axis]) for axis in ("ring", "ulysses")})
        lengths = (name for name in row if name.endswith("k"))
        times = {int(name.strip("sk")) * 1024: float(row[name]) for name in lengths}
        found[Plan(row["scheme"], LAYOUT, KERNEL, mesh=mesh)] = times
    return found


def as_jax_lays_it(plan: Plan) -> MeshPlacement:
    """The mesh of a measured plan in MaxText's placement."""
    orders = json.loads((data_folder("profiles") / "published" / ORDER_FILE).read_text())
    return place_in_order(parse_target(TARGET), plan.mesh or (), orders[f"{plan.size('ring')}x{plan.size('ulysses')}"])


def simulated_step_s(plan: Plan, seq_len: int) -> float:
    """Seconds of a step, with the measured tile and rematerialisation."""
    target, workload = parse_target(TARGET), step_workload(MODEL, seq_len)
    plan = replace(plan, tile=TILE, remat=REMAT)
    machine = cost_model(target.hardware, workload, plan, as_jax_lays_it(plan))
    machine = replace(machine, exposed=EXPOSED)
    if plan.scheme == ONE_CALL:
        machine = replace(machine, memory_bytes_per_s=math.inf)
    return SimulatedStep(workload, plan, target.hardware, [machine], gradient_bytes=BFLOAT16).seconds()


def cells_of(seq_len: int) -> list[MeshTime]:
    return [cell for cell in mesh_times() if cell.seq_len == seq_len]


def rank_correlation(seq_len: int) -> float:
    """Kendall's tau of measured and simulated times at a length."""
    from scipy import stats  # takes longer to import than the meshes of a report to simulate

    alike = cells_of(seq_len)
    return float(stats.kendalltau([cell.measured for cell in alike], [cell.simulated for cell in alike]).statistic)


def mesh_orders() -> list[MeshOrder]:
    """The order of the meshes at each length."""
    found: list[MeshOrder] = []
    for seq_len in dict.fromkeys(cell.seq_len for cell in mesh_times()):
        alike = cells_of(seq_len)
        apart, ties = list[tuple[MeshTime, MeshTime]](), list[tuple[MeshTime, MeshTime]]()
        for a, b in itertools.combinations(alike, 2):
            (ties if differ(a.measured, b.measured) < MIN_DIFFERENCE else apart).append((a, b))
        near = sum(differ(a.simulated, b.simulated) <= MAX_TIE for a, b in ties)
        right = sum((a.measured < b.measured) == (a.simulated < b.simulated) for a, b in apart)
        pick, best = min(alike, key=lambda cell: cell.simulated), min(cell.measured for cell in alike)
        found.append(MeshOrder(seq_len, len(apart), right, len(ties), near, pick.measured / best - 1))
    return found


def differ(a: float, b: float) -> float:
    """By how much the larger of two times exceeds the smaller."""
    return max(a, b) / min(a, b) - 1
