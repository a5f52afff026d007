"""The meshes of a workload side by side, and the best meshes on the chips or nodes of the target, each link as thick as
its load."""

from collections.abc import Iterator, Sequence
from typing import Any

from stripectl.analysis.link_load import CarriedBytes, carried_bytes, traffic
from stripectl.analysis.ranking import Ranking, contenders, rankings, strength
from stripectl.core.lengths import format_length
from stripectl.core.workload import PASSES
from stripectl.errors import BadInput
from stripectl.hardware.placement import MeshPlacement, is_torus, place_mesh
from stripectl.hardware.target import Target, target_of
from stripectl.reporters.html.charts import Chart, ChartGroup, Section, chart_table, section
from stripectl.reporters.html.links import drawn_links
from stripectl.reporters.html.times import time_bars
from stripectl.results.labels import workload_label
from stripectl.results.measurement import Measurement
from stripectl.util.units import nbytes

TITLE, LINKS_TITLE = "Which mesh is fastest?", "What do the links carry?"
INTRO = (
    "The best plan of each mesh, and the placement of the fastest meshes on the target. A dot is a chip or device "
    "with its place in the mesh; a line is as thick as the bytes that one run sends over that link, both directions "
    "together; a grey bar is a switch or a network."
)
ABSENT = "No plan with several devices has a time on a target with known links. Try stripectl list targets."
MAX_MESHES, MAX_DRAWN_MESHES, MAX_WORKLOADS = 12, 3, 2
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
    drawn = drawn_links(target, placement, carried, sent)
    said = f"{nbytes(busiest)} over its busiest link" if busiest else f"{nbytes(sent)} from each device"
    axes = ", ".join(
        f"{nbytes(sum(count for (own, _), count in along.items() if own == axis))} along {axis}" for axis in plan.axes
    )
    return Chart(
        LINKS_TITLE,
        f"{mesh}: {str(m.plan).partition('@')[0]}, {format_length(m.workload.seq_len)} tokens, {m.workload.passes}",
        ["compiled" if m.compiled_program and m.compiled_program.collectives else "counted"],
        f"{mesh} on {target}: {said}. A device sends {axes}.",
        chart_table(COLUMNS, rows, ("links",)),
        drawn,
        " ".join(
            [f"A device sends {axes}."]
            + [f"{nbytes(carried.network)} cross the network between slices."] * bool(carried.network)
            + [f"{target} is too large to be drawn."] * (not drawn.dots)
        ),
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
