"""Which device works in which round: tiles of every device and round, a heat map a scheme and layout.

Figures 2 and 3 of Brandon et al. 2023, from the tiles that were counted.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from stripectl.core.workload import format_length
from stripectl.reporters.html.charts import INK, WIDTH, chart, chart_table, section, svg
from stripectl.results.measurement import Measurement

TITLE = "Which device works in which round?"
INTRO = (
    "In a ring a round ends when its slowest device ends, so a cell without work is a device that waits. The critical "
    "path is the most tiles that any device has in a round, summed over rounds. Tiles are counted in the forward pass; "
    "a backward pass goes round the same way. Charts of one group share a colour scale. Where a layout was timed with "
    "several tiles, the fastest stands here."
)
ABSENT = "No plan of several devices has its tiles counted in this run."
MAX_GROUPS_AND_CHARTS = 2, 6  # groups, and charts of each
MAX_CELLS = 16  # devices or rounds drawn; of more, every k-th
MIN_NUMBERED_PIXELS = 19  # pixels of a cell that holds a number


def of_run(shown: Sequence[Measurement]) -> dict[str, Any]:
    """A chart a scheme and layout; those of one workload and mesh share a scale. Both passes go round the same ring, so
    a chart is drawn once for both; of several tiles, that of the fastest plan."""
    groups: dict[tuple[str, str], dict[tuple[str, str], Measurement]] = {}
    for m in shown:
        if m.status != "ok" or not m.tiles or not m.tiles.get("per_round") or m.devices == 1:
            continue
        plan, work = m.plan, m.workload
        mesh = ", ".join(f"{axis}={size}" for axis, size in plan.axes.items())
        group = groups.setdefault((f"{format_length(work.seq_len)} tokens, {work.mask} mask", mesh), {})
        known = group.setdefault((plan.scheme, plan.layout), m)
        if known.workload == work and (m.median_s or 0.0) < (known.median_s or 0.0):
            group[plan.scheme, plan.layout] = m
    made = []
    for (title, mesh), group in groups.items():
        counts = [(m, m.tiles["per_round"]) for m in group.values() if m.tiles]
        most = max(max(map(max, per_round)) for _, per_round in counts)
        made.append({"title": f"{title}, {mesh}", "charts": [_chart(m, each, most) for m, each in counts]})
    return section("work", "Work", TITLE, INTRO, made, ABSENT, MAX_GROUPS_AND_CHARTS)


def _chart(m: Measurement, per_round: Sequence[Sequence[int]], most: int) -> dict[str, Any]:
    plan = m.plan
    devices, rounds = len(per_round), len(per_round[0])
    down, across = (-(-count // MAX_CELLS) for count in (devices, rounds))
    critical = sum(max(column) for column in zip(*per_round, strict=True))
    total = sum(map(sum, per_round))
    busy = total / (devices * critical) if critical else None
    shown, rows = (
        list(range(0, rounds, across)),
        [(at, list(per_round[at][::across])) for at in range(0, devices, down)],
    )
    note = (
        f"{total:,} tiles, {critical:,} on the critical path; devices work "
        f"{'n/a' if busy is None else f'{busy:.0%}'} of the time."
    )
    thinned = [f"{what} 1 of {step}" for what, step in (("devices", down), ("rounds", across)) if step > 1]
    note += f" Drawn: of {', of '.join(thinned)}." * bool(thinned)
    return chart(
        "work",
        TITLE,
        f"{plan.scheme}/{plan.layout}, tiles of {plan.tile}",
        ["counted"],
        f"Tiles by device ({devices}) and round ({rounds}), forward.",
        chart_table(
            ("device", *(f"round {at}" for at in shown)),
            [(str(device), *(f"{count:,}" for count in counts)) for device, counts in rows],
            ("device",),
        ),
        note,
        seq_len=m.workload.seq_len,
        rounds=shown,
        rows=rows,
        most=most,
        total=total,
        critical=critical,
        busy=busy,
    )


def draw(chart: Mapping[str, Any]) -> str:
    """SVG: devices down, rounds across, a cell's colour and number the tiles it computes; no work is no colour."""
    most = chart["most"]
    cells = [
        {"device": device, "round": at, "tiles": count, "text": _short(count), "ink": _ink(count, most)}
        for device, counts in chart["rows"]
        for at, count in zip(chart["rounds"], counts, strict=True)
    ]
    rounds = len(chart["rounds"])
    cell = max(12, min(31, (WIDTH - 42) // max(rounds, 1)))
    numbered = cell >= MIN_NUMBERED_PIXELS
    keys = sorted({-(-most * quarter // 4) for quarter in (1, 2, 3, 4)} - {0})
    legend = alt.Legend(type="symbol", symbolType="square", orient="bottom", values=keys, symbolStrokeWidth=0)
    colour = alt.Color("tiles:Q", title="tiles", scale=alt.Scale(scheme="cividis", domain=[0, most]), legend=legend)
    gaps = alt.Scale(paddingInner=0.06)
    base = alt.Chart(alt.Data(values=cells)).encode(
        x=alt.X("round:O", title="round (forward)", axis=alt.Axis(labelAngle=0, labelOverlap=True), scale=gaps),
        y=alt.Y("device:O", title="device", axis=alt.Axis(labelOverlap=True), scale=gaps),
    )
    working, idle = "datum.tiles > 0", "datum.tiles == 0"
    squares = base.transform_filter(working).mark_rect(strokeWidth=0).encode(color=colour)
    outlines = base.transform_filter(idle).mark_rect(fill="transparent", stroke=INK, strokeOpacity=0.35)
    numbers = base.mark_text(fontSize=10 if cell > 24 else 8).encode(
        text="text:N", color=alt.Color("ink:N", scale=None)
    )
    size = {"width": max(cell * rounds, WIDTH - 42), "height": alt.Step(cell)}
    layers = alt.layer(squares, outlines, *([numbers] if numbered else [])).resolve_scale(color="independent")
    return svg(layers.properties(**size))


def _ink(count: int, most: int) -> str:
    """What is legible on the cell: cividis goes from dark to light."""
    return INK if count == 0 else "black" if count > 0.45 * most else "white"


def _short(count: int) -> str:
    return str(count) if count < 10_000 else f"{count / 1000:.3g}k"
