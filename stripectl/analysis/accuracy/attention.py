"""Predictions beside measurements that others published: attention on one device (`profiles/published/attention.csv`).

Each row is a call of a kernel. It is predicted by the table of the kernel that was measured or, where we have none, of
the nearest of ours, at the tile that was measured, with what the measured call does beside its kernel: tokamax's flash
attention takes (batch, rows, heads, head_dim) and changes it to (batch, heads, rows, head_dim) and back.
"""

import csv
import math
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import numpy as np

from stripectl.files import data_folder
from stripectl.hardware import Hardware
from stripectl.kernels import kernels
from stripectl.layout import UNBOUNDED, Rectangle, Tile
from stripectl.machine import TileCost
from stripectl.simulate.tables import Heads, Shape, cost_of, table_of
from stripectl.simulate.waves import busiest, turned

NEAREST = {"cudnn": "cudnn", "tokamax flash": "pallas_tpu", "tokamax splash": "pallas_tpu"}  # measured: ours
COPIES = {"tokamax flash"}  # kernels whose call changes the order of its arrays' dimensions
ELEMENT_BYTES = 2


class Row(NamedTuple):
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
        """The kernel's name without what it is made with."""
        return self.kernel.partition(" (")[0]

    @property
    def ours(self) -> str:
        return NEAREST[self.measured]

    @property
    def band(self) -> Rectangle:
        """The scores of a head, of which a causal mask leaves the last query all keys."""
        high = UNBOUNDED if self.mask == "full" else self.kv_len - self.q_len
        return Rectangle(0, 0, self.q_len, self.kv_len, -UNBOUNDED, high)


class Beside(NamedTuple):
    """A row and what is predicted for it, in seconds."""

    row: Row
    predicted: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.row.seconds


class Error(NamedTuple):
    """How far predictions are off what was measured: the geometric mean over rows, and the worst."""

    rows: int
    mean: float
    worst: float
    ratio: float  # of predictions over measurements, geometric mean: below 1 they are too fast


@cache
def attention_rows() -> tuple[Row, ...]:
    text = (data_folder("profiles") / "published" / "attention.csv").read_text().splitlines()
    return tuple(_row(each) for each in csv.DictReader(text))


def _row(given: dict[str, str]) -> Row:
    sides = [int(each) for each in given["tile"].split("x") if each]
    return Row(
        source=given["source"],
        hardware=given["hardware"],
        kernel=given["kernel"],
        batch=int(given["batch"]),
        q_len=int(given["q_len"]),
        kv_len=int(given["kv_len"]),
        heads=int(given["heads"]),
        kv_heads=int(given["kv_heads"]),
        head_dim=int(given["head_dim"]),
        v_dim=int(given["v_dim"]),
        mask="full" if given["mask"] == "full" else "causal",
        passes=given["pass"],
        tile=Tile(*sides[:2]) if sides else None,
        seconds=float(given["ms"]) / 1e3,
    )


def predicted(row: Row) -> float | None:
    """Seconds of a row by the table of its machine; None where no table says."""
    hardware, kernel = Hardware.load(row.hardware), kernels[row.ours]
    tile = kernel.counted or row.tile or kernel.default_tile(hardware.kind)
    table = table_of(hardware.name)
    shape = Shape(row.ours, "bfloat16", Heads(row.head_dim, row.v_dim), tile)
    known = table.costs(shape) if table else None
    if known is None or row.passes not in known.passes:
        return None
    entry = known.passes[row.passes]
    cost = cost_of(entry, hardware, "bfloat16", row.kv_heads * row.batch, row.heads // row.kv_heads)
    return seconds_of(row, cost, tile) + copied_s(row, hardware)


def seconds_of(row: Row, cost: TileCost, tile: Tile) -> float:
    """What the kernel takes."""
    heads = row.batch * row.heads
    tiles = kernels[row.ours].count([row.band], tile)
    if cost.processors:
        assert cost.block
        band = turned(row.band) if row.passes == "backward" else row.band
        found = busiest([band], cost.block, heads, cost.processors)
        tiles = tiles._replace(busiest=found[0][0], calls=found[1][0])
    return float(cost.seconds(tiles, heads))


def copied_s(row: Row, hardware: Hardware) -> float:
    """What the call reads and writes beside its kernel."""
    if row.measured not in COPIES:
        return 0.0
    queries = row.q_len * row.heads * (row.head_dim + row.v_dim)
    keys = row.kv_len * row.kv_heads * (row.head_dim + row.v_dim)
    memory = hardware.figure("achievable_hbm_bytes_per_s") or hardware.figures["hbm_bytes_per_s"]
    return 2 * ELEMENT_BYTES * row.batch * (queries + keys) / memory


def waves_of(row: Row, hardware: Hardware, block: Tile) -> tuple[int, int]:
    """(tiles of the processor with the most, calls) of a row."""
    band = turned(row.band) if row.passes == "backward" else row.band
    tiles, calls = busiest([band], block, row.batch * row.heads, int(hardware.compiler["core_count"]))
    return int(tiles[0]), int(calls[0])


def attention(fewest_queries: int = 0) -> list[Beside]:
    """Every published row of so many queries, beside what is predicted."""
    rows = [row for row in attention_rows() if row.q_len >= fewest_queries]
    return [Beside(row, seconds) for row in rows if (seconds := predicted(row))]


def error(found: Iterable[Beside]) -> Error:
    logs = np.array([math.log(each.ratio) for each in found])
    apart = np.exp(np.abs(logs))
    return Error(len(logs), float(np.exp(np.abs(logs).mean()) - 1), float(apart.max() - 1), float(np.exp(logs.mean())))


class Group(NamedTuple):
    """The rows of a device, kernel and pass, and how far their predictions are off. `fitted` are rows that the costs
    were fitted to, which say how good the fit is and not how good a prediction."""

    hardware: str
    measured: str
    ours: str
    passes: str
    fitted: bool
    error: Error


FEWEST_QUERIES = 1024  # of a row that is judged: shorter ones are decided by what a call costs


def groups() -> list[Group]:
    """Of every published row of FEWEST_QUERIES queries and more."""
    found: dict[tuple[str, str, str, str], list[Beside]] = {}
    for each in attention(FEWEST_QUERIES):
        row = each.row
        found.setdefault((row.hardware, row.measured, row.ours, row.passes), []).append(each)
    return [Group(*key, Hardware.load(key[0]).kind == "gpu", error(members)) for key, members in found.items()]


def known_error(hardware: str, passes: str) -> Group | None:
    """That of a device and the pass that is nearest to what is asked; None where no row is of it."""
    own = [group for group in groups_once() if group.hardware == hardware]
    wanted = "forward" if passes == "forward" else "backward"
    return next((group for group in own if group.passes == wanted), own[0] if own else None)


@cache
def groups_once() -> tuple[Group, ...]:
    return tuple(groups())
