"""Predictions compared with published times of attention on one device (`profiles/published/attention.csv`).

Each row is a call of a kernel. The prediction is the time of that kernel at the measured tile, plus what the measured
call does in memory before and after its kernel. tokamax's flash attention is its splash attention between transposes
of (batch, rows, heads, head_dim) to (batch, heads, rows, head_dim) and back. The backward pass of its splash attention
multiplies the output by its gradient, adds partial sums of dQ and rounds dK and dV. Copies of stripectl's own plans are
not included.
"""

import csv
import math
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import numpy as np

from stripectl.core.kernel import kernels
from stripectl.core.layout import Tile, parse_tile
from stripectl.core.plan import Plan
from stripectl.core.workload import DTYPE_BYTES, Workload
from stripectl.costs.cost_model import CostModel
from stripectl.costs.shape import TileShape
from stripectl.costs.sources.entries import on_device
from stripectl.costs.sources.table import table_of
from stripectl.hardware.profile import Hardware
from stripectl.kernels.tokamax.tile_memory import FLOAT32, dq_sums, lists_live_tiles
from stripectl.results.tile_cost import TileCost
from stripectl.simulate.attend import KernelCall
from stripectl.simulate.simulation import simulate
from stripectl.util.files import data_folder

KERNELS = {"cudnn": "cudnn", "tokamax flash": "tokamax", "tokamax splash": "tokamax"}  # measured: ours


class PublishedTime(NamedTuple):
    """A published time of attention on one device."""

    source: str
    hardware: str
    kernel: str
    batch: int
    q_len: int
    kv_len: int
    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int
    mask: str
    passes: str
    tile: Tile | None
    seconds: float

    @property
    def measured(self) -> str:
        """The kernel's name without its implementation."""
        return self.kernel.partition(" (")[0]

    @property
    def ours(self) -> str:
        return KERNELS.get(self.measured, self.measured)

    @property
    def sets_a_constant(self) -> bool:
        """Whether a figure of its machine was derived from it: `block_wait_s`."""
        return self.hardware == "tpu7x" and self.kv_len == 2**17 and self.head_dim == self.v_dim

    @property
    def workload(self) -> Workload:
        queries = self.q_len if self.q_len < self.kv_len else None
        return Workload(
            seq_len=self.kv_len,
            query_len=queries,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            v_head_dim=self.v_dim,
            batch=self.batch,
            mask=self.mask,
            passes="forward" if self.passes == "forward" else "forward-backward",
        )

    @property
    def plan(self) -> Plan:
        """The plan on one device, with the measured tile."""
        kernel = kernels[self.ours]
        measured = self.tile and kernel.shortest_name(self.tile)
        tile = kernel.counting_tile or measured or kernel.default_tile(Hardware.load(self.hardware).kind)
        return Plan("memory_efficient", "contiguous", kernel.name, mesh=(), tile=tile)


class Prediction(NamedTuple):
    """A row and its prediction, in seconds."""

    row: PublishedTime
    predicted: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.row.seconds


class AttentionAccuracy(NamedTuple):
    """The error of predictions against measurements: the geometric mean over rows, and the worst."""

    rows: int
    mean: float
    worst: float
    ratio: float  # predictions over measurements, geometric mean: below 1 predictions are too fast


@cache
def attention_rows() -> tuple[PublishedTime, ...]:
    text = (data_folder("profiles") / "published" / "attention.csv").read_text().splitlines()
    return tuple(_row(each) for each in csv.DictReader(text))


def _row(columns: dict[str, str]) -> PublishedTime:
    return PublishedTime(
        source=columns["source"],
        hardware=columns["hardware"],
        kernel=columns["kernel"],
        batch=int(columns["batch"]),
        q_len=int(columns["q_len"]),
        kv_len=int(columns["kv_len"]),
        heads=int(columns["heads"]),
        kv_heads=int(columns["kv_heads"]),
        head_dim=int(columns["head_dim"]),
        v_dim=int(columns["v_dim"]),
        mask="full" if columns["mask"] == "full" else "causal",
        passes=columns["pass"],
        tile=parse_tile(columns["tile"]) if columns["tile"] else None,
        seconds=float(columns["ms"]) / 1e3,
    )


def predicted_s(row: PublishedTime) -> float | None:
    """Seconds of a row by the table of its machine; None where the table has no such kernel or pass."""
    hardware = Hardware.load(row.hardware)
    table, shape = table_of(hardware), TileShape.of(row.workload, row.plan, row.passes)
    entry = table and table.entry(shape)
    if not entry:
        return None
    timed = calls(row, on_device(entry.cost, shape, hardware))
    return sum(call.end_s.max() - call.start_s.max() for call in timed) + copied_s(row, hardware)


def calls(row: PublishedTime, cost: TileCost) -> list[KernelCall]:
    """The calls of the kernel in the pass of a row, on a machine where only tiles take time."""
    machine = CostModel(cost, cost)
    return [each for each in simulate(row.workload, row.plan, machine).rounds if each.passes == row.passes]


def copied_s(row: PublishedTime, hardware: Hardware) -> float:
    """Seconds of a call's reads and writes before and after its kernel."""
    width, queries, keys = DTYPE_BYTES[row.workload.dtype], row.q_len * row.heads, row.kv_len * row.kv_heads
    nbytes = 0
    if row.measured == "tokamax flash":
        nbytes = 2 * width * (queries + keys) * (row.head_dim + row.v_dim)
    elif row.measured == "tokamax splash" and row.passes == "backward":
        assert row.tile
        _, moved = dq_sums(row.kv_len, row.tile)
        nbytes = width * queries * (2 * row.v_dim + moved * row.head_dim)
        if lists_live_tiles(row.kv_len, row.tile) and row.heads > row.kv_heads:  # dK and dV are added in float32
            nbytes += (FLOAT32 + width) * keys * (row.head_dim + row.v_dim)
    memory = hardware.figure("achievable_hbm_bytes_per_s") or hardware.figures["hbm_bytes_per_s"]
    return row.batch * nbytes / memory


@cache
def attention_predictions(hardware: str) -> tuple[Prediction, ...]:
    """Every published row of a device, with its prediction."""
    rows = (row for row in attention_rows() if row.hardware == hardware)
    return tuple(Prediction(row, seconds) for row in rows if (seconds := predicted_s(row)))


def attention_error(found: Iterable[Prediction]) -> AttentionAccuracy:
    logs = np.array([math.log(each.ratio) for each in found])
    apart = np.exp(np.abs(logs))
    return AttentionAccuracy(
        len(logs), float(np.exp(np.abs(logs).mean()) - 1), float(apart.max() - 1), float(np.exp(logs.mean()))
    )


class AttentionGroup(NamedTuple):
    """The rows of a device, kernel and pass that have MIN_QUERY_ROWS queries and set no constant, and the error of
    their predictions. The costs of `fitted` rows were fitted to these rows, so their error shows the quality of the fit
    and not of a prediction."""

    hardware: str
    measured: str
    ours: str
    passes: str
    fitted: bool
    error: AttentionAccuracy


DTYPE = "bfloat16"  # of all published times
MIN_QUERY_ROWS = 1024  # of a row that counts: the cost of a call dominates shorter rows


def published_devices() -> list[str]:
    """The devices on which times of attention were published."""
    return list(dict.fromkeys(row.hardware for row in attention_rows()))


def attention_groups(hardware: str) -> dict[AttentionGroup, list[Prediction]]:
    """The groups of a device, each with its rows."""
    found: dict[tuple[str, str, str, str], list[Prediction]] = {}
    for each in attention_predictions(hardware):
        if (row := each.row).q_len >= MIN_QUERY_ROWS and not row.sets_a_constant:
            found.setdefault((row.hardware, row.measured, row.ours, row.passes), []).append(each)
    fitted = bool(found) and Hardware.load(hardware).kind == "gpu"
    return {AttentionGroup(*key, fitted, attention_error(members)): members for key, members in found.items()}


def known_error(hardware: str, kernel: str, workload: Workload) -> AttentionGroup | None:
    """The group of a device with published times of the kernel that computes the tiles of this kernel, in the pass of
    the workload that takes longest, with its dtype and without windows; None where no such time is published."""
    wanted = "forward" if workload.passes == "forward" else "backward"
    computes = kernels[kernel].computes(wanted)
    if workload.dtype != DTYPE or workload.window.left is not None or workload.documents is not None:
        return None
    groups = attention_groups(hardware)
    return next((each for each in groups if (each.ours, each.passes) == (computes, wanted)), None)
