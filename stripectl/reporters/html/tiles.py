"""The fastest tile: a heat map of tiles for every plan that was timed with several tiles."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

from stripectl.analysis.ranking import strength
from stripectl.core.layout import Tile
from stripectl.errors import BadInput
from stripectl.reporters.html.charts import Chart, Section, chart_table, grouped_by, section
from stripectl.reporters.html.heatmap import Axis, Heatmap, HeatmapCell, fullness
from stripectl.reporters.html.vega_lite import tip
from stripectl.results.case import flags_text
from stripectl.results.labels import workload_label
from stripectl.results.measurement import Measurement
from stripectl.util.units import NOTHING, duration, with_interval

TITLE = "Which tile is fastest?"
INTRO = (
    "The fuller a cell, the faster its tile. It shows the time divided by the best time of the same method; the best "
    "has an outline. ~ marks a short run, after which the search dropped the tile; ✕ marks a tile that was refused "
    "or failed."
)
ABSENT = "Every plan was timed with one tile. To compare tiles: stripectl tune-tiles."
COLUMNS = ("tile", "method", "time", "over the best", "why not")
MAX_GROUPS_AND_CHARTS = 3, 8  # groups, and charts of each
SATURATED_RATIO = 2.0  # larger ratios have the same colour
MIN_TILES = 2  # tiles of a heat map


def of_run(shown: Sequence[Measurement]) -> Section:
    """One chart for each workload and plan without its tile; for a backward pass with separate tiles, one chart for
    each tile of the forward pass."""
    groups: dict[tuple[Hashable, ...], list[tuple[Tile, Measurement]]] = {}
    for m in shown:
        for what, tile in _places(m):
            groups.setdefault((m.workload, m.target, flags_text(m.flags), what), []).append((tile, m))
    timed = {key: {tile for tile, m in members if m.median_s} for key, members in groups.items()}
    charts = [_chart(f"{key[-1]}{key[-2]}", members) for key, members in groups.items() if len(timed[key]) >= MIN_TILES]
    return section("tiles", "Tiles", TITLE, INTRO, grouped_by(charts), ABSENT, MAX_GROUPS_AND_CHARTS)


def _places(m: Measurement) -> Iterator[tuple[str, Tile]]:
    """(the measurement without its tile, the tile): one tile for all passes, or the backward pass's own."""
    try:
        plan = m.plan
    except (BadInput, ValueError):
        return
    if plan.tile and plan.backward in (None, plan.tile):
        yield str(replace(plan, tile=None, backward=None)), plan.tile
    if plan.tile and m.workload.passes != "forward":
        yield f"{replace(plan, backward=None)}, tiles of the backward pass", plan.backward or plan.tile


def _chart(what: str, members: Sequence[tuple[Tile, Measurement]]) -> Chart:
    known: dict[Tile, Measurement] = {}
    for tile, m in members:
        known[tile] = min(known.get(tile, m), m, key=_standing)
    best = min(known.values(), key=lambda m: (_standing(m), m.median_s or 0.0))
    bests = {m.method: m.median_s or 0.0 for m in sorted(known.values(), key=_first) if m.median_s}
    rising = sorted(known, key=lambda tile: (tile.sides, _at_once(tile)))
    ratios = {tile: _ratio(m, bests.get(m.method)) for tile, m in known.items()}
    cells = [_cell(tile, known[tile], ratios[tile], known[tile] is best) for tile in rising]
    rows = [_row(tile, known[tile], cell) for tile, cell in zip(rising, cells, strict=True)]
    ordered = sorted(known, key=lambda tile: (tile.block_kv, _at_once(tile)))
    columns = list(dict.fromkeys(map(_column, ordered)))
    sides = [str(side) for side in sorted({tile.block_q for tile in known})]
    fastest = next(row for row, cell in zip(rows, cells, strict=True) if cell.wins)
    return Chart(
        TITLE,
        f"{what}, {best.workload.passes} on {best.target}",
        [known[tile].method for tile, cell in zip(rising, cells, strict=True) if cell.fullness],
        f"Times of {len(cells)} tiles. The fastest: {fastest[0]}, {fastest[2]}, {fastest[1]}.",
        chart_table(COLUMNS, rows, ("tile", "method", "why not")),
        Heatmap(cells, Axis(_keys_title(known), columns, "bottom"), Axis("queries of a tile", sides, "left")),
        group=workload_label(best.workload),
        seq_len=best.workload.seq_len,
    )


def _keys_title(tiles: Iterable[Tile]) -> str:
    at_once = any(tile.block_kv_compute for tile in tiles)
    return "keys of a tile x keys at once" if at_once else "keys of a tile"


def _at_once(tile: Tile) -> int:
    """The third side, for an order in which tiles without it come first."""
    return tile.block_kv_compute or 0


def _column(tile: Tile) -> str:
    return str(tile).partition("x")[2]


def _standing(m: Measurement) -> tuple[bool, bool, int]:
    """The rank of a measurement in its cell, among measurements of one tile: a reliable time, by the strongest
    method."""
    return m.status != "ok" or not m.median_s, m.is_search_probe, strength(m.method)


def _first(m: Measurement) -> tuple[bool, float]:
    """A sort key that puts the best of a method last."""
    return not m.is_search_probe, -(m.median_s or 0.0)


def _ratio(m: Measurement, best_s: float | None) -> float | None:
    return m.median_s / best_s if m.status == "ok" and m.median_s and best_s else None


def _cell(tile: Tile, m: Measurement, ratio: float | None, wins: bool) -> HeatmapCell:
    said = f"{with_interval(m.median_s, m.ci95_s)}, {m.method}" if ratio else m.status
    return HeatmapCell(
        across=_column(tile),
        down=str(tile.block_q),
        first="~" * m.is_search_probe + f"{ratio:.2f}x" if ratio else "✕",
        second=duration(m.median_s) if ratio else m.status,
        wins=wins,
        fullness=fullness(ratio, wins, SATURATED_RATIO),
        tip=tip(f"{tile}: {said}"),
    )


def _row(tile: Tile, m: Measurement, cell: HeatmapCell) -> tuple[str, ...]:
    if cell.first == "✕":
        return str(tile), m.method, NOTHING, NOTHING, str(m.reason or "no reason was given")
    return str(tile), m.method, with_interval(m.median_s, m.ci95_s), cell.first, ""
