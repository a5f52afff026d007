"""Lines over the sequence length, one per plan: the length is logarithmic, the values linear or logarithmic.

Series differ in colour and shape. Measured values have solid marks and a solid line; the rest is hollow and dashed.
Bounds are dotted, limits are dashed rules with a text.
"""

import json
from collections.abc import Sequence
from typing import Any

import altair as alt

from stripectl.reporters.html.charts import (
    COLOURS,
    FONT_SIZE,
    INK,
    NARROW,
    PANEL,
    SHAPES,
    Chart,
    ChartRow,
    MarkLook,
    svg,
    tip_channel,
)

MAX_SERIES = len(COLOURS)
MAX_TICKS = 8
LEGEND_COLUMN = 300  # pixels of a name in the legend
# Tokens in the papers' notation, in units of 1024.
TOKENS = (
    "datum.value >= 1048576 ? format(datum.value / 1048576, '~g') + 'M' : "
    "datum.value >= 1024 ? format(datum.value / 1024, '~g') + 'k' : format(datum.value, '~g')"
)


def draw(chart: Chart, width: int) -> str:
    """SVG. `points` are {tokens, value, series, method, low, high, tip}, `series` has their names in the order of their
    colours, `dotted` {tokens, value, series} are bounds, `crosses` {tokens, value, series} are refused plans, `stars`
    {tokens, value} are published values, and `rules` {value, words} apply to every length. `log` selects the scale of
    values, `domain` their range, `focus` the series that is the answer, and `tall` the pixels of a wide drawing."""
    series = chart["series"]
    lengths = sorted({each["tokens"] for kind in ("points", "crosses", "stars") for each in chart[kind]})
    ticks = lengths[:: -(-len(lengths) // (MAX_TICKS if width > NARROW else MAX_TICKS // 2))]
    axis = alt.Axis(
        values=ticks, labelExpr=TOKENS, grid=False, labelFlush=False, labelOverlap="greedy", labelSeparation=6
    )
    domain = [lengths[0] / 1.15, lengths[-1] * 1.15]
    across = alt.X(
        "tokens:Q",
        title="sequence length (tokens)",
        axis=axis,
        scale=alt.Scale(type="log", base=2, domain=domain, nice=False),
    )
    ends = {"domain": chart["domain"]} if chart.get("domain") else {}
    scale = alt.Scale(type="log", nice=True) if chart["log"] else alt.Scale(zero=False, nice=True, **ends)
    up = alt.Y("value:Q", title=chart["axis"], scale=scale, axis=alt.Axis(tickCount=5, labelFlush=False, grid=True))
    columns = max(1, min(len(series), width // LEGEND_COLUMN)) if max(map(len, series), default=0) > 24 else 2
    legend = alt.Legend(
        title=None,
        orient="bottom",
        columns=columns,
        labelLimit=width // columns - 30,
        symbolFillColor="transparent",
        symbolSize=70,
        rowPadding=4,
        columnPadding=24,
    )
    colour = alt.Color("series:N", scale=alt.Scale(domain=series, range=list(COLOURS[: len(series)])), legend=legend)
    shape = alt.Shape("series:N", scale=alt.Scale(domain=series, range=list(SHAPES[: len(series)])), legend=legend)
    ran, answer = "datum.method == 'measured'", f"datum.series == {json.dumps(chart.get('focus') or '')}"

    def of(rows: Sequence[ChartRow]) -> Any:
        return alt.Chart(alt.Data(values=list(rows))).encode(x=across)

    base = of(chart["points"]).encode(y=up, color=colour)
    broad = alt.condition(answer, alt.value(3), alt.value(1.6))
    layers = [
        base.transform_filter(when).mark_line(strokeDash=dash).encode(detail="series:N", strokeWidth=broad)
        for when, dash in ((ran, [1, 0]), (f"!({ran})", [6, 3]))
    ]
    dotted = of(chart["dotted"]).encode(y=up, color=colour)
    layers.append(dotted.mark_line(strokeWidth=1.5, strokeDash=[1, 3]))
    if chart["dotted"]:
        last = max(chart["dotted"], key=lambda row: (row["tokens"], row["value"]))
        named = MarkLook({"align": "right", "baseline": "bottom", "dy": -5, "fontSize": FONT_SIZE, "color": INK})
        layers.append(of([last | {"words": "bound"}]).mark_text(**named).encode(y=up, text="words:N"))
    bars = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.5)
    layers.append(bars.encode(y=alt.Y("low:Q"), y2="high:Q"))
    fill = alt.condition(ran, alt.value(1), alt.value(0))
    points = base.mark_point(size=60, strokeWidth=1.8)
    layers.append(points.encode(shape=shape, fill=colour.copy(deep=True), fillOpacity=fill, description=tip_channel()))
    crosses = of(chart["crosses"]).encode(y=up, color=colour)
    layers.append(crosses.mark_point(size=55, strokeWidth=1.5).encode(shape=shape))
    layers.append(crosses.mark_text(text="✕", fontSize=13, fontWeight="bold"))
    layers.append(of(chart["stars"]).encode(y=up).mark_text(text="★", fontSize=14, color=INK))
    for rule in chart["rules"]:
        line = alt.Chart(alt.Data(values=[rule])).encode(y=up)
        layers.append(line.mark_rule(color=INK, strokeWidth=1.5, strokeDash=[6, 2], opacity=0.7))
        text = MarkLook({"align": "left", "baseline": "bottom", "dy": -3, "fontSize": FONT_SIZE, "color": INK})
        layers.append(line.mark_text(x=4, **text).encode(text="words:N"))
    tall = chart.get("tall", 300) if width > PANEL else 240 if width == PANEL else 220
    return svg(alt.layer(*layers).properties(width=width - 56, height=tall))
