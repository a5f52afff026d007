"""The charts of a report: the plain data each one shows, and its drawing as static SVG.

What a chart shows is a dict, so that the page can print it as a table and a test can assert on it; the drawing is
Vega-Lite's. Text and lines take the page's own colour, so a chart is legible in light and dark.
"""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from stripectl.console import MARKS, describe, plan_cell, spread
from stripectl.measurement import Measurement
from stripectl.plan import parse_plan
from stripectl.schema import METHODS
from stripectl.units import NOTHING, SECONDS, duration, unit_of
from stripectl.workload import format_length

COLOURS = ("#0072B2", "#D55E00", "#009E73")  # Okabe and Ito 2008: those with contrast 3:1 on white and on black
SHAPES = ("circle", "square", "diamond")
INK = "currentColor"
WIDTH = 290  # of a drawing in CSS pixels: fits a screen of 360
MOST_CELLS = 32  # devices or rounds drawn; of more, every k-th
LEAST_NUMBERED = 19  # pixels of a cell that holds a number
LONG = re.compile(r"(?<=\.\d\d)\d+(?!\d*e)")  # digits of a pixel that nobody sees
MOST_WORKS, MOST_TIMES = 8, 20


def utf8(text: str) -> str:
    """The text with `?` for what UTF-8 cannot hold: JSON may hold half a character, and no file or drawing does."""
    return text.encode("utf-8", "replace").decode()


def works(measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Tiles of every device and round, a chart a scheme and layout; those of one workload and mesh share a scale.

    Both passes go round the same ring, so a chart is drawn once for both; of several tiles, that of the fastest plan.
    """
    groups: dict[tuple[str, str], dict[tuple[str, str], Measurement]] = {}
    for m in measurements:
        if m.status != "ok" or not m.tiles or not m.tiles.get("per_round") or m.devices == 1:
            continue
        plan, work = parse_plan(m.plan), m.workload
        mesh = ", ".join(f"{axis}={size}" for axis, size in plan.axes.items())
        group = groups.setdefault((f"{format_length(work.seq_len)} tokens, {work.mask} mask", mesh), {})
        known = group.setdefault((plan.scheme, plan.layout), m)
        if known.workload == work and (m.median_s or 0.0) < (known.median_s or 0.0):
            group[plan.scheme, plan.layout] = m
    made = []
    for (title, mesh), group in groups.items():
        charts = [_work(m, m.tiles["per_round"]) for m in group.values() if m.tiles]
        most = max(chart["most"] for chart in charts)
        made.append({"title": f"{title}, {mesh}", "charts": charts, "most": most})
    return made


def _work(m: Measurement, per_round: Sequence[Sequence[int]]) -> dict[str, Any]:
    plan = parse_plan(m.plan)
    devices, rounds = len(per_round), len(per_round[0])
    step = -(-max(devices, rounds) // MOST_CELLS)
    critical = sum(max(column) for column in zip(*per_round, strict=True))
    total = sum(map(sum, per_round))
    return {
        "name": f"{plan.scheme}/{plan.layout}, tiles of {plan.tile}",
        "rounds": list(range(0, rounds, step)),
        "rows": [(device, list(per_round[device][::step])) for device in range(0, devices, step)],
        "step": step,
        "most": max(map(max, per_round)),
        "total": total,
        "critical": critical,
        "busy": total / (devices * critical) if critical else None,
        "label": f"Tiles that each of {devices} devices computes in each of {rounds} rounds, forward.",
    }


def times(measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """The time of every plan, a chart a workload; of many plans the fastest."""
    groups: dict[Any, list[Measurement]] = {}
    for m in measurements:
        if m.status == "ok" and m.median_s:
            groups.setdefault(m.workload, []).append(m)
    return [_times(members) for members in groups.values()]


def _times(members: Sequence[Measurement]) -> dict[str, Any]:
    fastest = sorted(members, key=lambda m: m.median_s or 0.0)[:MOST_TIMES]
    order = list(dict.fromkeys(m.plan for m in members))
    shown = sorted(fastest, key=lambda m: (order.index(m.plan), m.method))
    longest = max(m.median_s or 0.0 for m in shown)
    unit, size = unit_of(longest, SECONDS)
    rows = [
        {
            "order": index,
            "plan": plan_cell(m),
            "method": utf8(m.method),
            "label": utf8(f"{MARKS.get(m.method, '?')} {m.method}, {m.target}: {spread(m)}"),
            "target": utf8(m.target),
            "time": (m.median_s or 0.0) / size,
            "text": duration(m.median_s),
            "low": m.ci95_s[0] / size if m.ci95_s else None,
            "high": m.ci95_s[1] / size if m.ci95_s else None,
            "interval": f"{duration(m.ci95_s[0])} to {duration(m.ci95_s[1])}" if m.ci95_s else NOTHING,
        }
        for index, m in enumerate(shown)
    ]
    best = fastest[0]
    return {
        "title": describe(best.workload),
        "pass": best.workload.passes,
        "unit": unit,
        "rows": rows,
        "left_out": len(members) - len(rows),
        "label": f"Times of {len(rows)} plans. The shortest: {best.plan}, {best.method}, {duration(best.median_s)}.",
    }


def heat_map(chart: Mapping[str, Any], most: int) -> str:
    """SVG: devices down, rounds across, a cell's colour and number the tiles it computes; no work is no colour."""
    cells = [
        {"device": device, "round": at, "tiles": count, "text": _short(count), "ink": _ink(count, most)}
        for device, counts in chart["rows"]
        for at, count in zip(chart["rounds"], counts, strict=True)
    ]
    rounds = len(chart["rounds"])
    cell = max(12, min(31, (WIDTH - 42) // max(rounds, 1)))
    numbered = cell >= LEAST_NUMBERED
    keys = sorted({-(-most * quarter // 4) for quarter in (1, 2, 3, 4)} - {0})
    legend = alt.Legend(type="symbol", symbolType="square", orient="bottom", values=keys, symbolStrokeWidth=0)
    colour = alt.Color("tiles:Q", title="tiles", scale=alt.Scale(scheme="cividis", domain=[0, most]), legend=legend)
    base = alt.Chart(alt.Data(values=cells)).encode(
        x=alt.X("round:O", title="round (forward)", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        y=alt.Y("device:O", title="device", axis=alt.Axis(labelOverlap=True)),
    )
    squares = base.mark_rect(stroke=INK, strokeOpacity=0.35, strokeWidth=0.5).encode(
        color=alt.condition("datum.tiles > 0", colour, alt.value("transparent"))
    )
    numbers = base.mark_text(fontSize=10 if cell > 24 else 8).encode(
        text="text:N", color=alt.Color("ink:N", scale=None)
    )
    size = {"width": max(cell * rounds, WIDTH - 42), "height": alt.Step(cell)}
    layers = alt.layer(squares, *([numbers] if numbered else [])).resolve_scale(color="independent")
    return svg(layers.properties(**size))


def _ink(count: int, most: int) -> str:
    """What is legible on the cell: cividis goes from dark to light."""
    return INK if count == 0 else "black" if count > 0.45 * most else "white"


def _short(count: int) -> str:
    return str(count) if count < 10_000 else f"{count / 1000:.3g}k"


def time_chart(chart: Mapping[str, Any]) -> str:
    """SVG: a bar a plan, from zero, its name above it, the interval a line; the method by colour, shape and word.

    What did not run on devices has an empty, dashed bar.
    """
    base = alt.Chart(alt.Data(values=chart["rows"])).encode(
        y=alt.Y("order:O", axis=None, scale=alt.Scale(paddingInner=0, paddingOuter=0))
    )
    axis = alt.Axis(tickCount=5, labelFlush=False)
    time = alt.X("time:Q", title=f"time ({chart['unit']})", scale=alt.Scale(zero=True), axis=axis)
    ran = "datum.method == 'measured'"
    fill = alt.condition(ran, alt.value(0.45), alt.value(0.0))
    bars = base.mark_bar(height=9, yOffset=17, strokeWidth=1.2).encode(
        x=time,
        color=_by_method(alt.Color, COLOURS),
        stroke=_by_method(alt.Stroke, COLOURS),
        fillOpacity=fill,
        strokeDash=alt.condition(ran, alt.value([1, 0]), alt.value([4, 3])),
    )
    ends = base.mark_point(yOffset=17, size=45, strokeWidth=1.5).encode(
        x=time,
        color=_by_method(alt.Color, COLOURS),
        fill=_by_method(alt.Fill, COLOURS),
        fillOpacity=alt.condition(ran, alt.value(1), alt.value(0)),
        shape=_by_method(alt.Shape, SHAPES),
    )
    known = base.transform_filter("isValid(datum.low)")
    interval = known.mark_rule(yOffset=17, strokeWidth=1.5, color=INK).encode(x=alt.X("low:Q"), x2="high:Q")
    text: dict[str, Any] = {"align": "left", "x": 0, "color": INK, "limit": 0}
    plans = base.mark_text(dy=-13, fontSize=11, **text).encode(text="plan:N")
    labels = base.mark_text(dy=2, fontSize=11, opacity=0.8, **text).encode(text="label:N")
    return svg(alt.layer(bars, interval, ends, plans, labels).properties(width=WIDTH, height=alt.Step(54)))


def _by_method(channel: Any, values: Sequence[str]) -> Any:
    return channel("method:N", scale=alt.Scale(domain=list(METHODS), range=list(values)), legend=None)


def svg(chart: Any) -> str:
    """The drawing as text, in the page's ink."""
    axes = {"labelColor": INK, "titleColor": INK, "titleFontWeight": "normal", "labelFontSize": 11, "titleFontSize": 11}
    faint = {"domainColor": INK, "domainOpacity": 0.4, "tickColor": INK, "tickOpacity": 0.4, "gridColor": INK}
    drawn = io.StringIO()
    chart.configure(background="transparent", aria=False, font="sans-serif").configure_view(stroke=None).configure_axis(
        **axes, **faint, gridOpacity=0.12
    ).configure_legend(**axes, titleOrient="left").save(drawn, format="svg")
    return re.sub(r' (?:d|transform)="[^"]*"', lambda found: LONG.sub("", found[0]), drawn.getvalue())
