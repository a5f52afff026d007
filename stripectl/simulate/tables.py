"""The cost of a tile: a property of kernel, tile, head size, dtype, pass and machine, never of the scheme.

A TPU's entry holds cycles of a device, by the compiler's final schedule (Pallas kernels) or its estimates (XLA's own),
from one small program; `profiles/kernels/` ships a table a machine. Seconds are cycles at the clock rate, or, where
measured matmuls are published, at the part of it that they reach. A GPU's entry holds seconds of a tile on one of its
processors and of a call, from published measurements; its blocks of tiles run in waves (`waves`).

A tile or head size without an entry takes the cycles of the nearest entry, scaled by a polynomial in the sides of the
tile that is fitted to all entries.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from stripectl.datasheet import linked
from stripectl.files import data_folder, load_yaml, profile_names
from stripectl.hardware import Hardware
from stripectl.kernels import PallasKernel, kernels
from stripectl.layout import Tile
from stripectl.machine import Machine, TileCost
from stripectl.plan import BATCH_AXES, HEAD_AXES, Plan
from stripectl.wiring import Wiring
from stripectl.workload import Workload

FOLDER = "kernels"
PASSES = ("forward", "backward")
SEVERAL = 0.1  # of a cost: what two sources may differ by before it is worth a word
MATRIX_UNIT = 128  # rows of a matrix unit up to v5; heads are padded to a multiple


class Entry(NamedTuple):
    """Cycles that a device takes for a tile of each kind of one head, and to start and end a row of tiles or, of a pass
    whose tiles lie in columns, a column of them, of a key/value head. A kernel that `masks_all` masks every tile of a
    pair of shards that has a boundary; `dealt` kernels deal the key/value heads to the cores of a device, so that a
    head alone keeps one core busy."""

    whole: float
    boundary: float
    dead: float = 0.0
    row: float = 0.0
    column: float = 0.0
    masks_all: bool = False
    dealt: bool = False

    def times(self, factor: float) -> "Entry":
        return self._replace(**{name: getattr(self, name) * factor for name in CYCLES})


CYCLES = ("whole", "boundary", "dead", "row", "column")
COSTS = ("whole_s", "boundary_s", "dead_s", "row_s", "call_s")
LEFT_OUT = "waits for memory inside of kernels"


class Wave(NamedTuple):
    """Seconds that a processor of a GPU takes for a tile of a block, and that a call takes; `block` holds the queries
    (backward: keys) that a thread block takes at once, and the keys of a tile."""

    tile_s: float
    call_s: float
    block: Tile


class Heads(NamedTuple):
    """The sizes of key and value heads: written `192/128`, or `128` where they are the same."""

    keys: int
    values: int


class Shape(NamedTuple):
    """What a cost depends on besides the machine."""

    kernel: str
    dtype: str
    heads: Heads
    tile: Tile

    @property
    def head_dim(self) -> int:
        return self.heads.keys

    def with_heads(self, size: int) -> "Shape":
        return self._replace(heads=Heads(size, size))


# The share of a tile's matmuls that keys' heads take part in; values' heads take part in the others: of the forward
# pass S = QK, and PV; of the backward pass S, dQ and dK, and dV and dP.
OF_KEYS = {"forward": 1 / 2, "backward": 3 / 5}


@dataclass(frozen=True)
class Known:
    """The costs of a shape by pass, where they are from, and the words for that."""

    passes: Mapping[str, Entry | Wave]
    source: str
    detail: Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """The costs of a machine: `entries[kernel, dtype][heads][tile][pass]`; and what its compiler's schedule leaves
    without tiles beside it, `exposed[scheme][rows of a shard]`, as `Machine.exposed` has it."""

    name: str
    source: str
    compiler: str | None
    entries: Mapping[tuple[str, str], Mapping[Heads, Mapping[Tile, Mapping[str, Entry | Wave]]]]
    exposed: Mapping[str, Mapping[int, Mapping[tuple[str, str, int], float]]] = field(default_factory=dict)

    def costs(self, shape: Shape) -> Known | None:
        """What the table says of a shape; None where it knows nothing of the kernel and dtype."""
        found = {passes: cost for passes in PASSES if (cost := self.cost(shape, passes))}
        if not found:
            return None
        waves = any(isinstance(entry, Wave) for entry, _ in found.values())
        source = "published" if waves else "bundles" if kernels[shape.kernel].bundles else "estimated_cycles"
        detail: dict[str, Any] = {"table": self.name, "made_by": self.compiler or self.source}
        if near := sorted({near for _, near in found.values() if near}):
            detail["interpolated_from"] = ", ".join(near)
        return Known({passes: entry for passes, (entry, _) in found.items()}, source, detail)

    def cost(self, shape: Shape, passes: str) -> tuple[Entry | Wave, str] | None:
        """(the entry of a pass, of which other shape it was made in words, or nothing)."""
        known = self.entries.get((kernels[shape.kernel].tiles_as or shape.kernel, shape.dtype), {})
        heads = {head: own for head, tiles in known.items() if (own := of_pass(tiles, passes))}
        wanted = shape.heads
        if wanted not in heads and wanted.keys != wanted.values:
            own, other = (self.cost(shape.with_heads(size), passes) for size in wanted)
            mean = own and other and mixed(own[0], other[0], passes)
            return mean and (mean, f"heads of {wanted.keys} and of {wanted.values}")
        square = [head.keys for head in heads if head.keys == head.values]
        if wanted in heads:
            head = wanted
        elif square:
            head = Heads(nearest := nearest_head(wanted.keys, square), nearest)
        else:
            return None
        tiles = heads[head]
        near = f"head_dim {head.keys}" if head != wanted else ""
        if isinstance(entry := next(iter(tiles.values())), Wave):
            return entry._replace(tile_s=entry.tile_s * wanted.keys / head.keys), near
        if shape.tile not in tiles:
            closest = min(tiles, key=shape.tile.apart)
            entry, near = between(tiles, closest, shape.tile), ", ".join(filter(None, [f"tile {closest}", near]))
        else:
            entry = tiles[shape.tile]
        return entry.times(padded(wanted.keys) / padded(head.keys)), near


def of_pass(tiles: Mapping[Tile, Mapping[str, Any]], passes: str) -> dict[Tile, Any]:
    return {tile: by_pass[passes] for tile, by_pass in tiles.items() if passes in by_pass}


def mixed(own: Entry | Wave, other: Entry | Wave, passes: str) -> Entry | Wave:
    """The entry where value heads have another size than key heads: of each matmul its own."""
    share, names = OF_KEYS[passes], CYCLES if isinstance(own, Entry) else ("tile_s",)
    return own._replace(**{n: getattr(own, n) * share + getattr(other, n) * (1 - share) for n in names})


def padded(head_dim: int, unit: int = MATRIX_UNIT) -> int:
    return -(-head_dim // unit) * unit


def nearest_head(head_dim: int, known: Iterable[int]) -> int:
    """The smallest head that is no smaller, or else the largest."""
    larger = [each for each in known if each >= head_dim]
    return min(larger) if larger else max(known)


def between(known: Mapping[Tile, Entry], nearest: Tile, tile: Tile) -> Entry:
    """An entry for a tile that none is for: each of its costs as it goes along the sides of the tiles there are."""

    def along(name: str) -> float:
        costs = {each: getattr(entry, name) for each, entry in known.items()}
        here = costs[nearest]
        model = polynomial(costs, ("row", "column").index(name) if name in ("row", "column") else None)
        there = model(nearest)
        return here * model(tile) / there if there else here

    return known[nearest]._replace(**{name: along(name) for name in CYCLES})


def polynomial(costs: Mapping[Tile, float], side: int | None):
    """tile -> cost: of a tile a + b q + c k + d q k, of a row a + b q, of a column a + b k, with no part below zero
    (least squares of relative errors)."""
    from scipy.optimize import nnls

    def terms(tile: Tile) -> list[float]:
        q, kv = tile
        return [1.0, float(q), float(kv), float(q) * kv] if side is None else [1.0, float(tile[side])]

    above = {tile: cost for tile, cost in costs.items() if cost > 0}
    if not above:
        return lambda tile: 0.0
    weights = 1 / np.array(list(above.values()))
    found, _ = nnls(np.array([terms(tile) for tile in above]) * weights[:, None], np.ones(len(above)))
    return lambda tile: float(np.dot(found, terms(tile)))


@cache
def table_of(hardware: str) -> Table | None:
    """The table that ships for a machine, or None."""
    if hardware not in profile_names(FOLDER):
        return None
    path = data_folder("profiles") / FOLDER / f"{hardware}.yaml"
    content = load_yaml(path, "kernel table")
    entries: dict[tuple[str, str], dict[Heads, dict[Tile, dict[str, Entry | Wave]]]] = {}
    for kernel, dtypes in content["kernels"].items():
        for dtype, heads in dtypes.items():
            entries[kernel, dtype] = {
                read_heads(sizes): {
                    (tile := Tile(*map(int, text.split("x")))): {
                        passes: read_entry(kernel, passes, tile, each) for passes, each in by_pass.items()
                    }
                    for text, by_pass in tiles.items()
                }
                for sizes, tiles in heads.items()
            }
    exposed = {
        scheme: {
            int(rows): {read_transfer(text): float(share) for text, share in each.items()} for rows, each in of.items()
        }
        for scheme, of in (content.get("exposed") or {}).items()
    }
    return Table(f"profiles/{FOLDER}/{hardware}.yaml", content["source"], content.get("compiler"), entries, exposed)


def read_transfer(text: str) -> tuple[str, str, int]:
    """(pass, opcode, bytes an element) of `backward collective-permute 2`."""
    passes, opcode, itemsize = text.split()
    return passes, opcode, int(itemsize)


def exposed_by(hardware: Hardware, plan: Plan, rows: int) -> Mapping[tuple[str, str, int], float]:
    """What the schedule of the compiler leaves without tiles beside it in a rolled loop, of shards of about so many
    rows: by the table that ships."""
    table = table_of(hardware.name)
    known = table.exposed.get(plan.scheme) if table and plan.unroll == 1 else None
    return known[min(known, key=lambda each: abs(math.log(each / rows)))] if known else {}


def read_heads(text: Any) -> Heads:
    keys, _, values = str(text).partition("/")
    return Heads(int(keys), int(values or keys))


def read_entry(kernel: str, passes: str, tile: Tile, content: Mapping[str, Any]) -> Entry | Wave:
    if "tile_s" in content:
        block = Tile(*map(int, content["block"].split("x")))
        return Wave(float(content["tile_s"]), float(content["call_s"]), block)
    parts = kernels[kernel].bundles.get(passes, ())
    return Entry(**content, masks_all=masks_all(parts), dealt=bool(parts) and not masks_all(parts))


def masks_all(parts: Sequence[PallasKernel]) -> bool:
    return bool(parts) and not any(part.only_live for part in parts)


def entry_of_bundles(
    bundles: Sequence[Mapping[str, Any]], parts: Sequence[PallasKernel], matmul: float, cores: int
) -> Entry | None:
    """The entry of a pass, which is made of `parts`, from the bundles of a program; None where they are not there.
    Bundles are those of one of the cores that a device has. They leave out waiting for a matrix unit, so a tile takes
    no less than its matmuls, each of `matmul` cycles at the peak rate."""
    whole = boundary = dead = row = column = 0.0
    for part in parts:
        alike = [each for each in bundles if part.name in each["name"]]
        if not alike:
            return None
        share = 1 / cores if part.shared else 1.0

        def mean(name: str, masks: bool, alike: Sequence[Any] = alike, share: float = share) -> float:
            """Cycles of the kernels of this part that mask, or of those that do not; of the others where none do."""
            chosen = [each[name] for each in alike if each["masked"] == masks] or [each[name] for each in alike]
            return share * float(np.mean(chosen))

        whole += max(part.matmuls * matmul, mean("tile", part.only_live) + mean("step", part.only_live))
        boundary += max(part.matmuls * matmul, mean("boundary", True) + mean("step", True))
        dead += 0.0 if part.only_live else mean("step", True)
        if part.per_kv_head:
            column += mean("row", True)
        else:
            row += mean("row", True)
    return Entry(whole, boundary, dead, row, column, masks_all(parts), dealt=not masks_all(parts))


def entry_of_cycles(cycles: Mapping[str, float]) -> Entry | None:
    """The entry of a pass from what the compiler estimates for the bodies of the tile loops of a program."""
    if not cycles["whole"] and not cycles["boundary"]:
        return None
    whole, boundary = cycles["whole"] or cycles["boundary"], cycles["boundary"] or cycles["whole"]
    return Entry(whole, boundary, row=cycles["row"])


def entries_of(facts: Mapping[str, Any], shape: Shape, hardware: Hardware) -> dict[str, Entry]:
    """The entries of a compiled program whose passes all have tiles of this shape, by pass."""
    clock, peak, parts = hardware.figure("clock_hz"), hardware.flops_per_s(shape.dtype), kernels[shape.kernel].bundles
    if not clock or not facts.get("cycles"):
        return {}
    area = shape.tile.block_q * shape.tile.block_kv
    matmul = 2 * area * shape.head_dim / peak * clock if peak else 0.0
    found = {}
    for passes, cycles in facts["cycles"].items():
        if parts:
            found[passes] = entry_of_bundles(facts.get("bundles") or (), parts[passes], matmul, hardware.cores)
        else:
            found[passes] = entry_of_cycles(cycles)
    return {passes: entry for passes, entry in found.items() if entry}


def tile_cost(entry: Entry, hardware: Hardware, dtype: str, kv_heads: int, group: int) -> TileCost:
    """Seconds of an entry on a device that has so many key/value heads, each of `group` query heads."""
    cores = hardware.cores if entry.dealt else 1
    share = -(-kv_heads // cores) * cores / kv_heads
    scale = share / effective_clock_hz(hardware, dtype)
    return TileCost(
        whole_s=entry.whole * scale,
        boundary_s=entry.boundary * scale,
        dead_s=entry.dead * scale,
        row_s=(entry.row + entry.column / group) * scale,
        masks_all=entry.masks_all,
    )


def effective_clock_hz(hardware: Hardware, dtype: str) -> float:
    """The clock rate that cycles take: that of the profile, times what published matmuls reach of the peak."""
    peak, reached = hardware.flops_per_s(dtype), hardware.figure(f"achievable_flops_per_s_{dtype}")
    return hardware.figures["clock_hz"] * (reached / peak if peak and reached else 1.0)


def heads_of(workload: Workload, plan: Plan) -> tuple[int, int]:
    """(key/value heads of a device, of all its requests; query heads of each)."""
    dealt = plan.product((*HEAD_AXES, *BATCH_AXES, "ulysses"))
    return max(1, workload.kv_heads * workload.batch // dealt), workload.heads // workload.kv_heads


CANONICAL = {"batch": 1, "heads": 8, "kv_heads": 2}
SIDES = 4  # of a tile, in the sequence of a canonical program


def canonical(shape: Shape, mask: str = "causal") -> tuple[Workload, Plan]:
    """The small program that tells the costs of a shape: attention of one device, forward and backward."""
    tile = shape.tile
    assert shape.heads.keys == shape.heads.values
    own = {"head_dim": shape.head_dim, "dtype": shape.dtype, "mask": mask, "seq_len": SIDES * max(tile)}
    kernel = kernels[shape.kernel].tiles_as or shape.kernel
    workload = Workload(**CANONICAL, **own, passes="forward-backward")
    return workload, Plan("memory_efficient", "contiguous", kernel, mesh=(), tile=tile)


def masks_of(kernel: str) -> tuple[str, ...]:
    """The masks whose canonical programs together hold all of a kernel's tiles: of one that masks all tiles of a pair
    that has a boundary, whole tiles are in a program without a mask."""
    alone = any(masks_all(parts) for parts in kernels[kernel].bundles.values())
    return ("causal", "full") if alone else ("causal",)


def shapes_of(workload: Workload, plan: Plan) -> dict[str, Shape]:
    """What the costs of a plan depend on, by pass."""
    return {
        passes: Shape(plan.kernel, workload.dtype, Heads(workload.head_dim, workload.head_dim), tile)
        for passes, tile in plan.tiles.items()
        if passes == "forward" or workload.passes != "forward"
    }


def shipped(hardware: Hardware, workload: Workload, plan: Plan) -> dict[str, Known] | None:
    """The costs of a plan by the table that ships for its machine; None where that does not say."""
    table = table_of(hardware.name) if kernels[plan.kernel].family == "softmax" else None
    found = {passes: table.costs(shape) if table else None for passes, shape in shapes_of(workload, plan).items()}
    known = {passes: each for passes, each in found.items() if each and passes in each.passes}
    return known if known and len(known) == len(found) else None


def tabled_machine(
    hardware: Hardware, workload: Workload, plan: Plan, known: Mapping[str, Known], wiring: Wiring | None
) -> Machine:
    """The machine whose tiles cost what tables say; hops are the datasheet's.

    Raises:
        BadInput: the profile lacks the rate of its links.
    """
    kv_heads, group = heads_of(workload, plan)
    costs = {
        passes: cost_of(each.passes[passes], hardware, workload.dtype, kv_heads, group)
        for passes, each in known.items()
    }
    forward = known["forward"]
    detail: dict[str, Any] = {**forward.detail}
    if (backward := known.get("backward")) and backward.detail != forward.detail:
        detail["backward_costs"] = dict(backward.detail)
    if clock := hardware.figure("clock_hz"):
        detail["clock_hz"] = effective_clock_hz(hardware, workload.dtype)
        detail["sources"] = {"clock_hz": hardware.sources["clock_hz"]}
        reached = f"achievable_flops_per_s_{workload.dtype}"
        if detail["clock_hz"] != clock:
            detail["sources"][reached] = hardware.sources[reached]
    detail |= {passes: {name: getattr(cost, name) for name in COSTS} for passes, cost in costs.items()}
    exposed = exposed_by(hardware, plan, workload.seq_len // plan.shards)
    if exposed:
        detail["exposed"] = {" ".join(map(str, key)): share for key, share in sorted(exposed.items())}
    detail = {"sources": {}, "left_out": LEFT_OUT, **detail}
    both = costs["forward"], costs.get("backward", TileCost(0.0, 0.0))
    return linked(hardware, Machine(*both, 0.0, 0.0, hardware.overlaps, forward.source, detail, exposed), wiring)


def cost_of(entry: Entry | Wave, hardware: Hardware, dtype: str, kv_heads: int, group: int) -> TileCost:
    if isinstance(entry, Wave):
        cores = int(hardware.compiler["core_count"])
        return TileCost(entry.tile_s, entry.tile_s, call_s=entry.call_s, processors=cores, block=entry.block)
    return tile_cost(entry, hardware, dtype, kv_heads, group)
