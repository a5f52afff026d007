"""Predictions compared with times of attention on one device that others measured: published calls
(`profiles/published/attention.csv`) and rates distilled from NVIDIA's measurements of other libraries
(`profiles/distilled/attention.csv`).

Each row is a call of a kernel, after a pause. The prediction is the time of that kernel at the measured tile, plus what
the measured call does in memory before and after its kernel. tokamax's flash attention is its splash attention between
transposes of (batch, rows, heads, head_dim) to (batch, heads, rows, head_dim) and back. The backward pass of its splash
attention multiplies the output by its gradient, adds partial sums of dQ and rounds dK and dV. Copies of stripectl's own
plans are not included; on a GPU the time of such a plan is shown apart.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from stripectl.analysis.accuracy.ratio_error import RatioError, ratio_error
from stripectl.core.kernel import kernels
from stripectl.core.layout import Tile, parse_tile
from stripectl.core.plan import Plan
from stripectl.core.workload import DTYPE_BYTES, Workload
from stripectl.costs.cost_model import CostModel
from stripectl.costs.power_limit import after_pause, at_full_rate, sustained_share
from stripectl.costs.shape import Heads, TileShape
from stripectl.costs.source_order import cost_model
from stripectl.costs.sources.datasheet import datasheet_costs
from stripectl.costs.sources.distilled_attention import LIBRARIES, fitted_entry, library_of, line_calls
from stripectl.costs.sources.entries import on_device
from stripectl.costs.sources.table import table_of
from stripectl.hardware.profile import Hardware
from stripectl.kernels.tokamax.tile_memory import FLOAT32, dq_sums, lists_live_tiles
from stripectl.results.tile_cost import TileCost
from stripectl.simulate.attend import KernelCall
from stripectl.simulate.simulation import simulate
from stripectl.util.files import profile_names, table_rows

KERNELS = {  # measured: ours
    "cudnn": "cudnn",
    "tokamax_gpu": "tokamax_gpu",
    "tokamax flash": "tokamax",
    "tokamax splash": "tokamax",
    **{name: name for name in LIBRARIES},
}
DISTILLED = "aiconfigurator-core 0.12.0, profiles/distilled/attention.csv"
DTYPE = "bfloat16"  # of all published times
MIN_TOKENS, MIN_HEADS, MIN_ROWS, MAX_HEAD = 2048, 8, 2**17, 256  # of a distilled call that is compared
STAND_IN = "cudnn"  # for FlashAttention-2, of which stripectl has no costs


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
    sets: str = ""  # the figure of its machine that was fitted to it: `tile` in a table of tiles, or `wait` for a block

    @property
    def measured(self) -> str:
        """The kernel's name without its implementation."""
        return self.kernel.partition(" (")[0]

    @property
    def ours(self) -> str:
        return KERNELS.get(self.measured, STAND_IN)

    @property
    def heads_label(self) -> str:
        return f"{self.head_dim}" if self.head_dim == self.v_dim else f"{self.head_dim}/{self.v_dim}"

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
    """A row and its prediction, in seconds: of the kernel with what the measured call does around it and, on a GPU, of
    a plan on one device, which ends in another form (`call`)."""

    row: PublishedTime
    predicted: float
    call: float | None = None

    @property
    def ratio(self) -> float:
        return self.predicted / self.row.seconds


@cache
def attention_rows() -> tuple[PublishedTime, ...]:
    return tuple(map(_row, table_rows("published/attention")))


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
        mask=columns["mask"].partition(",")[0],
        passes=columns["pass"],
        tile=parse_tile(columns["tile"]) if columns["tile"] else None,
        seconds=float(columns["ms"]) / 1e3,
        sets=columns["sets"],
    )


@cache
def distilled_rows() -> tuple[PublishedTime, ...]:
    """Calls that give a GPU enough work, at the rates of the file: one sequence, and as many heads as its rows of
    queries hold."""
    return tuple(row for line in table_rows("distilled/attention") for row in _distilled(line))


def _distilled(line: dict[str, str]) -> Iterator[PublishedTime]:
    heads, window = Heads(int(line["head_dim"]), int(line["v_dim"])), int(line["window"])
    if line["target"] not in profile_names("hardware") or heads.keys > MAX_HEAD or window:
        return
    library = line["library"]
    sets = "tile" if library == library_of(line["target"], line["kernel"], heads) else ""
    for call in line_calls(line):
        if call.tokens >= MIN_TOKENS and call.heads >= MIN_HEADS and int(line["query_rows"]) >= MIN_ROWS:
            of = DISTILLED, line["target"], f"{line['kernel']} ({library})"
            sizes = 1, call.tokens, call.tokens, call.heads, call.heads, heads.keys, heads.values
            yield PublishedTime(*of, *sizes, call.mask, "forward", None, call.seconds, sets)


def predicted_s(row: PublishedTime) -> float | None:
    """Seconds of a row by the table of its machine, by the calls that tell the costs of its kernel, or by the datasheet
    of a GPU without a table; None where the table has no such kernel or pass, or no calls tell its costs."""
    hardware, table_only = Hardware.load(row.hardware), kernels[row.ours].table_only
    table, shape = table_of(hardware), TileShape.of(row.workload, row.plan, row.passes)
    entry = fitted_entry(hardware, shape) if table_only else table and table.entry(shape)
    if entry:
        cost = on_device(entry.cost, shape, hardware)
    elif table is None and hardware.kind == "gpu" and not table_only:
        machine = datasheet_costs(hardware, row.workload, row.plan)
        cost = machine.forward if row.passes == "forward" else machine.backward
    else:
        return None
    timed = calls(row, cost)
    seconds = sum(call.end_s.max() - call.start_s.max() for call in timed)
    return after_pause(seconds, sustained_share(hardware, DTYPE)) + copied_s(row, hardware)


def call_s(row: PublishedTime) -> float | None:
    """Seconds of a plan on one GPU in the pass of a row; None for other devices, and for calls of other libraries at a
    distilled rate. Behind a prefix a plan calls its kernel twice, and merges and rounds the results."""
    hardware = Hardware.load(row.hardware)
    if hardware.kind != "gpu" or row.source == DISTILLED:
        return None
    machine = cost_model(at_full_rate(hardware), row.workload, row.plan)
    seconds = simulate(row.workload, row.plan, machine).seconds
    if row.passes == "backward":
        seconds -= simulate(replace(row.workload, passes="forward"), row.plan, machine).seconds
    return after_pause(seconds, sustained_share(hardware, DTYPE))


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
    """Every row of a device, with its prediction."""
    rows = (row for row in (*attention_rows(), *distilled_rows()) if row.hardware == hardware)
    return tuple(Prediction(row, seconds, call_s(row)) for row in rows if (seconds := predicted_s(row)))


class AttentionGroup(NamedTuple):
    """The rows of a device, kernel, head size, pass and mask that have MIN_QUERY_ROWS queries, and the error of their
    predictions. A constant of the device was fitted to `fitted` rows, so their error shows the quality of the fit and
    not of a prediction. `as_a_plan` is the ratio, geometric mean, of a plan's whole call over the measured time. A pool
    of groups has no head size and no mask."""

    hardware: str
    measured: str
    ours: str
    heads: str
    passes: str
    mask: str
    fitted: bool
    error: RatioError
    as_a_plan: float | None

    @classmethod
    def of(cls, key: tuple[str, str, str, str, str, str, bool], members: Sequence[Prediction]) -> "AttentionGroup":
        names = [f"{each.row.q_len}x{each.row.batch * each.row.heads}" for each in members]
        error = ratio_error([each.ratio for each in members], names)
        whole = [math.log(each.call / each.row.seconds) for each in members if each.call]
        return cls(*key, error, math.exp(math.fsum(whole) / len(whole)) if whole else None)

    @property
    def stands_in(self) -> bool:
        """Whether the costs of another kernel predict it."""
        return self.measured not in KERNELS


MIN_QUERY_ROWS = 1024  # of a row that counts: the cost of a call dominates shorter rows


def published_devices() -> list[str]:
    """The devices on which times of attention were published."""
    return list(dict.fromkeys(row.hardware for row in (*attention_rows(), *distilled_rows())))


def attention_groups(hardware: str, pooled: bool = False) -> dict[AttentionGroup, list[Prediction]]:
    """The groups of a device, each with its rows; `pooled` puts heads of all sizes and all masks but windows together,
    and leaves out kernels that others' costs predict."""
    found: dict[tuple[str, str, str, str, str, str, bool], list[Prediction]] = {}
    for each in attention_predictions(hardware):
        row, mask = each.row, each.row.mask.partition(":")[0]
        if row.q_len < MIN_QUERY_ROWS or (pooled and (row.measured not in KERNELS or mask == "sliding")):
            continue
        heads, shown = ("", "") if pooled else (row.heads_label, mask)
        key = row.hardware, row.measured, row.ours, heads, row.passes, shown, bool(row.sets)
        found.setdefault(key, []).append(each)
    order = sorted(found, key=lambda key: (key[1], key[4] == "backward", key[6], len(key[3]), key[3], key[5]))
    return {AttentionGroup.of(key, found[key]): found[key] for key in order}


def known_error(hardware: str, kernel: str, workload: Workload) -> AttentionGroup | None:
    """The group of a device with published times of the kernel that computes the tiles of this kernel, in the pass of
    the workload that takes longest, with its dtype and without windows: one whose rows set no constant, if there is
    one; None where no such time is published."""
    wanted = "forward" if workload.passes == "forward" else "backward"
    computes = kernels[kernel].computes(wanted)
    if workload.dtype != DTYPE or workload.has_windows or workload.documents is not None:
        return None
    groups = sorted(attention_groups(hardware, pooled=True), key=lambda each: each.fitted)
    return next((each for each in groups if (each.ours, each.passes) == (computes, wanted)), None)
