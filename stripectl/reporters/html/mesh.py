"""The meshes of a workload side by side, and the best meshes on the chips or nodes of the target, each link as thick as
its load."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stripectl.analysis.link_load import CarriedBytes, carried_bytes, traffic
from stripectl.analysis.ranking import Ranking, contenders, rankings, strength
from stripectl.core.lengths import format_length
from stripectl.core.workload import PASSES
from stripectl.errors import BadInput
from stripectl.hardware.placement import MeshPlacement, TorusLink, is_torus, place_mesh
from stripectl.hardware.target import Target, target_of
from stripectl.reporters.html.charts import (
    COLOURS,
    INK,
    Chart,
    ChartGroup,
    ChartLayer,
    ChartRow,
    Section,
    above,
    channel,
    chart,
    chart_table,
    layered,
    plot,
    section,
    svg,
)
from stripectl.reporters.html.times import time_bars
from stripectl.results.labels import workload_label
from stripectl.results.measurement import Measurement
from stripectl.util.units import BYTES, digits, nbytes, unit_of

TITLE, LINKS_TITLE = "Which mesh is fastest?", "What do the links carry?"
INTRO = (
    "The best plan of each mesh, and the placement of the fastest meshes on the target. A dot is a chip or device "
    "with its place in the mesh; a line is as thick as the bytes that one run sends over that link, both directions "
    "together; a grey bar is a switch or a network."
)
ABSENT = "No plan with several devices has a time on a target with known links. Try stripectl list targets."
MAX_MESHES, MAX_DRAWN_MESHES, MAX_WORKLOADS = 12, 3, 2
MAX_CHIPS = 64  # that are drawn
BROADEST, THINNEST = 9.0, 1.0  # pixels of a line
OBLIQUE = 0.42, 0.25  # the offset of a layer of chips, to the side and down, as fractions of the distance of chips
COLUMNS = ("links", "how many", "each carries", "together")


def of_run(shown: Sequence[Measurement]) -> Section:
    """The workloads with the most meshes, longest first."""
    found = [each for each in rankings(shown) if each.best.devices > 1]
    found.sort(key=lambda each: (-PASSES.index(each.workload.passes), -each.workload.seq_len))
    groups: list[ChartGroup] = [
        {
            "title": f"{workload_label(ranking.workload)} on {ranking.best.target}",
            "charts": charts,
            "notes": _notes(ranking),
        }
        for ranking in found[:MAX_WORKLOADS]
        if (charts := list(_charts(ranking)))
    ]
    made = section("mesh", "Mesh", TITLE, INTRO, groups, ABSENT)
    made["left_out"] = len(found[MAX_WORKLOADS:])
    return made


def _notes(ranking: Ranking) -> list[str]:
    left_out = len({m.plan.mesh for m in contenders(ranking.members) if m.devices > 1}) - MAX_DRAWN_MESHES
    return (
        [f"The links of the best {MAX_DRAWN_MESHES} meshes are drawn; {left_out} more are not."] if left_out > 0 else []
    )


def _charts(ranking: Ranking) -> Iterator[Chart]:
    best: dict[Any, Measurement] = {}
    several = [m for m in contenders(ranking.members) if m.devices > 1]
    for m in sorted(several, key=lambda m: (strength(m.method), m.median_s or 0.0)):
        best.setdefault(m.plan.mesh, m)
    if len(best) > 1:
        yield time_bars(TITLE, list(best.values()), MAX_MESHES)
    for m in list(best.values())[:MAX_DRAWN_MESHES]:
        if (target := _target(m)) and (plan := m.plan).devices > 1:
            try:
                yield _links(m, place_mesh(target, plan.mesh or ()))
            except (BadInput, ValueError):  # the mesh does not fit the target, or the plan has no tile
                continue


def _target(m: Measurement) -> Target | None:
    """The target, where its links are known."""
    try:
        return m.target.load()
    except BadInput:
        return target_of(m.target.machine, m.devices) if m.target.machine else None


def _links(m: Measurement, placement: MeshPlacement) -> Chart:
    plan, target, along = m.plan, placement.target, traffic(m)
    carried = carried_bytes(placement, along)
    sent = sum(along.values())
    mesh = ", ".join(f"{axis}={size}" for axis, size in plan.axes.items())
    rows = list(_rows(target, carried, sent, m.devices))
    busiest = max([*carried.links.values(), 0.0])
    drawn = math.prod(target.shape) * target.slices <= MAX_CHIPS
    said = f"{nbytes(busiest)} over its busiest link" if busiest else f"{nbytes(sent)} from each device"
    axes = ", ".join(
        f"{nbytes(sum(count for (own, _), count in along.items() if own == axis))} along {axis}" for axis in plan.axes
    )
    return chart(
        "links",
        LINKS_TITLE,
        f"{mesh}: {str(m.plan).partition('@')[0]}, {format_length(m.workload.seq_len)} tokens, {m.workload.passes}",
        ["compiled" if m.compiled_program and m.compiled_program.collectives else "counted"],
        f"{mesh} on {target}: {said}. A device sends {axes}.",
        chart_table(COLUMNS, rows, ("links",)),
        " ".join(
            [f"A device sends {axes}."]
            + [f"{nbytes(carried.network)} cross the network between slices."] * bool(carried.network)
            + [f"{target} is too large to be drawn."] * (not drawn)
        ),
        **(_torus(target, placement, carried) if is_torus(target) else _switch(target, placement, carried, along))
        if drawn
        else {"dots": [], "lines": [], "boxes": [], "keys": []},
    )


def _rows(target: Target, carried: CarriedBytes, sent: float, devices: int) -> Iterator[list[str]]:
    """Links with equal loads together, by axis of the torus."""
    alike: dict[tuple[int, float], int] = {}
    for link, load in carried.links.items():
        alike[link.dimension, round(load)] = alike.get((link.dimension, round(load)), 0) + 1
    for (dimension, load), count in sorted(alike.items(), key=lambda each: (each[0][0], -each[0][1])):
        yield [
            f"along axis {dimension} of {target.shape[dimension]} chips",
            f"{count}",
            nbytes(load),
            nbytes(load * count),
        ]
    if not is_torus(target):
        yield ["from a device to the others", f"{devices}", nbytes(sent), nbytes(sent * devices)]
    if carried.network:
        yield ["the network, together", "1", nbytes(carried.network), nbytes(carried.network)]


def _torus(target: Target, placement: MeshPlacement, carried: CarriedBytes) -> ChartRow:
    """Chips in their places, with the third axis drawn backwards; a wrap-around link is a stub at both ends."""
    unit, size = unit_of(max([*carried.links.values(), 1.0]), BYTES)
    most = max([*carried.links.values(), 1.0])
    across = target.shape[0] + (OBLIQUE[0] * target.shape[2] if len(target.shape) > 2 else 0.0)

    def place(slice: int, chip: Sequence[float]) -> tuple[float, float]:
        deep = chip[2] if len(chip) > 2 else 0.0
        x = slice * (across + 0.6) + chip[0] + OBLIQUE[0] * deep
        return x, (chip[1] if len(chip) > 1 else 0.0) + OBLIQUE[1] * deep

    dots: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    position = {device: at for at, device in enumerate(placement.order)}
    for device, p in enumerate(target.positions):
        if device in position:
            dots.setdefault((p.slice, p.coords), []).append(str(position[device]))
    lines = list[ChartRow]()
    for slice in range(target.slices):
        for link in _every_link(target, slice):
            load = carried.links.get(link, 0.0)
            end = list(link.chip)
            end[link.dimension] += 1
            around = end[link.dimension] == target.shape[link.dimension]
            if around and target.shape[link.dimension] <= 2:
                continue
            ends = _stubs(link, target) if around else [(link.chip, end)]
            for a, b in ends:
                (x, y), (x2, y2) = place(slice, a), place(slice, b)
                lines.append({"x": x, "y": y, "x2": x2, "y2": y2, **_look(load, most, size)})
    places = [{"x": x, "y": y, "name": ",".join(names)} for (s, c), names in dots.items() for x, y in [place(s, c)]]
    return _drawn(places, lines, unit)


def _every_link(target: Target, slice: int) -> Iterator[TorusLink]:
    for place in {p.coords for p in target.positions if p.slice == slice}:
        for dimension, length in enumerate(target.shape):
            if place[dimension] + 1 < length or target.wrap[dimension]:
                yield TorusLink(slice, place, dimension)


def _stubs(link: TorusLink, target: Target) -> list[tuple[Sequence[float], Sequence[float]]]:
    """Half a step out of the last chip, and half a step out of the first."""
    first, out, back = ([*map(float, link.chip)] for _ in range(3))
    out[link.dimension] += 0.4
    first[link.dimension] = 0.0
    back[link.dimension] = -0.4
    return [(link.chip, out), (back, first)]


def _switch(
    target: Target, placement: MeshPlacement, carried: CarriedBytes, along: Mapping[tuple[str, str], float]
) -> ChartRow:
    """The devices of each node in a row below their switch, and nodes below each other, next to the network."""
    sent = sum(along.values())
    node = target.slice_devices
    inside = max(0.0, sent - carried.network / max(len(placement.order), 1))
    per_node = carried.network / max(target.slices, 1)
    most = max(sent, per_node, 1.0)
    unit, size = unit_of(most, BYTES)
    position = {device: at for at, device in enumerate(placement.order)}
    dots, lines, boxes = list[ChartRow](), list[ChartRow](), list[ChartRow]()
    for slice in range(target.slices):
        y = 1.9 * slice
        for at in range(node):
            device = slice * node + at
            dots.append({"x": float(at), "y": y, "name": str(position.get(device, ""))})
            load = inside if device in position else 0.0
            lines.append({"x": float(at), "y": y, "x2": float(at), "y2": y + 0.8, **_look(load, most, size)})
        boxes.append({"x": -0.3, "y": y + 0.8, "x2": node - 0.7, "y2": y + 0.8})
        if target.slices > 1:
            out = {"x": node - 0.7, "y": y + 0.8, "x2": node + 0.2, "y2": y + 0.8}
            lines.append({**out, **_look(per_node, most, size)})
    if target.slices > 1:
        boxes.append({"x": node + 0.2, "y": 0.6, "x2": node + 0.2, "y2": 1.9 * (target.slices - 1) + 1.0})
    return _drawn(dots, lines, unit) | {"boxes": boxes}


def _look(load: float, most: float, size: float) -> ChartRow:
    broad = THINNEST + (BROADEST - THINNEST) * load / most if load else THINNEST
    return {"load": load / size, "broad": broad, "used": bool(load)}


def _drawn(dots: list[ChartRow], lines: list[ChartRow], unit: str) -> ChartRow:
    """The drawing with a key for the thickest and the thinnest lines."""
    used = sorted({round(line["load"], 3): line for line in lines if line["used"]}.items())
    keys = [used[0], used[-1]] if len(used) > 1 else used
    return {
        "dots": dots,
        "lines": lines,
        "boxes": [],
        "keys": [{"broad": line["broad"], "words": f"{digits(load)} {unit}"} for load, line in keys],
    }


def draw(chart: Chart, width: int) -> str:
    """SVG. `dots` are {x, y, name} in steps from chip to chip, `lines` {x, y, x2, y2, broad, used} between them,
    `boxes` {x, y, x2, y2} are switches and networks, and `keys` {broad, words} explain the thickness of lines."""
    ends = [
        (line[x], line[y]) for kind in ("lines", "boxes") for line in chart[kind] for x, y in (("x", "y"), ("x2", "y2"))
    ]
    ends += [(dot["x"], dot["y"]) for dot in chart["dots"]]
    if not ends:
        return ""
    (left, right), (low, high) = ((min(each) - 0.4, max(each) + 0.4) for each in zip(*ends, strict=True))
    step = min(84.0, (width - 20) / (right - left))
    x = channel("x:Q", axis=None, scale={"domain": [left, right], "nice": False})
    y = channel("y:Q", axis=None, scale={"domain": [high, low], "nice": False})

    def of(rows: Sequence[ChartRow]) -> ChartLayer:
        return plot(rows).encode(x=x, y=y)

    boxes = (
        of(chart["boxes"])
        .mark("rule", color=INK, strokeWidth=7, opacity=0.3)
        .encode(x2={"field": "x2"}, y2={"field": "y2"})
    )
    rules = of(chart["lines"]).encode(x2={"field": "x2"}, y2={"field": "y2"})
    idle = rules.where("!datum.used").mark("rule", color=INK, opacity=0.35, strokeDash=[2, 3])
    busy = rules.where("datum.used").mark("rule", color=COLOURS[0], strokeCap="round")
    busy = busy.encode(strokeWidth=channel("broad:Q", scale=None))
    dots = of(chart["dots"]).mark(
        "point", filled=True, shape="circle", size=min(330.0, step * 6), color="var(--page)", stroke=INK, opacity=1
    )
    names = of(chart["dots"]).mark("text", fontSize=10 if step > 34 else 8, color=INK).encode(text=channel("name:N"))
    picture = layered((boxes, idle, busy, dots, names), step * (right - left), step * (high - low))
    keys = [{**each, "at": at} for at, each in enumerate(chart["keys"])]
    key = plot(keys).encode(y=channel("at:O", axis=None))
    line = key.mark("rule", color=COLOURS[0], strokeCap="round").encode(
        x={"value": 8}, x2={"value": 40}, strokeWidth=channel("broad:Q", scale=None)
    )
    words = key.mark("text", align="left", color=INK, fontSize=11).encode(x={"value": 50}, text=channel("words:N"))
    legend = layered((line, words), 200, {"step": 18})
    return svg(above(picture, legend, spacing=6) if keys else picture)
