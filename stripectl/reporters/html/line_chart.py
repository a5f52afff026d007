"""Lines over the sequence length, a plan each: the length by its logarithm, what is drawn linear or by its logarithm.

Series are told by colour and shape. What ran on devices is filled and its line whole; the rest is hollow and dashed.
Bounds are dotted, limits dashed rules with a word.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from stripectl.reporters.html.charts import COLOURS, INK, SHAPES, WIDTH, svg

CHART_PIXELS = 190  # pixels
MAX_SERIES = len(COLOURS)
MAX_TICKS = 6
# Tokens in the paper's notation, which counts in 1024.
TOKENS = (
    "datum.value >= 1048576 ? format(datum.value / 1048576, '~g') + 'M' : "
    "datum.value >= 1024 ? format(datum.value / 1024, '~g') + 'k' : format(datum.value, '~g')"
)


def draw(chart: Mapping[str, Any]) -> str:
    """SVG. `points` are {tokens, value, series, method, low, high}, `series` names them in the order of their colours,
    `dotted` {tokens, value, series} are bounds, `crosses` {tokens, value, series} what was refused, `stars` {tokens,
    value} what was published, and `rules` {value, words} hold at every length. `log` says how values are drawn."""
    series = chart["series"]
    lengths = sorted({each["tokens"] for kind in ("points", "crosses", "stars") for each in chart[kind]})
    ticks = lengths[:: -(-len(lengths) // MAX_TICKS)]
    axis = alt.Axis(values=ticks, labelExpr=TOKENS, grid=False, labelFlush=False)
    domain = [lengths[0] / 1.15, lengths[-1] * 1.15]
    across = alt.X(
        "tokens:Q",
        title="sequence length (tokens)",
        axis=axis,
        scale=alt.Scale(type="log", base=2, domain=domain, nice=False),
    )
    scale = alt.Scale(type="log", nice=True) if chart["log"] else alt.Scale(zero=False, nice=True)
    up = alt.Y(
        "value:Q", title=chart["axis"], scale=scale, axis=alt.Axis(tickCount=5, labelFlush=False, grid=not chart["log"])
    )
    legend = alt.Legend(
        title=None, orient="bottom", columns=1, labelLimit=WIDTH - 20, symbolFillColor="transparent", symbolSize=60
    )
    colour = alt.Color("series:N", scale=alt.Scale(domain=series, range=list(COLOURS[: len(series)])), legend=legend)
    shape = alt.Shape("series:N", scale=alt.Scale(domain=series, range=list(SHAPES[: len(series)])), legend=legend)
    ran = "datum.method == 'measured'"

    def of(rows: Sequence[Mapping[str, Any]]) -> Any:
        return alt.Chart(alt.Data(values=list(rows))).encode(x=across)

    base = of(chart["points"]).encode(y=up, color=colour)
    layers = [
        base.transform_filter(when).mark_line(strokeWidth=1.5, strokeDash=dash).encode(detail="series:N")
        for when, dash in ((ran, [1, 0]), (f"!({ran})", [5, 3]))
    ]
    dotted = of(chart["dotted"]).encode(y=up, color=colour)
    layers.append(dotted.mark_line(strokeWidth=1.5, strokeDash=[1, 3]))
    layers.append(dotted.mark_point(size=14, strokeWidth=1).encode(shape=shape))
    bars = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.5)
    layers.append(bars.encode(y=alt.Y("low:Q"), y2="high:Q"))
    fill = alt.condition(ran, alt.value(1), alt.value(0))
    layers.append(
        base.mark_point(size=55, strokeWidth=1.5).encode(shape=shape, fill=colour.copy(deep=True), fillOpacity=fill)
    )
    crosses = of(chart["crosses"]).encode(y=up, color=colour)
    layers.append(crosses.mark_point(size=55, strokeWidth=1.5).encode(shape=shape))
    layers.append(crosses.mark_text(text="✕", fontSize=13, fontWeight="bold"))
    layers.append(of(chart["stars"]).encode(y=up).mark_text(text="★", fontSize=14, color=INK))
    for rule in chart["rules"]:
        line = alt.Chart(alt.Data(values=[rule])).encode(y=up)
        layers.append(line.mark_rule(color=INK, strokeWidth=1.2, strokeDash=[6, 2]))
        text: dict[str, Any] = {"align": "left", "baseline": "bottom", "dy": -2, "fontSize": 10, "color": INK}
        layers.append(line.mark_text(x=2, **text).encode(text="words:N"))
    return svg(alt.layer(*layers).properties(width=WIDTH - 42, height=CHART_PIXELS))
