"""The tables of tile costs that ship, one per machine, in `profiles/kernels`: the cost of a tile is a property of
kernel, tile, head size, dtype, pass and machine, never of the scheme.

A TPU's table holds cycles of a device, from the compiler's final schedule (Pallas kernels) or its estimates (XLA's own
loops) for one small program. A GPU's holds seconds of a tile on one processor and of a call, from measurements; its
blocks of tiles run in waves (`waves`). Where XLA starts programs for each tile of a head, it holds microseconds of a
tile, which the whole GPU computes. A machine without a table uses the table of the machine that its profile names, a
GPU with times in the ratio of the clock rates.

A tile or head size without an entry gets the costs of the nearest entry (`interpolation`).
"""

import itertools
import math
import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

from stripectl.core.kernel import Kernel, kernels
from stripectl.core.layout import Tile, parse_tile
from stripectl.core.plan import Plan
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import CostModel
from stripectl.costs.shape import Heads, TileShape, shapes_of
from stripectl.costs.sources.entries import Entry, effective_clock_hz, entry_cost_model
from stripectl.costs.sources.interpolation import interpolated_cost, mean_of_heads, nearest_head, padded
from stripectl.costs.sources.small_programs import TileCycles, has_tile_costs, source_of
from stripectl.hardware.profile import Hardware
from stripectl.results.cost_source import CostOrigin, TableSource
from stripectl.results.tile_cost import TileCost
from stripectl.util.files import data_folder, load_yaml, profile_names

FOLDER = "kernels"
PASSES = ("forward", "backward")
TileCosts = Mapping[Tile, TileCost]


@dataclass(frozen=True, eq=False)
class CostTable:
    """The costs of a machine: `costs[kernel, dtype, pass][heads][tile]`, and the transfers that its compiler
    schedules without tiles at the same time: `blocking` collectives, for any scheme, and hops, `exposed[scheme][rows of
    a shard]` or `exposed[scheme/layout][rows]` where a layout differs, both as in `CostModel`."""

    name: str
    source: str
    compiler: str | None
    costs: Mapping[tuple[str, str, str], Mapping[Heads, TileCosts]]
    compilers: Mapping[str, str] = field(default_factory=dict)  # of kernels that need another compiler
    measured: Collection[str] = ()  # kernels whose times stripectl measured
    blocking: tuple[str, ...] = ()
    exposed: Mapping[str, Mapping[int, Mapping[tuple[str, str, int], float]]] = field(default_factory=dict)

    @lru_cache(2**12)  # noqa: B019 (a table is there as long as the process)
    def entry(self, shape: TileShape) -> Entry | None:
        """The entry of a shape; None where the table has none for the kernel and dtype in this pass."""
        heads, wanted = self.costs_of_pass(shape), shape.heads
        if wanted not in heads and wanted.keys != wanted.values:
            own, other = (self.entry(shape.with_heads(size)) for size in wanted)
            return own and other and mean_entry(own, other, shape)
        square = [head.keys for head in heads if head.keys == head.values]
        if wanted in heads:
            head = wanted
        elif square:
            head = Heads(nearest := nearest_head(wanted.keys, square), nearest)
        else:
            return None
        tiles, kernel = heads[head], shape.computed_by
        near = f"head_dim {head.keys}" if head != wanted else ""
        if (cost := next(iter(tiles.values()))).processors:
            return self._found(kernel, cost.scaled(wanted.keys / head.keys), near)
        factor = padded(wanted.keys) / padded(head.keys)
        if shape.tile in tiles:
            return self._found(kernel, tiles[shape.tile].scaled(factor), near)
        tiles = with_sizes_of_others(tiles, heads)
        closest, cost = cost_near(tiles, shape.tile, kernel)
        distance = kernel.full_name(shape.tile).distance(kernel.full_name(closest))
        near = ", ".join(filter(None, [f"tile {closest}", near]))
        return self._found(kernel, cost.scaled(factor), near, distance, len(tiles))

    def _found(
        self, kernel: Kernel, cost: TileCost, near: str, distance: float | None = None, sizes: int | None = None
    ) -> Entry:
        known = CostOrigin.PUBLISHED if cost.processors else source_of(kernel)
        made_by = self.compilers.get(kernel.name) or self.compiler or self.source
        return Entry(
            cost,
            CostOrigin.MEASURED_BEFORE if kernel.name in self.measured else known,
            TableSource(
                table=self.name, made_by=made_by, interpolated_from=near or None, distance=distance or None, sizes=sizes
            ),
        )

    def tiles(self, shape: TileShape) -> list[Tile]:
        """The tiles with an entry for the kernel, dtype and pass of a shape, with heads of any size."""
        return [tile for tiles in self.costs_of_pass(shape).values() for tile in tiles]

    def costs_of_pass(self, shape: TileShape) -> dict[Heads, TileCosts]:
        """The costs of the kernel, dtype and pass of a shape, by heads and tile."""
        known = self.costs.get((shape.costs_of, shape.dtype, shape.passes), {})
        return {heads: tiles for heads, tiles in known.items() if tiles}


def mean_entry(own: Entry, other: Entry, shape: TileShape) -> Entry:
    """The entry where key heads and value heads have different sizes, from the entries of both sizes."""
    heads, table = f"heads of {shape.heads.keys} and of {shape.heads.values}", own.table
    near = f"{(table.interpolated_from or '').partition(',')[0]}, {heads}" if table.distance else heads
    cost = mean_of_heads(own.cost, other.cost, shape.passes)
    return own._replace(cost=cost, table=replace(table, interpolated_from=near))


def cost_near(known: TileCosts, tile: Tile, kernel: Kernel) -> tuple[Tile, TileCost]:
    """(the nearest tile, the cost of a tile without an entry). It follows the trend along two sides; another number of
    keys at once changes each cost as it does where it is known."""
    usual = {each: cost for each, cost in known.items() if not each.block_kv_compute}

    def by_sides(sides: Tile) -> TileCost:
        return usual.get(sides) or interpolated_cost(usual, min(usual, key=sides.distance), sides)

    own = by_sides(Tile(*tile.sides))
    wanted = kernel.full_name(tile)
    closest = min(known, key=lambda each: wanted.distance(kernel.full_name(each)))
    if not closest.block_kv_compute:
        return closest, own
    factors = known[closest].combined(by_sides(Tile(*closest.sides)), ratio)
    return closest, own.combined(factors, operator.mul)


def ratio(cost: float, other: float) -> float:
    """The ratio of two costs; 1 where the other is nothing."""
    return cost / other if other else 1.0


def with_sizes_of_others(own: TileCosts, heads: Mapping[Heads, TileCosts]) -> TileCosts:
    """The tiles of heads of one size. Where there is only one, its cost follows the tiles of the heads with most."""
    others = max(heads.values(), key=len)
    if len(own) > 1 or not own.keys() <= others.keys():
        return own
    ((tile, cost),) = own.items()
    factors = cost.combined(others[tile], ratio)
    return {each: other.combined(factors, operator.mul) for each, other in others.items()}


@cache
def table_of(hardware: Hardware) -> CostTable | None:
    """The table that a machine uses, with seconds of the machine; None where none ships for it, or its profile lacks
    the figure that turns entries into seconds."""
    if hardware.tables_of not in profile_names(FOLDER):
        return None
    if hardware.figure("clock_hz") is None if hardware.kind == "tpu" else "core_count" not in hardware.compiler:
        return None
    content = load_yaml(data_folder("profiles") / FOLDER / f"{hardware.tables_of}.yaml", "kernel table")
    costs = dict[tuple[str, str, str], dict[Heads, dict[Tile, TileCost]]]()
    for (kernel, dtypes), passes in itertools.product(content["kernels"].items(), PASSES):
        for dtype, heads in dtypes.items():
            costs[kernel, dtype, passes] = {
                Heads.read(sizes): {
                    parse_tile(text): read_cost(by_pass[passes], hardware, dtype)
                    for text, by_pass in tiles.items()
                    if passes in by_pass
                }
                for sizes, tiles in heads.items()
            }
    exposed = {
        scheme: {
            int(rows): {read_transfer(text): float(share) for text, share in each.items()} for rows, each in of.items()
        }
        for scheme, of in (content.get("exposed") or {}).items()
    }
    return CostTable(
        name=f"profiles/{FOLDER}/{hardware.tables_of}.yaml",
        source=content["source"],
        compiler=content.get("compiler"),
        costs=costs,
        compilers=content.get("compilers") or {},
        measured=tuple(content.get("measured") or ()),
        blocking=tuple(content.get("blocking") or ()),
        exposed=exposed,
    )


def read_cost(content: Mapping[str, Any], hardware: Hardware, dtype: str) -> TileCost:
    """A cost in seconds of a machine that uses the table."""
    if hardware.kind == "tpu":
        return TileCycles(**content).cost(effective_clock_hz(hardware, dtype))
    if "tile_s" not in content:
        return TileCycles(**content).cost(1e6 / clock_ratio(hardware))  # microseconds
    tile_s, cores = float(content["tile_s"]) * clock_ratio(hardware), int(hardware.compiler["core_count"])
    call_s, start_s, block = float(content["call_s"]), float(content.get("start_s", 0.0)), parse_tile(content["block"])
    return TileCost(tile_s, tile_s, call_s=call_s, start_s=start_s, processors=cores, block=block)


def clock_ratio(hardware: Hardware) -> float:
    """The clock rate of the GPU whose table is read, over this GPU's; 1 where one of them is unknown."""
    name = "clock_rate_ghz"
    own, table = hardware.compiler.get(name), Hardware.load(hardware.tables_of).compiler.get(name)
    return float(table) / float(own) if own and table else 1.0


def read_transfer(text: str) -> tuple[str, str, int]:
    """(pass, opcode, bytes an element) of `backward collective-permute 2`."""
    passes, opcode, itemsize = text.split()
    return passes, opcode, int(itemsize)


def machine_table(hardware: Hardware, kernel: Kernel) -> CostTable | None:
    """The table of a machine, for kernels whose tiles it can have."""
    return table_of(hardware) if has_tile_costs(kernel) else None


def nearest_entries(hardware: Hardware, workload: Workload, plan: Plan) -> CostModel | None:
    """A machine with the table's entries for a plan, or the entries nearest to its tiles; None without an entry."""
    return _machine(hardware, workload, plan, exact=False)


def exact_entries(hardware: Hardware, workload: Workload, plan: Plan) -> CostModel | None:
    """A machine with the table's entries for a plan; None where a tile has no entry of its own."""
    return _machine(hardware, workload, plan, exact=True)


def _machine(hardware: Hardware, workload: Workload, plan: Plan, *, exact: bool) -> CostModel | None:
    table, known = machine_table(hardware, kernels[plan.kernel]), dict[str, Entry]()
    for passes, shape in shapes_of(workload, plan).items():
        entry = table and table.entry(shape)
        if not entry or (exact and not entry.is_exact):
            return None
        known[passes] = entry
    assert table
    machine = entry_cost_model(hardware, workload, plan, known)
    return machine.with_schedule(exposed_hops(table, plan, workload.seq_len // plan.shards), table.blocking)


def exposed_hops(table: CostTable, plan: Plan, rows: int) -> Mapping[tuple[str, str, int], float]:
    """The hops that the compiler schedules without tiles at the same time in a rolled loop, for shards of about `rows`
    rows."""
    # A kernel that sends its hops itself sends them while it computes tiles.
    scheduled = plan.unroll == 1 and not kernels[plan.kernel].makes_hops
    both = (f"{plan.scheme}/{plan.layout}", plan.scheme) if scheduled else ()
    known = next(filter(None, map(table.exposed.get, both)), None)
    return known[min(known, key=lambda each: abs(math.log(each / rows)))] if known else {}
