"""The cost of a tile: a property of kernel, tile, head size, dtype, pass and machine, never of the scheme.

A TPU's entry holds cycles of a device, from the compiler's final schedule (Pallas kernels) or its estimates (XLA's own
loops) for one small program; `profiles/kernels/` has one table per machine. A GPU's entry holds seconds of a tile on
one processor and of a call, from measurements; its blocks of tiles run in waves (`waves`). Where XLA starts programs
for each tile of a head, it holds microseconds of a tile, which the whole GPU computes.

A tile or head size without an entry gets the costs of the nearest entry (`interpolation`).
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, NamedTuple

from stripectl.core.kernel import Kernel, kernels
from stripectl.core.layout import Tile, parse_tile
from stripectl.core.plan import Plan
from stripectl.core.workload import Workload
from stripectl.costs.cost_entries import CostEntry, CostKey, Heads, heads_of, shapes_of, source_of
from stripectl.costs.cost_model import CostModel, TileCost
from stripectl.costs.datasheet import with_links
from stripectl.costs.entry_seconds import cost_of, effective_clock_hz, step_wait_s
from stripectl.costs.interpolation import interpolated_entry, mean_of_heads, nearest_head, padded
from stripectl.costs.waves import Wave
from stripectl.hardware.placement import MeshPlacement
from stripectl.hardware.profile import Hardware
from stripectl.results.cost_source import CostOrigin, CostSource, TableSource, TileSeconds
from stripectl.util.files import data_folder, load_yaml, profile_names

FOLDER = "kernels"
PASSES = ("forward", "backward")
COSTS = ("whole_s", "boundary_s", "dead_s", "row_s", "call_s")
LEFT_OUT = "waits for memory inside of kernels"


@dataclass(frozen=True)
class PassCosts:
    """The costs of a shape by pass, their source, and its description."""

    by_pass: Mapping[str, CostEntry | Wave]
    source: CostOrigin
    table: TableSource


class TableCost(NamedTuple):
    """The entry of a pass; the other shape that it was derived from, or an empty text; for a tile without an entry, the
    distance of the nearest tile, and the number of tiles whose trend it follows."""

    entry: CostEntry | Wave
    near: str = ""
    distance: float | None = None
    sizes: int | None = None


@dataclass(frozen=True, eq=False)
class CostTable:
    """The costs of a machine: `entries[kernel, dtype][heads][tile][pass]`, and the transfers that its compiler
    schedules without tiles at the same time: `blocking` collectives, for any scheme, and a scheme's hops,
    `exposed[scheme][rows of a shard]`, both as in `CostModel`."""

    name: str
    source: str
    compiler: str | None
    entries: Mapping[tuple[str, str], Mapping[Heads, Mapping[Tile, Mapping[str, CostEntry | Wave]]]]
    compilers: Mapping[str, str] = field(default_factory=dict)  # of kernels that need another compiler
    measured: Collection[str] = ()  # kernels whose times stripectl measured
    blocking: tuple[str, ...] = ()
    exposed: Mapping[str, Mapping[int, Mapping[tuple[str, str, int], float]]] = field(default_factory=dict)

    @lru_cache(2**12)  # noqa: B019 (a table is there as long as the process)
    def costs(self, shape: CostKey) -> PassCosts | None:
        """The table's costs of a shape; None where it has no entry for the kernel and dtype."""
        found = {passes: cost for passes in PASSES if (cost := self.cost(shape, passes))}
        if not found:
            return None
        waves = any(isinstance(each.entry, Wave) for each in found.values())
        known = CostOrigin.PUBLISHED if waves else source_of(shape.kernel)
        source = CostOrigin.MEASURED_BEFORE if shape.kernel in self.measured else known
        table = TableSource(
            table=self.name,
            made_by=self.compilers.get(shape.kernel) or self.compiler or self.source,
            interpolated_from=", ".join(sorted({each.near for each in found.values() if each.near})) or None,
            distance=max((each.distance for each in found.values() if each.distance), default=None),
            sizes=min((each.sizes for each in found.values() if each.sizes), default=None),
        )
        return PassCosts({passes: each.entry for passes, each in found.items()}, source, table)

    def tiles(self, shape: CostKey, passes: str) -> list[Tile]:
        """The tiles with an entry for the kernel and dtype of a shape, with heads of any size."""
        known = self.entries.get((shape.costs_of, shape.dtype), {})
        return [tile for tiles in known.values() for tile in costs_of_pass(tiles, passes)]

    def cost(self, shape: CostKey, passes: str) -> TableCost | None:
        """The cost of a pass; None where the table has no entry for the kernel and dtype."""
        known = self.entries.get((shape.costs_of, shape.dtype), {})
        heads = {head: own for head, tiles in known.items() if (own := costs_of_pass(tiles, passes))}
        wanted = shape.heads
        if wanted not in heads and wanted.keys != wanted.values:
            own, other = (self.cost(shape.with_heads(size), passes) for size in wanted)
            return own and other and mean_cost(own, other, shape, passes)
        square = [head.keys for head in heads if head.keys == head.values]
        if wanted in heads:
            head = wanted
        elif square:
            head = Heads(nearest := nearest_head(wanted.keys, square), nearest)
        else:
            return None
        tiles, kernel = heads[head], kernels[shape.kernel]
        near = f"head_dim {head.keys}" if head != wanted else ""
        if isinstance(entry := next(iter(tiles.values())), Wave):
            return TableCost(entry._replace(tile_s=entry.tile_s * wanted.keys / head.keys), near)
        factor = padded(wanted.keys) / padded(head.keys)
        if shape.tile in tiles:
            return TableCost(tiles[shape.tile].times(factor), near)
        tiles = with_sizes_of_others(tiles, heads)
        closest, entry = entry_near(tiles, shape.tile, kernel)
        distance = kernel.full_name(shape.tile).distance(kernel.full_name(closest))
        near = ", ".join(filter(None, [f"tile {closest}", near]))
        return TableCost(entry.times(factor), near, distance, len(tiles))


def mean_cost(own: TableCost, other: TableCost, shape: CostKey, passes: str) -> TableCost:
    """The cost where key heads and value heads have different sizes, from the costs of both sizes."""
    own = own._replace(entry=mean_of_heads(own.entry, other.entry, passes))
    heads = f"heads of {shape.heads.keys} and of {shape.heads.values}"
    return own._replace(near=f"{own.near.partition(',')[0]}, {heads}" if own.distance else heads)


def entry_near(known: Mapping[Tile, CostEntry], tile: Tile, kernel: Kernel) -> tuple[Tile, CostEntry]:
    """(the nearest tile, the entry for a tile without one). It follows the trend along two sides; another number of
    keys at once changes each cost as it does where it is known."""
    usual = {each: entry for each, entry in known.items() if not each.block_kv_compute}

    def by_sides(sides: Tile) -> CostEntry:
        return usual.get(sides) or interpolated_entry(usual, min(usual, key=sides.distance), sides)

    own = by_sides(Tile(*tile.sides))
    wanted = kernel.full_name(tile)
    closest = min(known, key=lambda each: wanted.distance(kernel.full_name(each)))
    if not closest.block_kv_compute:
        return closest, own
    there = zip(known[closest], by_sides(Tile(*closest.sides)), strict=True)
    factors = (with_it / without if without else 1.0 for with_it, without in there)
    return closest, CostEntry(*(cost * factor for cost, factor in zip(own, factors, strict=True)))


def with_sizes_of_others(
    own: Mapping[Tile, CostEntry], heads: Mapping[Heads, Mapping[Tile, CostEntry]]
) -> Mapping[Tile, CostEntry]:
    """The tiles of heads of one size. Where there is only one, its cost follows the tiles of the heads with most."""
    others = max(heads.values(), key=len)
    if len(own) > 1 or not own.keys() <= others.keys():
        return own
    ((tile, entry),) = own.items()
    ratios = [mine / theirs if theirs else 1.0 for mine, theirs in zip(entry, others[tile], strict=True)]
    return {
        each: CostEntry(*(cost * ratio for cost, ratio in zip(other, ratios, strict=True)))
        for each, other in others.items()
    }


def costs_of_pass(tiles: Mapping[Tile, Mapping[str, Any]], passes: str) -> dict[Tile, Any]:
    return {tile: by_pass[passes] for tile, by_pass in tiles.items() if passes in by_pass}


@cache
def table_of(hardware: str) -> CostTable | None:
    """The table that ships for a machine, or None."""
    if hardware not in profile_names(FOLDER):
        return None
    path = data_folder("profiles") / FOLDER / f"{hardware}.yaml"
    content = load_yaml(path, "kernel table")
    entries: dict[tuple[str, str], dict[Heads, dict[Tile, dict[str, CostEntry | Wave]]]] = {}
    for kernel, dtypes in content["kernels"].items():
        for dtype, heads in dtypes.items():
            entries[kernel, dtype] = {
                Heads.read(sizes): {
                    parse_tile(text): {passes: read_entry(each) for passes, each in by_pass.items()}
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
    name, blocking = f"profiles/{FOLDER}/{hardware}.yaml", tuple(content.get("blocking") or ())
    others = content.get("compilers") or {}
    measured = tuple(content.get("measured") or ())
    return CostTable(name, content["source"], content.get("compiler"), entries, others, measured, blocking, exposed)


def read_transfer(text: str) -> tuple[str, str, int]:
    """(pass, opcode, bytes an element) of `backward collective-permute 2`."""
    passes, opcode, itemsize = text.split()
    return passes, opcode, int(itemsize)


def exposed_by(hardware: Hardware, plan: Plan, rows: int) -> Mapping[tuple[str, str, int], float]:
    """The hops that the compiler schedules without tiles at the same time in a rolled loop, for shards of about `rows`
    rows, from the table that ships."""
    table = table_of(hardware.tables_of)
    # A kernel that sends its hops itself sends them while it computes tiles.
    left = table and plan.unroll == 1 and not kernels[plan.kernel].makes_hops
    known = table.exposed.get(plan.scheme) if table and left else None
    return known[min(known, key=lambda each: abs(math.log(each / rows)))] if known else {}


def read_entry(content: Mapping[str, Any]) -> CostEntry | Wave:
    if "tile_s" in content:
        return Wave(float(content["tile_s"]), float(content["call_s"]), parse_tile(content["block"]))
    return CostEntry(**content)


def has_tile_costs(kernel: Kernel) -> bool:
    """Whether small programs show the costs of a kernel's tiles."""
    return kernel.family == "softmax" or bool(kernel.bundles)


def machine_table(hardware: Hardware, kernel: Kernel) -> CostTable | None:
    """The table that ships for a machine; None where no table ships, small programs do not show the costs of the
    kernel's tiles, or the profile lacks the figure that turns entries into seconds."""
    ready = hardware.figure("clock_hz") if hardware.kind == "tpu" else hardware.compiler.get("core_count")
    return table_of(hardware.tables_of) if ready and has_tile_costs(kernel) else None


def shipped_costs(hardware: Hardware, workload: Workload, plan: Plan) -> dict[str, PassCosts] | None:
    """The costs of a plan from the table that ships for its machine; None where the table has no entry."""
    table = machine_table(hardware, kernels[plan.kernel])
    found = {passes: table.costs(shape) if table else None for passes, shape in shapes_of(workload, plan).items()}
    known = {passes: each for passes, each in found.items() if each and passes in each.by_pass}
    return known if known and len(known) == len(found) else None


def costs_of_tile(
    hardware: Hardware, kernel: Kernel, shape: CostKey, passes: str, kv_heads: int, group: int
) -> TileCost | None:
    """The cost of a tile in a pass by the machine's table, on a device with `kv_heads` key/value heads that `group`
    query heads each share; None without an entry."""
    table = machine_table(hardware, kernel)
    known = table and table.costs(shape._replace(tile=kernel.shortest_name(shape.tile)))
    if not known or passes not in known.by_pass:
        return None
    return cost_of(known.by_pass[passes], kernel, passes, hardware, shape.dtype, kv_heads, group)


def table_cost_model(
    hardware: Hardware, workload: Workload, plan: Plan, known: Mapping[str, PassCosts], placement: MeshPlacement | None
) -> CostModel:
    """The machine with tile costs from tables, and hops from the datasheet.

    Raises:
        BadInput: the profile lacks the rate of its links.
    """
    kv_heads, group = heads_of(workload, plan)
    costs = {
        passes: cost_of(each.by_pass[passes], kernels[plan.kernel], passes, hardware, workload.dtype, kv_heads, group)
        for passes, each in known.items()
    }
    forward, backward = known["forward"], known.get("backward")
    clock_hz, sources = None, dict[str, str]()
    if published_hz := hardware.figure("clock_hz"):
        clock_hz = effective_clock_hz(hardware, workload.dtype)
        sources["clock_hz"] = hardware.sources["clock_hz"]
        reached = f"achievable_flops_per_s_{workload.dtype}"
        if clock_hz != published_hz:
            sources[reached] = hardware.sources[reached]
    if waits := any(step_wait_s(kernels[plan.kernel], passes, hardware) for passes in known):
        sources["block_wait_s"] = hardware.sources["block_wait_s"]
    exposed, table = exposed_by(hardware, plan, workload.seq_len // plan.shards), table_of(hardware.tables_of)
    source = CostSource(
        **vars(forward.table),
        source=forward.source,
        backward_costs=backward.table if backward and backward.table != forward.table else None,
        clock_hz=clock_hz,
        sources=sources,
        left_out=None if waits else LEFT_OUT,
        forward=tile_seconds(costs["forward"]),
        backward=tile_seconds(costs["backward"]) if "backward" in costs else None,
        exposed=exposed_shares(exposed) if exposed else None,
    )
    both = costs["forward"], costs.get("backward", TileCost(0.0, 0.0))
    blocking = table.blocking if table else ()
    return with_links(hardware, CostModel(*both, 0.0, 0.0, hardware.overlaps, source, exposed, blocking), placement)


def tile_seconds(cost: TileCost) -> TileSeconds:
    """The cost of tiles, as a cost source holds it."""
    return TileSeconds(**{name: getattr(cost, name) for name in COSTS})


def exposed_shares(exposed: Mapping[tuple[str, str, int], float]) -> dict[str, float]:
    """Shares of transfers during which no tiles run, as a cost source holds them."""
    return {" ".join(map(str, key)): share for key, share in sorted(exposed.items())}
